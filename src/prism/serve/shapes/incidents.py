"""What is sick now, one incident whole, and the hours that were bought, used and lost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentRow:
    """An incident in a list. `lost_gpu_s` was counted at `counted_ns`; it goes on by `gpus_lost` while `grows`."""

    id: str
    title: str
    action: str
    kind: str
    severity: str
    owner: str
    state: str  # open, lost, resolved, expired
    why_state: str
    job: str
    job_key: str
    place_type: str
    place: str
    hosts: tuple[str, ...]
    cause: str
    since_ns: str
    until_ns: str
    confidence: float
    gpus_lost: float  # GPU-hours that it takes in an hour
    badness: float  # the same, times how sure it is: what "worst first" means
    lost_gpu_s: float
    counted_ns: str
    grows: bool
    acknowledged_by: str
    acknowledged_ns: str
    told: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessRow:
    """What one source says of it."""

    source: str
    tool: str
    text: str
    confidence: float
    lost_gpu_s: float
    since_ns: str
    until_ns: str
    written_ns: str
    sight: str  # sees, well, lost
    why: str
    link: str  # path and query of the page that shows it


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRow:
    """One line of its history."""

    at_ns: str
    what: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentDocument:
    """Everything on the page of an incident."""

    incident: IncidentRow
    witnesses: tuple[WitnessRow, ...]
    history: tuple[ChangeRow, ...]
    writable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSource:
    """A source that tells of incidents, and when it was last written."""

    path: str
    tool: str
    state: str  # ok, late, damaged, gone, ended
    message: str
    written_ns: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentsDocument:
    """The front page: what is sick now, worst first, and below it what was."""

    now: tuple[IncidentRow, ...]  # open, or lost sight of
    past: tuple[IncidentRow, ...]  # resolved and expired, newest first
    total: int  # of those in the past that were asked for
    sources: tuple[KnownSource, ...]  # who would know
    num_jobs: int
    writable: bool
    trouble: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRow:
    """What hours were lost to."""

    kind: str
    family: str
    num: int
    gpu_hours: float
    since_ns: str
    worst: str  # id of the costliest incident of it
    worst_title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HoursDay:
    """One day: GPU-hours that jobs held, trained, and lost."""

    day: str
    bought: float
    lost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HoursDocument:
    """GPU-hours of a range of time: bought, used, lost, and to what."""

    from_ns: str
    to_ns: str
    bought: float
    used: float
    lost: float
    losses: tuple[LossRow, ...]
    days: tuple[HoursDay, ...]
    num_jobs: int
    price_per_gpu_hour: float | None
    currency: str
    notes: tuple[str, ...]  # what the numbers leave out
