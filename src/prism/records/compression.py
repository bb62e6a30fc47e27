"""Compressed files, recognised by their first bytes and unpacked into memory up to a limit."""

from __future__ import annotations

import bz2
import gzip
import importlib
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from prism.errors import BadFileError, MissingExtraError

ENDINGS = (".gz", ".zst", ".xz", ".bz2")
_MOST_BYTES = 32 << 30  # A file that unpacks to more is refused: its user must unpack it to disk.
_PIECE = 16 << 20
_SMALL_PIECE = 1 << 18  # fits into a core's cache, which halves the time to scan it


def _open_zstd(path: Path) -> IO[bytes]:
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        raise MissingExtraError(f"{path}: a zstd file", "zstd") from None
    opened: IO[bytes] = zstandard.open(path, "rb")
    return opened


_OPENERS: dict[bytes, tuple[str, Callable[[Path], Any]]] = {
    b"\x1f\x8b": ("gzip", gzip.open),
    b"\x28\xb5\x2f\xfd": ("zstd", _open_zstd),
    b"\xfd7zXZ\x00": ("xz", lzma.open),
    b"BZh": ("bzip2", bz2.open),
}


def is_compressed(head: bytes) -> bool:
    """Whether these are the first bytes of a compressed file."""
    return any(head.startswith(magic) for magic in _OPENERS)


def name_without_endings(path: Path) -> str:
    """A file's name without its ending and that of its compression: seren for seren.csv.gz."""
    return Path(path.stem).stem if path.suffix.lower() in ENDINGS else path.stem


def unpack(path: Path, most_bytes: int | None = None) -> bytes:
    """The content of a compressed file, or its first `most_bytes`."""
    with path.open("rb") as handle:
        head = handle.read(8)
    name, opener = next(entry for magic, entry in _OPENERS.items() if head.startswith(magic))
    limit = _MOST_BYTES if most_bytes is None else most_bytes
    pieces: list[bytes] = []
    size = 0
    try:
        with opener(path) as handle:
            while size < limit and (piece := handle.read(min(_PIECE, limit - size))):
                pieces.append(piece)
                size += len(piece)
            too_large = most_bytes is None and size >= limit and bool(handle.read(1))
    except MissingExtraError:
        raise
    except Exception as error:  # zlib.error, LZMAError, ZstdError, EOFError: each library has its own.
        if most_bytes is not None and pieces:
            return b"".join(pieces)
        raise BadFileError(f"{path}: broken {name} file ({error}); copy it again") from None
    if too_large:
        raise BadFileError(f"{path}: unpacks to over {limit >> 30} GiB; unpack it to disk and give that file")
    return b"".join(pieces)


def read_pieces(path: Path) -> Iterator[bytes]:
    """The content of a file, unpacked, piece by piece."""
    with path.open("rb") as handle:
        head = handle.read(8)
    name, opener = next(
        (entry for magic, entry in _OPENERS.items() if head.startswith(magic)), ("", lambda plain: plain.open("rb"))
    )
    try:
        with opener(path) as handle:
            while piece := handle.read(_SMALL_PIECE):
                yield piece
    except MissingExtraError:
        raise
    except Exception as error:  # as above
        raise BadFileError(f"{path}: broken {name} file ({error}); copy it again") from None


def without_ending(name: str) -> str:
    """A file name without the ending that its compression gave it."""
    return next((name[: -len(e)] for e in ENDINGS if name.lower().endswith(e)), name)
