"""Sources of logs: files, compressed files, folders of per-rank logs and streams, all read as bounded chunks."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

from prism.errors import BadFileError, MissingExtraError
from prism.evidence.logs.envelopes import is_wrapped, unwrap

CHUNK_BYTES = 8 << 20
STREAM = "-"
# Endings of files that are often stored next to logs and are none.
_NOT_LOGS = frozenset({".json", ".yaml", ".yml", ".py", ".pt", ".pth", ".bin", ".safetensors", ".parquet",
                       ".csv", ".pkl",
                       ".npy", ".npz", ".so", ".png", ".pdf", ".html", ".lock", ".pid"})  # fmt: skip
# First bytes of what is often stored beside logs: stacks of processes, pickles (Flight Recorder's dumps), profiles.
_NO_LOG_BEGINS = re.compile(
    rb"\s*(?:== process \d+|Process \d+: .*\n+Python v|Thread (?:0x)?[0-9a-fA-F]+ \((?:idle|active)"
    rb"|\x80[\x02-\x05]|PK\x03\x04|[{\[]\s*\"(?:schemaVersion|traceEvents|pg_config|deviceProperties|comm_lib_version)\")"
)
_RANK_IN_NAME = re.compile(
    r"(?:^|[^a-z])(?:global_?)?(?:rank|proc|worker|task|replica)[-_. ]?(\d{1,6})(?!\d)", re.IGNORECASE
)
_TORCHRUN_FOLDER = re.compile(r"(?:^|/)(?:attempt_\d+/)?(\d{1,6})/(?:stdout|stderr)(?:\.log)?(?:\.(?:gz|zst|xz|bz2))?$")
_HOST_IN_NAME = re.compile(
    r"(?:^|[^a-z0-9])((?:node|host|gpu|worker|dgx|hgx|cn|nid|ip|compute|pod)"
    r"[-_]?[a-z]{0,8}[-_]?\d[\w-]*?)"
    r"(?=$|\.|_rank|-rank|/|_local)",
    re.IGNORECASE,
)
_ARCHIVES = {".gz": "a gzip file", ".bz2": "a bzip2 file", ".xz": "an xz file", ".zst": "a zstd file"}
_EXIT_CODE = re.compile(rb"-?\d{1,3}\n?")
_BARE_NUMBER = re.compile(r"^(?:log[-_.])?(\d{1,5})$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """One log to read, with the rank and host that its name gives."""

    path: str
    name: str
    rank: int | None = None
    host: str | None = None


def find_logs(place: str) -> list[LogSource]:
    """The logs at a path: one file, the stream `-`, or every log under a folder."""
    if place == STREAM:
        return [LogSource(path=STREAM, name=STREAM)]
    path = Path(place)
    if not path.exists():
        raise BadFileError(
            f"{place}: no such file or folder; give a log, a folder of logs, or - for the standard input"
        )
    if path.is_file():
        return [LogSource(path=str(path), name=path.name)]
    if not path.is_dir():
        return [LogSource(path=str(path), name=path.name)]  # a pipe or device: read as its data arrives
    files = sorted(p for p in path.rglob("*") if p.is_file() and p.suffix.lower() not in _NOT_LOGS and p.name[0] != ".")
    if not files:
        raise BadFileError(f"{place}: no logs in this folder; give the folder that holds the ranks' logs")
    files = [p for p in files if not _NO_LOG_BEGINS.match(_first_bytes(p))] or files
    names = [p.relative_to(path).as_posix() for p in files]
    return [
        LogSource(path=str(p), name=name, rank=_rank_of(name), host=_host_of(name))
        for p, name in zip(files, names, strict=True)
    ]


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(512)
    except OSError:
        return b""  # `read_chunks` says what is wrong with it


def _rank_of(name: str) -> int | None:
    for pattern, text in ((_TORCHRUN_FOLDER, name), (_RANK_IN_NAME, name)):
        match = pattern.search(text)
        if match:
            return int(match.group(1))
    match = _BARE_NUMBER.match(Path(name).name.split(".")[0])
    return int(match.group(1)) if match else None


def _host_of(name: str) -> str | None:
    match = _HOST_IN_NAME.search(name)
    return match.group(1) if match else None


def read_chunks(source: LogSource, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The log's bytes, decompressed and in UTF-8, in chunks; a cut archive is read as far as possible."""
    try:
        with open_log(source) as stream:
            chunks = to_utf8(_read_on(stream, chunk_bytes))
            yield from _in_words(chunks) if source.path.endswith(".exit") else chunks
    except OSError as error:
        raise BadFileError(
            f"{source.path}: cannot be read ({error.strerror or error}); check the file and its mode"
        ) from error


