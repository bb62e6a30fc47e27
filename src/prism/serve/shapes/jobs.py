"""Jobs in a list, and the page of one job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

JobSource = Literal["observed", "watched", "supervised", "emulation", "simulation", "scenario"]
JobState = Literal["running", "ended", "stopped", "paused", "gone", "unknown"]
Health = Literal["ok", "degraded", "hung", "failed", "done", "waiting", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DegreeRow:
    """One degree of a layout; `value` null where it is not known."""

    name: str
    value: int | None
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job in a table: one look at it. Null is unknown, never none."""

    key: str
    id: str
    place: str
    source: JobSource
    health: Health
    health_text: str
    state: JobState  # as the records show it; "gone" where a watch does not see it any more
    stale: bool  # its source should still be written to, but has not been for long
    num_ranks: int | None
    num_hosts: int | None
    hosts: tuple[str, ...]
    layout: str
    degrees: tuple[DegreeRow, ...]
    num_steps: int | None
    step_s: float | None  # the median
    trend_s: tuple[float, ...]  # the last steps
    num_findings: int
    lost_gpu_seconds: float
    has_timeline: bool
    updated_ns: str  # when its file was written
    looked_until_ns: str  # the last moment that the look covers
    num_looks: int = 1  # at this job, this one and earlier ones
    run_key: str = ""  # the supervised run on the same hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow:
    """A finding in a table; times count from the origin of its job."""

    job_key: str
    job: str
    place: str
    kind: str
    culprit_type: str
    culprit: str
    origin_ns: str
    from_ns: int
    to_ns: int
    lost_gpu_seconds: float
    score: float
    evidence: str
    status: Literal["open", "resolved"] = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsDocument:
    """Jobs, each by its newest look: those observed, watched or supervised first, then predictions."""

    jobs: tuple[JobRow, ...]
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingsDocument:
    """Open findings of the newest looks, costliest first."""

    findings: tuple[FindingRow, ...]
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One step; times count from the job's origin."""

    index: int
    from_ns: int
    to_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedFinding:
    """A finding and the ranks it is about."""

    finding: FindingRow
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group: its kind and its members as ranks."""

    kind: str
    ranks: tuple[int, ...]
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """A rank of the job, where it sits and which stage it is."""

    rank: int
    endpoint: str
    host: str
    stage: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRow:
    """A prediction that can be laid over the job; `suggested` if it is certainly of the same job."""

    key: str
    title: str
    kind: str
    aligned: Literal["clock", "step"]
    suggested: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LookRow:
    """One look at a job, among others."""

    key: str
    place: str
    source: str
    looked_until_ns: str
    step_s: float | None
    num_findings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDocument:
    """Everything on the page but the timeline."""

    job: JobRow
    origin_ns: str
    steps: tuple[StepRow, ...]
    steps_known: bool  # false if the source lists none, such as a watch, which keeps only the median
    latest_key: str  # of the newest look at the same job; this one's own where it is the newest
    looks: tuple[LookRow, ...]  # all looks at the same job, newest first
    findings: tuple[MarkedFinding, ...]
    groups: tuple[GroupRow, ...]
    groups_left_out: int
    ranks: tuple[RankRow, ...]
    expected: tuple[ExpectedRow, ...]
    notes: tuple[str, ...]
    emulation: dict[str, Any]  # what `prism emulate --json` printed, for an emulation
