"""Events of clusters and jobs, and the decisions of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from prism.datacenter.place.clusters import Job


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job was submitted."""

    job: Job
    now_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """A job ended."""

    job_id: str
    now_s: float


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; waiting jobs may ask more clusters."""

    now_s: float


@dataclass(frozen=True, slots=True)
class ClusterLost:
    """A cluster no longer answers: nothing is started there, and its users' jobs may run elsewhere."""

    cluster: str
    now_s: float


@dataclass(frozen=True, slots=True)
class ClusterBack:
    """A cluster answers again; jobs that ran there are assumed to be running still."""

    cluster: str
    now_s: float


Event = Submitted | Finished | Tick | ClusterLost | ClusterBack


@dataclass(frozen=True, slots=True)
class Start:
    """Start a job now."""

    job: Job
    cluster: str
    reason: str
    second: str = ""  # the next best cluster with room


@dataclass(frozen=True, slots=True)
class Move:
    """Save a running job, stop it, and start it again elsewhere."""

    job: Job
    source: str
    cluster: str
    reason: str


Decision = Start | Move
