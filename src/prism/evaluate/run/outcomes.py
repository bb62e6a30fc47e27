"""What a run gave: metrics, failures and problems."""

from __future__ import annotations

from dataclasses import dataclass, field

from prism.evaluate.schedule import actions


@dataclass(slots=True)
class Findings:
    """What the run gave."""

    metrics: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    failures: list[actions.ReportFailure] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    num_trials: int = 0
