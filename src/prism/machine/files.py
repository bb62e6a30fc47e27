"""Files that are either complete or absent: written under another name, flushed to storage, then renamed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

_PRIVATE_FOLDER = 0o700
_PRIVATE_FILE = 0o600


class UntrustedError(OSError):
    """A file or folder that another user made, owns or could change; it is not used."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write a file under; at the end it is flushed and takes the place of `path`."""
    aside = path.with_name(f".{os.uname().nodename}-{os.getpid()}-{threading.get_ident()}.{path.name}")
    try:
        yield aside
        with aside.open("rb") as handle:
            os.fsync(handle.fileno())
        aside.replace(path)
        sync_folder(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def write_durably(path: Path, text: str | bytes) -> None:
    """Replace a file, making its folder where there is none; a crash leaves the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as aside:
        aside.write_bytes(text if isinstance(text, bytes) else text.encode())


def append_durably(path: Path, text: str) -> None:
    """Append a line and flush it to storage."""
    with path.open("a") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to storage, so that a rename in it survives a power failure."""
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
    """Drop a file's clean pages from the cache, where they would displace the data of the training."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def make_private_folder(path: Path) -> None:
    """Make a folder that only this user can enter; refuses one that another user made or can enter."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=_PRIVATE_FOLDER)
    check_private_folder(path)


def check_private_folder(path: Path) -> None:
    """Raise UntrustedError unless the folder is a real one, ours, and closed to everybody else."""
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise UntrustedError(f"{path}: not a folder, but something else with its name")
    _check_owner(path, found)


def check_parent(path: Path) -> None:
    """Raise UntrustedError if somebody else could replace what lies in this folder."""
    found = path.stat()
    if found.st_uid not in (0, os.geteuid()):
        raise UntrustedError(f"{path}: belongs to user {found.st_uid}, who could replace what lies in it")
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise UntrustedError(f"{path}: everybody may write there and it has no sticky bit (chmod +t)")


def open_private(path: Path, flags: int) -> int:
    """Open a regular file of ours that nobody else can touch; follows no link. The caller closes the descriptor."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, _PRIVATE_FILE)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise UntrustedError(f"{path}: not a plain file with one name")
        _check_owner(path, found)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def write_private(path: Path, text: str) -> None:
    """Replace a small file of a private folder in one step; it is in memory, so nothing is forced to storage."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    aside.unlink(missing_ok=True)
    descriptor = open_private(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with os.fdopen(descriptor, "w") as handle:
        handle.write(text)
    aside.replace(path)


def read_private(path: Path, limit_bytes: int = 256 << 20) -> bytes:
    """The content of a small private file."""
    with os.fdopen(open_private(path, os.O_RDONLY), "rb") as handle:
        return handle.read(limit_bytes)


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise UntrustedError(f"{path}: belongs to user {found.st_uid}, not to this one")
    if found.st_mode & 0o077:
        raise UntrustedError(f"{path}: open to other users (mode {stat.S_IMODE(found.st_mode):o}), expected 700")
