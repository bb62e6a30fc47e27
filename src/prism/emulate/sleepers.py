"""Find ranks that sleep: they poll for a file or wait for a lock, which is not seen in their calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path


class SleepWatch:
    """Notes since when each rank has slept; a rank that writes, such as a slow download, does not sleep."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[float, int]] = {}  # time, and the bytes written until then

    def look(self, now: float, pids: Mapping[int, int]) -> None:
        """Look at the processes of the ranks that run; call this about once per second."""
        found = {rank: (now, count_written(pid)) for rank, pid in pids.items() if is_asleep(pid)}
        before = self._since
        self._since = {r: before[r] if r in before and before[r][1] == new[1] else new for r, new in found.items()}

    def all_slept(self, now: float, seconds: float, ranks: Iterable[int]) -> bool:
        """Whether each of these ranks was asleep whenever it was looked at, for that long."""
        return all(rank in self._since and now - self._since[rank][0] > seconds for rank in ranks)


def count_written(pid: int) -> int:
    """Bytes that a process has written; 0 if the kernel does not say."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("wchar"))


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
