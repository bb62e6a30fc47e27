"""Outputs that wait for a CPU: the longest score first, on a node that has one free."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from prism.evaluate.schedule.trials import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """A score that runs."""

    node: str
    attempt: int


@dataclass(slots=True, kw_only=True)
class ScoreQueue:
    """Scores that wait and run. A score never causes a new inference."""

    waiting: dict[Part, float] = field(default_factory=dict)  # with the seconds expected
    running: dict[Part, Scoring] = field(default_factory=dict)
    attempts: dict[Part, int] = field(default_factory=dict)
    cpus: dict[str, int] = field(default_factory=dict)  # per node
    busy: dict[str, int] = field(default_factory=dict)
    home: dict[Part, str] = field(default_factory=dict)  # the node that wrote the outputs

    @property
    def expected_s(self) -> float:
        """How long what waits will take."""
        return sum(self.waiting.values()) / max(1, sum(self.cpus.values()))

    def add(self, part: Part, expected_s: float, home: str | None) -> None:
        """Outputs are ready to be scored."""
        self.waiting[part] = expected_s
        if home is not None:
            self.home[part] = home

    def start(self) -> list[tuple[Part, Scoring]]:
        """Scores to begin now."""
        free = sum(self.cpus.values()) - sum(self.busy.values())
        started = []
        for part in heapq.nsmallest(free, self.waiting, key=lambda p: (-self.waiting[p], p)):
            node = self._choose_node(part)
            attempt = self.attempts.get(part, 0) + 1
            self.attempts[part] = attempt
            scoring = Scoring(node=node, attempt=attempt)
            self.running[part] = scoring
            self.busy[node] = self.busy.get(node, 0) + 1
            del self.waiting[part]
            started.append((part, scoring))
        return started

    def end(self, part: Part) -> Scoring | None:
        """A score is over, well or not; None when it was not running."""
        scoring = self.running.pop(part, None)
        if scoring is not None and scoring.node in self.busy:
            self.busy[scoring.node] -= 1
        return scoring

    def lose_node(self, node: str) -> None:
        """Its scores go back to the queue; a lost node is not the metric's fault."""
        self.cpus.pop(node, None)
        self.busy.pop(node, None)
        for part in [part for part, scoring in self.running.items() if scoring.node == node]:
            del self.running[part]
            self.attempts[part] -= 1
            self.waiting[part] = 0.0

    def _choose_node(self, part: Part) -> str:
        """Where the outputs were written, else where most CPUs are free."""
        home = self.home.get(part)
        if home in self.cpus and self.busy.get(home, 0) < self.cpus[home]:
            return home
        return max(self.cpus, key=lambda node: self.cpus[node] - self.busy.get(node, 0))
