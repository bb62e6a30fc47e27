"""What a run gave: metrics, and why others are missing."""

from __future__ import annotations

from dataclasses import dataclass, field

from prism.evaluate.schedule.trials import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a result, or a part of one, is missing."""

    checkpoint: str
    dataset: str  # empty: all datasets
    phase: str  # "convert", "load", "infer", "score" or "combine"
    text: str
    part: Part | None = None
    samples: tuple[int, ...] = ()

    @property
    def place(self) -> str:
        """What is missing, in one word."""
        return str(self.part) if self.part else "/".join(filter(None, (self.checkpoint, self.dataset)))


@dataclass(slots=True)
class Findings:
    """What the run gave."""

    metrics: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    num_trials: int = 0
    usage: dict[str, dict[str, float]] = field(default_factory=dict)  # of endpoints, by checkpoint, in this run

    @property
    def num_lost(self) -> int:
        """Results that will not come, for a checkpoint on a dataset."""
        return len({(p.checkpoint, p.dataset) for p in self.problems if p.dataset} - set(self.metrics))
