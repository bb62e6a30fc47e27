"""A node's shelf: checkpoints in shared memory, pulled by one, leased by many, cleared when the last is gone.

ROOT/<key>/            a whole, verified copy
ROOT/<key>.pulling/    a copy that is being pulled; the process that pulls it holds the lock
ROOT/<key>.lock        held (flock) while a copy is made, leased, given back or cleared
ROOT/<key>.leases/     one file per user, named by its process; a lease of a dead process is none
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prism.errors import BadFileError, PrismError
from prism.evaluate.run.loading.pull import PullConfig, pull
from prism.evaluate.run.loading.source import Source, SourceFile
from prism.machine.processes import is_running, mark_process

_RESERVE = 0.05  # of the memory file system, left to others


def default_roots() -> tuple[Path, ...]:
    """What PRISM_SHELF names on this node; else shared memory, and a folder of the disk where that is too small."""
    if chosen := os.environ.get("PRISM_SHELF"):
        return (Path(chosen),)
    name = f"prism-evaluate-{os.getuid()}"
    return (Path("/dev/shm") / name, Path(tempfile.gettempdir()) / name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShelfConfig:
    """Where copies lie, in order of liking, and how they are pulled."""

    roots: tuple[Path, ...] = field(default_factory=default_roots)
    pull: PullConfig = field(default_factory=PullConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to use a copy until it is given back, or its process ends."""

    key: str
    folder: Path
    ticket: Path
    pulled_bytes: int  # 0 where the copy was there already
    seconds: float


class Shelf:
    """The copies of one node; any number of processes may hold one on the same roots."""

    def __init__(self, config: ShelfConfig | None = None) -> None:
        self.config = config or ShelfConfig()

    def lease(self, key: str, sources: Sequence[Source], files: Sequence[SourceFile]) -> Lease:
        """Pull a checkpoint unless it is here, and hold it; waits while another process pulls the same one."""
        start = time.monotonic()
        found = self.holds(key)
        root = found.parent if found else self._roomiest(files)
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(root, key):
            pulled = 0
            if not (root / key).is_dir():
                pulled = self._fill(root, key, sources, files)
            ticket = _write_ticket(root, key)
        return Lease(key=key, folder=root / key, ticket=ticket, pulled_bytes=pulled, seconds=time.monotonic() - start)

    def hold(self, key: str) -> Lease:
        """Hold a copy that is here; raises BadFileError where it is not."""
        if (folder := self.holds(key)) is not None:
            with _locked(folder.parent, key):
                if folder.is_dir():
                    ticket = _write_ticket(folder.parent, key)
                    return Lease(key=key, folder=folder, ticket=ticket, pulled_bytes=0, seconds=0.0)
        raise BadFileError(f"checkpoint {key} is no longer in shared memory")

    def give_back(self, lease: Lease) -> None:
        """End a lease; the copy is removed with the last one."""
        root = lease.folder.parent
        with _locked(root, lease.key):
            lease.ticket.unlink(missing_ok=True)
            _clear_unused(root, lease.key)

    def sweep(self) -> list[str]:
        """Clear what crashed processes left behind; returns the keys that went."""
        cleared = []
        for root in self.config.roots:
            names = {path.name.split(".")[0] for path in root.glob("*")} if root.is_dir() else set()
            for key in sorted(names):
                with contextlib.suppress(BlockingIOError), _locked(root, key, wait=False):
                    if _clear_unused(root, key):
                        cleared.append(key)
        return cleared

    def holds(self, key: str) -> Path | None:
        """Where a whole copy lies, or None."""
        return next((root / key for root in self.config.roots if (root / key).is_dir()), None)

    def _fill(self, root: Path, key: str, sources: Sequence[Source], files: Sequence[SourceFile]) -> int:
        aside = root / f"{key}.pulling"
        shutil.rmtree(aside, ignore_errors=True)  # of one who died while pulling: the lock is ours
        aside.mkdir(mode=0o700)
        try:
            pull(sources, files, aside, self.config.pull)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        aside.rename(root / key)
        return sum(file.num_bytes for file in files)

    def _roomiest(self, files: Sequence[SourceFile]) -> Path:
        """The first root with room for the files."""
        needed = sum(file.num_bytes for file in files)
        room = {}
        for root in self.config.roots:
            stat = os.statvfs(_existing(root))
            room[root] = int((stat.f_bavail - stat.f_blocks * _RESERVE) * stat.f_frsize)
            if room[root] >= needed:
                return root
        told = ", ".join(f"{root} has {free / 1e9:.1f} GB" for root, free in room.items())
        raise PrismError(
            f"no room for a checkpoint of {needed / 1e9:.1f} GB: {told}; free some or name a folder in PRISM_SHELF"
        )


@contextlib.contextmanager
def _locked(root: Path, key: str, *, wait: bool = True) -> Iterator[None]:
    """Hold a key's lock; the kernel lets go of it when its holder dies."""
    path = root / f"{key}.lock"
    while True:
        with path.open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            # The process that cleared the copy removed the lock file too, so this lock protects nothing.
            if path.exists() and os.fstat(handle.fileno()).st_ino == path.stat().st_ino:
                yield
                return


def _write_ticket(root: Path, key: str) -> Path:
    folder = root / f"{key}.leases"
    folder.mkdir(exist_ok=True, mode=0o700)
    ticket = folder / f"{mark_process(os.getpid())}-{uuid.uuid4().hex[:8]}"
    ticket.touch()
    return ticket


def _clear_unused(root: Path, key: str) -> bool:
    """Remove a copy that no living process leases; the lock must be held."""
    leases = root / f"{key}.leases"
    for ticket in leases.glob("*"):
        if not is_running(ticket.name.rpartition("-")[0]):
            ticket.unlink(missing_ok=True)
    if any(leases.glob("*")):
        return False
    copies = [root / key, root / f"{key}.pulling"]
    existed = any(path.exists() for path in copies)
    for path in (*copies, leases):
        shutil.rmtree(path, ignore_errors=True)
    (root / f"{key}.lock").unlink(missing_ok=True)
    return existed


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
