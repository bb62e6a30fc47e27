"""Find ranks that sleep: they poll for a file or wait for a lock, which is not seen in their calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path


class SleepWatch:
    """Notes since when each rank has slept."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def look(self, now: float, pids: Mapping[int, int]) -> None:
        """Look at the processes of the ranks that run; call this about once per second."""
        self._since = {rank: self._since.get(rank, now) for rank, pid in pids.items() if is_asleep(pid)}

    def all_slept(self, now: float, seconds: float, ranks: Iterable[int]) -> bool:
        """Whether each of these ranks was asleep whenever it was looked at, for that long."""
        return all(now - self._since.get(rank, now) > seconds for rank in ranks)


def is_asleep(pid: int) -> bool:
    """Whether no thread of a process runs or reads from a disk, and no process that it started does."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        if any((thread / "stat").read_text().rpartition(")")[2].split()[0] != "S" for thread in threads):
            return False
        children = [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return False  # it ends just now
    return all(is_asleep(child) for child in children)
