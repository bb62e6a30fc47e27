"""Decides which members train in each generation. No store, no processes, no clocks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from prism.recover.checkpoint.inplace.board import Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterConfig:
    """How many members train, and how often training may be restarted."""

    num_ranks: int
    max_restarts: int = 100
    max_same_failures: int = 3  # the same error on the same rank is a bug of the program


class Roster:
    """The members and their ranks."""

    def __init__(self, config: RosterConfig) -> None:
        self.config = config
        self.number = 0
        self.reason = ""
        self.outcome: int | None = None  # the exit code, once it is over
        self._alive: list[str] = []
        self._members: tuple[str, ...] = ()
        self._finished: set[str] = set()
        self.broken = ""  # why the present generation cannot continue
        self.explained = True  # False: a rank blames a peer, and no peer is known to be gone
        self._failures: Counter[str] = Counter()

    def join(self, name: str) -> None:
        """A member has started and waits."""
        self._alive.append(name)

    def die(self, name: str) -> None:
        """A member's process is gone."""
        if name in self._alive:
            self._alive.remove(name)
        if name in self._members and name not in self._finished:
            self.broken, self.explained = f"rank {self._members.index(name)} was lost", True

    def fail(self, name: str, generation: int, why: str, *, own: bool) -> None:
        """A member's training ended, with an error of its own or because a peer is gone; its process lives."""
        if generation != self.number or name not in self._members:
            return
        if not self.broken or own:
            self.broken, self.explained = f"rank {self._members.index(name)} failed ({why})", own
        if not own:
            return
        self._failures[f"{self._members.index(name)}: {why}"] += 1
        if max(self._failures.values()) >= self.config.max_same_failures:
            self.outcome, self.reason = 1, f"the same failure {self.config.max_same_failures} times: {self.broken}"

    def finish(self, name: str) -> None:
        """A member has trained to the end."""
        self._finished.add(name)
        if set(self._members) <= self._finished:
            self.outcome, self.reason = 0, f"finished in generation {self.number}"

    def next_generation(self) -> Generation | None:
        """The next generation, if one is due and enough members have started."""
        if self.outcome is not None or (self.number and not self.broken):
            return None
        spares = [name for name in self._alive if name not in self._members]
        chosen: list[str] = []
        for rank in range(self.config.num_ranks):
            holder = self._members[rank] if self._members else ""
            if holder not in self._alive:
                if not spares:
                    return None
                holder = spares.pop(0)
            chosen.append(holder)
        if self.number > self.config.max_restarts:
            self.outcome, self.reason = 1, f"{self.config.max_restarts} restarts are used up; {self.broken}"
            return None
        self.number += 1
        self.reason = self.broken or f"{len(chosen)} ranks begin"
        self._members, self.broken, self.explained, self._finished = tuple(chosen), "", True, set()
        return Generation(number=self.number, members=self._members)
