"""Processes of an attempt, found by the mark in their environment, whatever session or parent they have."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prism.recover.supervise.launchers.node import end_marked, find_marked, read_processor_ticks, read_stat

__all__ = ["ProcessId", "ProcessorUse", "end_marked", "find_marked", "read_stat"]

_MEASURE_S = 60.0
_IDLE_SHARE = 0.05  # of one core: threads that only poll stay below it, evaluation and data loading far above


class ProcessorUse:
    """Whether processes compute, measured once a minute."""

    def __init__(self) -> None:
        self._since_s = float("-inf")
        self._ticks: dict[int, int] = {}

    def are_used(self, find_pids: Callable[[], Iterable[int]], now_s: float) -> bool:
        """Whether a minute has passed and they have computed in it."""
        if now_s - self._since_s < _MEASURE_S:
            return False
        ticks = {pid: read_processor_ticks(pid) for pid in find_pids()}
        used = sum(count - self._ticks[pid] for pid, count in ticks.items() if pid in self._ticks)
        allowed = _IDLE_SHARE * (now_s - self._since_s) * os.sysconf("SC_CLK_TCK")
        self._ticks, self._since_s = ticks, now_s
        return used > allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process that cannot be mistaken for a later one of the same number."""

    pid: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        found = read_stat(self.pid)
        return found is not None and found[1] == self.start_ticks and found[0] != "Z"
