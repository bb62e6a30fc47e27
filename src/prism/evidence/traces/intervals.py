"""Sets of moments as sorted, disjoint intervals: their union, what they share, and how much of a window they cover."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Intervals:
    """Disjoint intervals in order; intervals that touch are one."""

    start: Times
    end: Times

    @classmethod
    def union(cls, start: Times, end: Times) -> Intervals:
        """The moments that any of these cover."""
        if not len(start):
            return cls(np.empty(0, np.int64), np.empty(0, np.int64))
        order = np.argsort(start, kind="stable")
        start, reach = start[order], np.maximum.accumulate(end[order])
        opens = np.concatenate([[True], start[1:] > reach[:-1]])
        closes = np.concatenate([opens[1:], [True]])
        return cls(start[opens], reach[closes])

    @property
    def total_ns(self) -> int:
        """How long they are together."""
        return int((self.end - self.start).sum())

    def within(self, begin: Times, stop: Times) -> Times:
        """How much of each window they cover."""
        return self._before(stop) - self._before(begin)

    def join(self, other: Intervals) -> Intervals:
        """The moments that either covers."""
        return Intervals.union(np.concatenate([self.start, other.start]), np.concatenate([self.end, other.end]))

    def gaps(self) -> Intervals:
        """The moments between the first and the last that none covers."""
        return Intervals(self.end[:-1], self.start[1:])

    def _before(self, moments: Times) -> Times:
        """How much they cover before each moment."""
        if not len(self.start):
            return np.zeros(len(moments), np.int64)
        covered = np.concatenate([[0], np.cumsum(self.end - self.start)])
        last = np.searchsorted(self.start, moments, side="right") - 1
        inside = np.clip(moments, None, self.end[np.maximum(last, 0)]) - self.start[np.maximum(last, 0)]
        found: Times = np.where(last >= 0, covered[np.maximum(last, 0)] + inside, 0)
        return found
