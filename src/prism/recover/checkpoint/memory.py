"""A rank's staged states in host memory: bound to one checkpoint folder, closed to other users, within a budget."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from prism.machine.files import (
    UntrustedError,
    check_parent,
    check_private_folder,
    make_private_folder,
    open_private,
    read_private,
    write_private,
)
from prism.recover.catalog import Catalog, Cut
from prism.recover.checkpoint.slots import Slot, SlotHeader
from prism.recover.progress import MEMORY_PREFIX

_DEFAULT_SLOTS = 2
_MAX_SLOTS = 8
_BINDING = "run.json"
_BINDING_SCHEMA = "prism.staging/1"
_LOCK = "lock"
_LOCK_WAIT_S = 5.0  # a process that was just killed may still be ending
_IN_USE: set[Path] = set()  # of this process: testing its own lock would release it


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig:
    """When the memory of a run that no process uses is freed."""

    idle_s: float = 24 * 3_600.0
    orphaned_s: float = 3_600.0  # if its checkpoint folder was deleted or replaced


def memory_folder(memory_dir: Path, folder_id: str) -> Path:
    """The folder of a run's staged states on each host; the same after a restart."""
    return memory_dir / f"{MEMORY_PREFIX}{folder_id[:16]}"


class Memory:
    """Slots that are used in turn, the oldest first. Nothing is created or changed before `hold`."""

    def __init__(self, memory_dir: Path, catalog: Catalog, rank: int, budget_bytes: int | None) -> None:
        self._memory_dir = memory_dir
        self._checkpoints = catalog.folder
        self._folder_id = catalog.id or ""
        self._rank = rank
        self._budget_bytes = budget_bytes
        self._state_bytes = 0
        self._lock: int | None = None
        self._use(memory_folder(memory_dir, self._folder_id or "none"))

    def _use(self, run_folder: Path) -> None:
        self.run_folder = run_folder
        self.folder = run_folder / f"rank-{self._rank:05d}"
        self.slots = [Slot(self.folder, number) for number in range(_MAX_SLOTS)]

    @property
    def folder_id(self) -> str:
        """The checkpoint folder that the states belong to."""
        return self._folder_id

    @property
    def num_slots(self) -> int:
        """Slots in use: as many as fit the budget."""
        if self._budget_bytes is None or self._state_bytes == 0:
            return _DEFAULT_SLOTS
        return max(1, min(_MAX_SLOTS, self._budget_bytes // self._state_bytes))

    def reserve(self, slot: Slot, num_bytes: int, *, pin: bool) -> None:
        """Provide a slot with room for a state: in memory within the budget, else on disk."""
        self._state_bytes = num_bytes
        over = self._budget_bytes is not None and num_bytes > self._budget_bytes
        slot.reserve(num_bytes, pin=pin, spill=(Path(tempfile.gettempdir()), self._checkpoints), in_memory=not over)

    def hold(self) -> str | None:
        """Create and lock the folder for the life of this process; returns why, if another folder had to be used."""
        if self._lock is not None:
            return None
        trouble = None
        self._memory_dir.mkdir(parents=True, exist_ok=True)
        check_parent(self._memory_dir)
        try:
            self._make()
        except UntrustedError as error:
            trouble = str(error)
        if trouble is not None or not self._take_lock():
            trouble = trouble or f"{self.folder}: held by a living process"
            self._use(self.run_folder.with_name(f"{self.run_folder.name}-{secrets.token_hex(4)}"))
            self._make()
            self._take_lock()
        for slot in self.slots:
            header = slot.header()
            slot.step = header.step if header is not None else -1
        return trouble

    def _make(self) -> None:
        make_private_folder(self.run_folder)
        document = {"schema": _BINDING_SCHEMA, "id": self._folder_id, "checkpoints": str(self._checkpoints.resolve())}
        write_private(self.run_folder / _BINDING, json.dumps(document))
        make_private_folder(self.folder)

    def _take_lock(self) -> bool:
        self._lock = open_private(self.folder / _LOCK, os.O_RDWR | os.O_CREAT)
        deadline = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                # A POSIX lock: loader workers that were forked from this process do not inherit it.
                fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _IN_USE.add(self.run_folder)
                return True
            except OSError:
                if time.monotonic() > deadline:
                    os.close(self._lock)
                    self._lock = None
                    return False
                time.sleep(0.1)

    def take_slot(self, wait_oldest: Callable[[], None]) -> Slot:
        """The free slot with the oldest content, after waiting for a write if none is free."""
        while True:
            free = [slot for slot in self.slots[: self.num_slots] if not slot.busy]
            if free:
                slot = min(free, key=lambda s: s.step)
                slot.clear()
                slot.busy = True
                return slot
            wait_oldest()

    def whole(self, world_size: int, cuts: Iterable[Cut] = ()) -> dict[tuple[int, int], tuple[Slot, SlotHeader]]:
        """Complete slots of this run and world size that were not discarded, by step and token."""
        try:
            check_parent(self._memory_dir)
            check_private_folder(self.run_folder)
            check_private_folder(self.folder)
            if self._is_changing():
                return {}
        except OSError:
            return {}
        found = ((slot, slot.header()) for slot in self.slots)
        return {
            (header.step, header.token): (slot, header)
            for slot, header in found
            if header is not None
            and header.folder_id == self._folder_id
            and header.world_size == world_size
            and not any(cut.covers(header.step, header.epoch) for cut in cuts)
        }

    def _is_changing(self) -> bool:
        """Whether another live process uses these slots; waits a moment for one that was just killed."""
        if self.run_folder in _IN_USE:
            return False
        deadline = time.monotonic() + _LOCK_WAIT_S
        while is_locked(self.folder / _LOCK):
            if time.monotonic() > deadline:
                return True
            time.sleep(0.1)
        return False

    def remove(self) -> None:
        """Free all memory. Ranks that end together may do this at once: each removes its own, the last one the rest."""
        if self._lock is None:
            return  # never used: files there belong to another process
        self.release()
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another rank has removed it
            if not any(path.name.startswith("rank-") for path in list(self.run_folder.iterdir())):
                shutil.rmtree(self.run_folder, ignore_errors=True)

    def release(self) -> None:
        """Release the lock; the states stay for the next process."""
        for slot in self.slots:
            slot.release()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            _IN_USE.discard(self.run_folder)


def sweep_memory(memory_dir: Path, config: SweepConfig | None = None) -> list[Path]:
    """Free the memory of this user's dead runs on this host; memory that is not certainly dead stays."""
    limits = config or SweepConfig()
    swept = []
    for run_folder in memory_dir.glob(f"{MEMORY_PREFIX}*"):
        try:
            check_private_folder(run_folder)
            binding = json.loads(read_private(run_folder / _BINDING))
            if binding["schema"] != _BINDING_SCHEMA or run_folder in _IN_USE or _is_held(run_folder):
                continue
            idle_s = time.time() - max(path.lstat().st_mtime for path in (run_folder, *run_folder.rglob("*")))
            gone = Catalog(Path(str(binding["checkpoints"]))).id != binding["id"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if idle_s > (limits.orphaned_s if gone else limits.idle_s):
            shutil.rmtree(run_folder, ignore_errors=True)
            swept.append(run_folder)
    return swept


def _is_held(run_folder: Path) -> bool:
    """Whether a living process holds one of the ranks."""
    return any(is_locked(lock) for lock in run_folder.glob(f"rank-*/{_LOCK}"))


def is_locked(lock: Path) -> bool:
    """Whether another process holds a lock. Testing a lock of this process would release it."""
    try:
        descriptor = open_private(lock, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
