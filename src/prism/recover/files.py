"""Files that are either wholly there or not there: written aside, forced to storage, renamed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def write_durably(path: Path, text: str) -> None:
    """Replace a small file so that a crash leaves the old or the new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with aside.open("w") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    aside.replace(path)
    sync_folder(path.parent)


def append_durably(path: Path, text: str) -> None:
    """Append a line and force it to storage."""
    with path.open("a") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())


def sync_folder(folder: Path) -> None:
    """Force a folder's entries to storage, so that a rename in it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hash_file(path: Path, *, from_storage: bool = False) -> str:
    """SHA-256 of a file; `from_storage` drops the cached pages first, so that what is on the device is read."""
    with path.open("rb", buffering=0) as handle:
        if from_storage:
            drop_cached(handle.fileno())
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
        if from_storage:
            drop_cached(handle.fileno())
    return digest


def drop_cached(descriptor: int) -> None:
    """Let go of a file's clean pages: they would push out what training reads."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
