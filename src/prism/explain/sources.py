"""Where logs are: files, compressed files, folders of per-rank logs and streams, all read as bounded chunks."""

from __future__ import annotations

import gzip
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from prism.errors import BadFileError, MissingExtraError

CHUNK_BYTES = 8 << 20
STREAM = "-"
# Names that are not logs although they lie beside them.
_NOT_LOGS = frozenset({".json", ".yaml", ".yml", ".py", ".pt", ".pth", ".bin", ".safetensors", ".parquet",
                       ".csv", ".pkl",
                       ".npy", ".npz", ".so", ".png", ".pdf", ".html", ".lock", ".pid"})  # fmt: skip
_RANK_IN_NAME = re.compile(
    r"(?:^|[^a-z])(?:global_?)?(?:rank|proc|worker|task|replica)[-_. ]?(\d{1,6})(?!\d)", re.IGNORECASE
)
_TORCHRUN_FOLDER = re.compile(r"(?:^|/)(?:attempt_\d+/)?(\d{1,6})/(?:stdout|stderr)(?:\.log)?(?:\.(?:gz|zst))?$")
_HOST_IN_NAME = re.compile(r"(?:^|[^a-z0-9])((?:node|host|gpu|worker|dgx|hgx|cn|nid|ip|compute|pod)"
                           r"[-_]?[a-z]{0,8}[-_]?\d[\w-]*?)"
                           r"(?=$|\.|_rank|-rank|/|_local)", re.IGNORECASE)  # fmt: skip
_BARE_NUMBER = re.compile(r"^(?:log[-_.])?(\d{1,5})$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """One log to read, and what its name says about where it was written."""

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
        return [LogSource(path=str(path), name=path.name)]  # a pipe or device: read as it comes
    files = sorted(p for p in path.rglob("*") if p.is_file() and p.suffix.lower() not in _NOT_LOGS and p.name[0] != ".")
    if not files:
        raise BadFileError(f"{place}: no logs in this folder; give the folder that holds the ranks' logs")
    names = [p.relative_to(path).as_posix() for p in files]
    return [
        LogSource(path=str(p), name=name, rank=_rank_of(name), host=_host_of(name))
        for p, name in zip(files, names, strict=True)
    ]


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
    """The log's bytes, decompressed, a chunk at a time; what a cut archive still holds is read."""
    try:
        with open_log(source) as stream:
            if isinstance(stream, gzip.GzipFile):
                yield from _read_gzip(stream, chunk_bytes)
                return
            while chunk := stream.read(chunk_bytes):
                yield chunk
    except OSError as error:
        raise BadFileError(
            f"{source.path}: cannot be read ({error.strerror or error}); check the file and its mode"
        ) from error


def _read_gzip(stream: gzip.GzipFile, chunk_bytes: int) -> Iterator[bytes]:
    """Chunks of an archive; one that was cut gives all that came before the cut."""
    parts: list[bytes] = []
    size = 0
    try:
        while part := stream.read1(chunk_bytes):
            parts.append(part)
            size += len(part)
            if size >= chunk_bytes:
                yield b"".join(parts)
                parts, size = [], 0
    except (EOFError, zlib.error, gzip.BadGzipFile):
        pass  # What was decompressed so far is still evidence.
    if parts:
        yield b"".join(parts)


@contextmanager
def open_log(source: LogSource) -> Iterator[BinaryIO]:
    """Open a log for reading bytes, undoing gzip and zstd by their magic numbers."""
    if source.path == STREAM:
        yield sys.stdin.buffer
        return
    with ExitStack() as stack:
        stream = stack.enter_context(Path(source.path).open("rb"))
        magic = stream.read(4) if stream.seekable() else b""
        if magic:
            stream.seek(0)
        if magic[:2] == b"\x1f\x8b":
            yield cast(BinaryIO, stack.enter_context(gzip.GzipFile(fileobj=stream, mode="rb")))
        elif magic == b"\x28\xb5\x2f\xfd":
            yield stack.enter_context(_open_zstd(stream))
        elif source.path.endswith(".gz") and magic:
            raise BadFileError(f"{source.path}: named .gz but not a gzip file; rename or re-compress it")
        else:
            yield stream


def _open_zstd(stream: BinaryIO) -> BinaryIO:
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtraError("reading zstd logs", "explain") from error
    return cast(BinaryIO, zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True))
