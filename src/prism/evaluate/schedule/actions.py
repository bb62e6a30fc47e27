"""What the scheduler may decide. Every action can be done twice without harm, since a crash may come in between."""

from __future__ import annotations

from dataclasses import dataclass

from prism.evaluate.schedule.trials import Part, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCheckpoint(Action):
    """Bring a checkpoint into a node's shared memory, from storage or from a node that holds it."""

    node: str
    checkpoint: str
    source: str | None = None  # a node; None: from storage


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseCheckpoint(Action):
    """Clear a checkpoint from a node's shared memory."""

    node: str
    checkpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartInference(Action):
    """Run a trial on a free worker whose node holds the checkpoint."""

    trial: Trial
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartScore(Action):
    """Score the kept outputs of a part on a node's CPUs."""

    part: Part
    node: str
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CombineScores(Action):
    """Every part of a dataset is scored: make the dataset's metrics of them."""

    checkpoint: str
    dataset: str
    parts: tuple[Part, ...]  # in order, covering every sample once


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFailure(Action):
    """A part is given up; the rest of the run goes on."""

    part: Part
    phase: str  # "load", "infer" or "score"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Action):
    """Nothing is left to do; without watching, the run is over."""
