"""What a run gave: metrics, failures and problems."""

from __future__ import annotations

from dataclasses import dataclass, field

from prism.evaluate.schedule import actions


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a result is missing, other than a part that was given up."""

    checkpoint: str
    dataset: str
    phase: str  # "convert" or "combine"
    text: str
    samples: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.checkpoint}{'/' if self.dataset else ''}{self.dataset}: {self.text}"


@dataclass(slots=True)
class Findings:
    """What the run gave."""

    metrics: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    failures: list[actions.ReportFailure] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    num_trials: int = 0
    usage: dict[str, dict[str, float]] = field(default_factory=dict)  # of endpoints, by checkpoint, in this run
