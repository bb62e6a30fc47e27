"""Evaluations and their scores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of an evaluation."""

    state: str = "unknown"
    done: int = 0
    running: int = 0
    waiting: int = 0
    failed: int = 0
    gpus_busy: int | None = None
    gpus: int | None = None
    samples: int | None = None  # of all checkpoints and datasets, and how many of them have their score
    scored: int | None = None
    time_left_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRow:
    """An evaluation in a list."""

    key: str
    place: str
    state: str
    done: int
    running: int
    waiting: int
    failed: int
    time_left_s: float | None
    stale: bool  # its files say that it runs, but it has written nothing for long
    updated_ns: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationsDocument:
    """All evaluations, the newest first."""

    evaluations: tuple[EvaluationRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRow:
    """One number of the leaderboard; `change` is against the checkpoint before, of the same dataset and metric.

    `better` is whether the change is for the better; null where nothing says which way is.
    """

    checkpoint: str
    step: int | None
    dataset: str
    metric: str
    value: float | None
    change: float | None
    higher_is_better: bool | None
    better: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseShare:
    """What a phase of trials cost, over all of them."""

    phase: str
    count: int
    total_s: float
    median_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationDocument:
    """One evaluation; its Gantt chart is the timeline of the same key."""

    evaluation: EvaluationRow
    progress: Progress
    makespan_s: float | None
    lower_bound_s: float | None
    scores: tuple[ScoreRow, ...]
    scores_left_out: int
    regressions: tuple[str, ...]
    broken: str  # why its results cannot be read; "" where they can
    phases: tuple[PhaseShare, ...]
    num_workers: int
    origin_ns: str
