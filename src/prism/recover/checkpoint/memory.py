"""A rank's staged states in host memory, within a budget."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

from prism.errors import BadConfigError
from prism.recover.checkpoint.arena import Slot, SlotHeader
from prism.recover.progress import MEMORY_PREFIX

_DEFAULT_SLOTS = 2
_MAX_SLOTS = 8


def memory_folder(memory_dir: Path, checkpoints: Path) -> Path:
    """Where a run's staged states lie on each host; the same after a restart."""
    key = hashlib.sha256(str(checkpoints.resolve()).encode()).hexdigest()[:16]
    return memory_dir / f"{MEMORY_PREFIX}{key}"


class Memory:
    """Slots that are used in turn, the oldest first."""

    def __init__(self, memory_dir: Path, checkpoints: Path, rank: int, budget_bytes: int | None) -> None:
        self.folder = memory_folder(memory_dir, checkpoints) / f"rank-{rank:05d}"
        self._budget_bytes = budget_bytes
        self._state_bytes = 0
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadConfigError(
                f"{self.folder}: cannot hold staged states ({error.strerror}); set memory_dir"
            ) from None
        self.slots = [Slot(self.folder, number) for number in range(_MAX_SLOTS)]
        for slot in self.slots:
            header = slot.header()
            slot.step = header.step if header is not None else -1

    @property
    def num_slots(self) -> int:
        """Slots in use: as many as fit the budget."""
        if self._budget_bytes is None or self._state_bytes == 0:
            return _DEFAULT_SLOTS
        return max(1, min(_MAX_SLOTS, self._budget_bytes // self._state_bytes))

    def check_budget(self, num_bytes: int) -> None:
        """Refuse a state that does not fit the budget even once."""
        self._state_bytes = num_bytes
        if self._budget_bytes is not None and num_bytes > self._budget_bytes:
            raise BadConfigError(
                f"memory_budget_bytes is {self._budget_bytes:,}, one staged state of this rank takes {num_bytes:,}; "
                "raise the budget"
            )

    def take_slot(self, wait_oldest: Callable[[], None]) -> Slot:
        """The free slot with the oldest content, after waiting for a write if none is free."""
        while True:
            free = [slot for slot in self.slots[: self.num_slots] if not slot.busy]
            if free:
                slot = min(free, key=lambda s: s.step)
                slot.header_path.unlink(missing_ok=True)
                slot.busy = True
                return slot
            wait_oldest()

    def whole(self, world_size: int) -> dict[int, tuple[Slot, SlotHeader]]:
        """Healthy whole slots of a world of this size, by step."""
        found = ((slot, slot.header()) for slot in self.slots)
        return {
            header.step: (slot, header)
            for slot, header in found
            if header is not None and header.world_size == world_size and header.health.good
        }

    def forget_after(self, step: int) -> None:
        """Drop staged states later than a step: their future was given up."""
        for slot in self.slots:
            header = slot.header()
            if header is not None and header.step > step:
                slot.header_path.unlink(missing_ok=True)
                slot.step = -1

    def remove(self) -> None:
        """Give all memory back."""
        for slot in self.slots:
            slot.remove()
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # other ranks are still there, or the last of them was quicker
            self.folder.parent.rmdir()
