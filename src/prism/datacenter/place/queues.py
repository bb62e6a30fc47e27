"""Waiting jobs in order, with direct access to the first of every kind."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from prism.datacenter.place.clusters import Job
from prism.datacenter.place.run_times import Expected

Kind = tuple[int, int, int, str, bool, str]  # priority, GPUs, run time as a power of two, GPU kind, one leaf, owner


@dataclass(slots=True)
class Waiting:
    """A job that waits."""

    job: Job
    number: int
    expected: Expected
    since_s: float
    site: str  # whose queue it is in
    order: tuple[int, float, int]  # a smaller one is first
    started: bool = False


class Queue:
    """Jobs of one kind keep their order, so only the first of each kind must be examined."""

    __slots__ = ("_kinds", "_order")

    def __init__(self) -> None:
        self._kinds: dict[Kind, deque[Waiting]] = {}
        self._order: list[tuple[tuple[int, float, int], Kind]] = []

    def push(self, waiting: Waiting, kind: Kind) -> None:
        """Put a job at the end of its kind."""
        queue = self._kinds.setdefault(kind, deque())
        queue.append(waiting)
        if len(queue) == 1:
            insort(self._order, (waiting.order, kind))

    def heads(self) -> Iterator[Waiting]:
        """The first waiting job of every kind, in order; jobs that started elsewhere are dropped on the way."""
        place = 0
        while place < len(self._order):
            _, kind = self._order[place]
            queue = self._kinds[kind]
            if not queue[0].started:
                yield queue[0]
                place += 1
                continue
            while queue and queue[0].started:
                queue.popleft()
            del self._order[place]
            if queue:
                insort(self._order, (queue[0].order, kind))
            else:
                del self._kinds[kind]
