"""What can happen to an evaluation. `now_s` is the run's own clock, which never goes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from prism.evaluate.schedule.trials import Checkpoint, Kept, Node, Part, Worker


class Failure(StrEnum):
    """Why an inference ended without its outputs."""

    MEMORY = "memory"  # retried with half the batch
    DISK = "disk"  # the worker is set aside, the trial goes elsewhere
    LOAD = "load"  # the checkpoint could not be mapped on this worker
    HUNG = "hung"  # it was stopped after its time limit
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that was seen."""

    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Event):
    """Time has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined(Event):
    """A machine is there; its workers follow."""

    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost(Event):
    """A machine is gone with its workers, its shared memory and the scores it worked on."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined(Event):
    """A worker is ready for its first trial; it holds no model."""

    worker: Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost(Event):
    """A worker is gone; what it had not written is inferred again elsewhere."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempted(Event):
    """These workers are stopped, because training wants their GPUs back; parts that they have written stay."""

    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAdded(Event):
    """Training wrote another checkpoint, to be scored on every dataset of the plan, less what is `kept` of it."""

    checkpoint: Checkpoint
    kept: Kept = field(default_factory=Kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLoaded(Event):
    """A node holds a whole, verified checkpoint in shared memory."""

    node: str
    checkpoint: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFailed(Event):
    """A node could not load a checkpoint."""

    node: str
    checkpoint: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartInferred(Event):
    """The outputs of one part of a running trial are on disk."""

    trial: str
    part: Part
    seconds: float  # inference alone
    setup_s: float = 0.0  # before it: the dataset made ready; 0 where the worker had it
    start_s: float = 0.0  # before that: the model onto the device; 0 where the worker had it


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceFinished(Event):
    """Every part of a trial was reported; its worker is free."""

    trial: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceFailed(Event):
    """A trial ended early; the parts it reported before stay."""

    trial: str
    failure: Failure
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreFinished(Event):
    """The scores of one part are on disk."""

    part: Part
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreFailed(Event):
    """The metric failed or hung on kept outputs."""

    part: Part
    text: str
    hung: bool = False
