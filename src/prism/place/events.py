"""What happens to clusters, and what the scheduler decides."""

from __future__ import annotations

from dataclasses import dataclass

from prism.place.clusters import Job


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
    """Time went by; jobs that wait may ask more clusters."""

    now_s: float


@dataclass(frozen=True, slots=True)
class ClusterLost:
    """A cluster no longer answers: nothing is started there, and its users' jobs may go elsewhere."""

    cluster: str
    now_s: float


@dataclass(frozen=True, slots=True)
class ClusterBack:
    """A cluster answers again; what ran there is taken to run still."""

    cluster: str
    now_s: float


Event = Submitted | Finished | Tick | ClusterLost | ClusterBack


@dataclass(frozen=True, slots=True)
class Start:
    """Start a job now."""

    job: Job
    cluster: str
    reason: str
    second: str = ""  # the next best cluster, where another has room


@dataclass(frozen=True, slots=True)
class Move:
    """Save a running job, stop it, and start it again elsewhere."""

    job: Job
    source: str
    cluster: str
    reason: str


Decision = Start | Move
