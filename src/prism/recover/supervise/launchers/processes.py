"""Processes of an attempt, found by the mark in their environment, whatever session or parent they have."""

from __future__ import annotations

from dataclasses import dataclass

from prism.recover.supervise.launchers.node import end_marked, find_marked, read_stat

__all__ = ["ProcessId", "end_marked", "find_marked", "read_stat"]


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