def _in_words(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The exit code that `prism supervise` stores next to a log, as a launcher would print it."""
    first = next(chunks, b"")
    if _EXIT_CODE.fullmatch(first):
        first = (b"exited with code " if int(first) == 0 else b"exitcode: ") + first
    yield first
    yield from chunks


@dataclass(frozen=True, slots=True)
class Lines:
    """A log's chunks; `is_wrapped` if each line has the header of the collector's record that it came in."""

    chunks: Iterable[bytes]
    is_wrapped: bool


def read_lines(chunks: Iterator[bytes]) -> Lines:
    """A log's chunks as lines, without the JSON that a collector may have put around them."""
    first = next(chunks, b"")
    whole = chain((first,), chunks)
    return Lines(unwrap(whole), True) if is_wrapped(first[: 1 << 20]) else Lines(whole, False)


def to_utf8(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Decode UTF-16, which is recognised by its byte order mark or by a zero in every second byte."""
    first = next(chunks, b"")
    encoding = _encoding_of(first)
    if encoding is None:
        yield from chain((first,), chunks)
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for chunk in chain((first,), chunks):
        yield decoder.decode(chunk).lstrip("\ufeff").encode("utf-8", "replace")


def _encoding_of(first: bytes) -> str | None:
    if first[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16-le" if first[:2] == codecs.BOM_UTF16_LE else "utf-16-be"
    head = first[:200]
    if len(head) >= 8 and head.count(0) * 5 >= len(head) * 2:
        return "utf-16-le" if head[1::2].count(0) >= head[::2].count(0) else "utf-16-be"
    return None


def _read_on(stream: BinaryIO, chunk_bytes: int) -> Iterator[bytes]:
    """Chunks of a stream; a cut archive gives everything before the cut."""
    if isinstance(stream, gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile):
        yield from _read_archive(stream, chunk_bytes)
        return
    while chunk := stream.read(chunk_bytes):
        yield chunk


def _read_archive(stream: gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile, chunk_bytes: int) -> Iterator[bytes]:
    parts: list[bytes] = []
    size = 0
    try:
        while part := stream.read1(chunk_bytes):
            parts.append(part)
            size += len(part)
            if size >= chunk_bytes:
                yield b"".join(parts)
                parts, size = [], 0
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, ValueError):
        pass  # The part that was decompressed is still evidence.
    if parts:
        yield b"".join(parts)


@contextmanager
def open_log(source: LogSource) -> Iterator[BinaryIO]:
    """Open a log for reading bytes, undoing gzip, bzip2, xz and zstd by their magic numbers."""
    if source.path == STREAM:
        yield sys.stdin.buffer
        return
    with ExitStack() as stack:
        stream = stack.enter_context(Path(source.path).open("rb"))
        magic = stream.read(6) if stream.seekable() else b""
        if magic:
            stream.seek(0)
        if magic[:2] == b"\x1f\x8b":
            yield cast(BinaryIO, stack.enter_context(gzip.GzipFile(fileobj=stream, mode="rb")))
        elif magic[:3] == b"BZh":
            yield cast(BinaryIO, stack.enter_context(bz2.BZ2File(stream, mode="rb")))
        elif magic == b"\xfd7zXZ\x00":
            yield cast(BinaryIO, stack.enter_context(lzma.LZMAFile(stream, mode="rb")))
        elif magic[:4] == b"\x28\xb5\x2f\xfd":
            yield stack.enter_context(_open_zstd(stream))
        elif magic and (suffix := Path(source.path).suffix) in _ARCHIVES:
            raise BadFileError(f"{source.path}: named {suffix} but not {_ARCHIVES[suffix]}; rename or re-compress it")
        else:
            yield stream


def _open_zstd(stream: BinaryIO) -> BinaryIO:
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtraError("reading zstd logs", "explain") from error
    return cast(BinaryIO, zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True))
