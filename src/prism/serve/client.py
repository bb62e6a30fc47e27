"""A typed client of the API of `prism serve`. Written by scripts/write_serve_client.py; do not edit.

client = Client("http://127.0.0.1:8042", token="...")
for job in client.jobs().jobs:
    print(job.id, job.health, job.step_s)
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

T = TypeVar("T")


class ServeError(Exception):
    """An answer that is not a success: `code` for programs, the text for people."""

    def __init__(self, code: str, message: str, status: int) -> None:
        super().__init__(message)
        self.code, self.status = code, status


def shape(kind: Any, value: Any) -> Any:
    """A JSON value as a declared type; what a newer service adds is left out, what an older one lacks is None."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        given = value if isinstance(value, dict) else {}
        return cast(Any, kind)(**{f.name: shape(hints[f.name], given.get(f.name)) for f in fields(kind)})
    origin, inner = get_origin(kind), get_args(kind)
    if value is None:
        return None
    if origin in (Union, types.UnionType):
        return shape(next((k for k in inner if k is not type(None)), Any), value)
    if origin is tuple and inner[-1] is Ellipsis:
        return tuple(shape(inner[0], item) for item in value)
    if origin is dict:
        return {name: shape(inner[1], item) for name, item in value.items()}
    return float(value) if kind is float else value


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsDocument:
    """Who is told, what fires, and what is silenced."""

    # Who is told of findings.
    channels: tuple[ChannelRow, ...]
    # Alerts that fire now.
    num_firing: int
    # Silences that hold.
    silences: tuple[SilenceRow, ...]
    # Whether remarks and silences can be written: the service has a --state folder.
    writable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationRow:
    """What somebody remarked on a moment."""

    # Its name or number among its like.
    id: str
    # When it began, nanoseconds since 1970 as text.
    at_ns: str
    # In words.
    text: str
    # Who wrote it, as far as known.
    author: str
    # Name of the job; empty for none.
    job: str
    # Name of the host.
    host: str
    # When it was written, nanoseconds since 1970 as text.
    written_ns: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationsDocument:
    """Remarks, newest moment first."""

    # Remarks of people, newest moment first.
    annotations: tuple[AnnotationRow, ...]
    # Whether remarks and silences can be written: the service has a --state folder.
    writable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakdownDocument:
    """Seconds of each kind in a window, for each rank."""

    # Names of the kinds, in the order in which pixels or columns count them.
    kinds: tuple[str, ...]
    # Ranks, or how many there are.
    ranks: tuple[int, ...]
    # Seconds of each rank in each kind: a row for each rank, a column for each kind.
    seconds: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRow:
    """Somebody who is told; the address is a secret and never here."""

    # Its name.
    name: str
    # Which type it is of.
    type: str
    # Whether the last message was taken; null before the first.
    last_ok: bool | None
    # Why it was not; empty where it was.
    last_why: str
    # When the last message was sent, nanoseconds since 1970 as text; 0 before the first.
    last_ns: str
    # Messages taken since the start of the service.
    num_sent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One decision: what was seen, what was done about it."""

    # Seconds since 1970.
    time_s: float
    # good, info, warning or bad.
    tone: Literal["good", "info", "warning", "bad"]
    # What happened, in a line.
    title: str
    # Further lines.
    details: tuple[str, ...]
    # Its verdict, to ask /api/verdict with; null for none.
    verdict_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCounts:
    """The numbers above the tables, each counted from the rows of its table before any are left out."""

    # Jobs, each once.
    jobs: int
    # Ranks seen.
    ranks: int
    # Hosts known.
    hosts: int
    # Findings of the newest looks that are not over.
    open_findings: int
    # GPU-seconds lost.
    lost_gpu_seconds: float
    # Hosts that a finding blames or a supervisor has cordoned.
    suspects: int
    # Hosts out of use.
    cordoned: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDocument:
    """Everything on the page, of the newest look at every job."""

    # The figures above the tables.
    counts: ClusterCounts
    # Jobs, or their names.
    jobs: tuple[JobRow, ...]
    # How many jobs are not in the list.
    jobs_left_out: int
    # Emulations, simulations and scenarios.
    predictions: tuple[JobRow, ...]
    # Looks that a newer one has replaced, and jobs that are gone.
    earlier: tuple[JobRow, ...]
    # How many earlier looks are not in the list.
    earlier_left_out: int
    # Findings, costliest first.
    findings: tuple[FindingRow, ...]
    # Findings that a watch has seen end.
    resolved: tuple[FindingRow, ...]
    # Hosts, by name or with what is known of them.
    hosts: tuple[HostRow, ...]
    # Switches.
    switches: tuple[SwitchRow, ...]
    # The busiest links.
    hot_links: tuple[LinkRow, ...]
    # Links and switches of several tenants.
    shared: tuple[SharedRow, ...]
    # Whether the load of links is known.
    links_known: bool
    # Whether it is known who is on which switch.
    switches_known: bool
    # The highest load of any interface, Gb/s; null is unknown.
    top_gbps: float | None
    # How many hosts are not in the list.
    hosts_left_out: int
    # What the records cannot show, in words.
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Evidence in its place. `file` is "" where the log is not in the folder, so that only cited lines are known."""

    # The log in the folder; null where it is not there.
    file: str
    # Lines of the log.
    lines: tuple[ContextLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLine:
    """A line of a log; `cited` where the verdict rests on it."""

    # Number of the line in its log.
    line: int
    # In words.
    text: str
    # Whether the verdict rests on this line.
    cited: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DatacenterDocument:
    """All reports."""

    # Reports, newest first.
    reports: tuple[ReportRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DayRow:
    """One day (UTC); null is unknown."""

    # The day (UTC), as 2026-01-31.
    day: str
    # Jobs.
    num_jobs: int
    # Supervised runs.
    num_runs: int
    # Median step, seconds; null is unknown.
    step_s: float | None
    # Findings.
    num_findings: int
    # Explained failures.
    num_verdicts: int
    # GPU-seconds lost to findings; null is unknown.
    lost_gpu_s: float
    # GPU-seconds that looks at jobs have seen; null is unknown.
    gpu_s: float | None
    # Attempts after the first; null is unknown.
    restarts: int
    # Share of the time that went into steps which no restart threw away; null is unknown.
    goodput: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DegreeRow:
    """One degree of a layout; `value` null where it is not known."""

    # Its name.
    name: str
    # The figure; null is unknown.
    value: int | None
    # How sure, from 0 to 1.
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceDocument:
    """Two runs, looks or days, figure by figure."""

    # The first side in words.
    first: str
    # The second side in words.
    second: str
    # One row for each figure.
    rows: tuple[DifferenceRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceRow:
    """One figure of both sides; `ratio` is the second over the first, null where either is unknown or zero."""

    # Its name.
    name: str
    # Unit of the figure; empty for a number.
    unit: str
    # The figure of the first side; null is unknown.
    first: float | None
    # The figure of the second side; null is unknown.
    second: float | None
    # The second over the first; null where either is unknown or zero.
    ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRow:
    """Something that was written once, as the index remembers it; null is unknown."""

    # What to ask /api/difference with.
    ref: str
    # Which kind it is of.
    kind: str
    # Name of the cluster.
    cluster: str
    # Name of the job; empty for none.
    job: str
    # What to ask with for the whole document.
    key: str
    # The page that shows it, from the root of the service.
    page: str
    # When it began, nanoseconds since 1970 as text.
    at_ns: str
    # Until when, nanoseconds since 1970 as text.
    until_ns: str
    # What state it is in.
    state: str
    # In words.
    text: str
    # Median step, seconds; null is unknown.
    step_s: float | None
    # Steps; null is unknown.
    num_steps: int | None
    # Number of GPUs; null is unknown.
    gpus: int | None
    # GPU-seconds lost to findings; null is unknown.
    lost_gpu_s: float | None
    # Attempts after the first; null is unknown.
    restarts: int | None
    # Share of the time that went into steps which no restart threw away; null is unknown.
    goodput: float | None
    # Findings.
    num_findings: int | None
    # Whether its file is not in the folder any more.
    gone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBody:
    """The body of every answer that is not a success."""

    # What went wrong.
    error: ErrorDetail


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDetail:
    """What went wrong: a word for programs, a line for people."""

    # A word for programs.
    code: str
    # A line for people.
    message: str
    # The HTTP status, or open and resolved of a finding.
    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationDocument:
    """One evaluation; its Gantt chart is the timeline of the same key."""

    # The evaluation in a line.
    evaluation: EvaluationRow
    # How far it is.
    progress: Progress
    # Seconds that all of it took; null is unknown.
    makespan_s: float | None
    # Seconds below which no schedule can get; null is unknown.
    lower_bound_s: float | None
    # Scores by checkpoint, dataset and metric.
    scores: tuple[ScoreRow, ...]
    # How many scores are not in the list.
    scores_left_out: int
    # Scores that fell for the worse.
    regressions: tuple[str, ...]
    # What could not be read of it; empty where all could.
    broken: str
    # What each phase cost.
    phases: tuple[PhaseShare, ...]
    # Workers that ran trials.
    num_workers: int
    # The moment that times count from, nanoseconds since 1970 as text.
    origin_ns: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRow:
    """An evaluation in a list."""

    # What to ask with for the whole document.
    key: str
    # Folder that it was found in.
    place: str
    # What state it is in.
    state: str
    # Trials that are done.
    done: int
    # Trials under way.
    running: int
    # Trials that wait.
    waiting: int
    # Trials that failed.
    failed: int
    # Seconds left, as expected; null is unknown.
    time_left_s: float | None
    # Whether what should write about it has not for long.
    stale: bool
    # When its files were last written, nanoseconds since 1970 as text.
    updated_ns: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationsDocument:
    """All evaluations, the newest first."""

    # Evaluations, newest first.
    evaluations: tuple[EvaluationRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedPicture:
    """The prediction for the same rows; no pixels where too many steps are in sight to compare."""

    # How it is laid over: by the clock, or step by step.
    aligned: Literal["clock", "step"]
    # Base64 of a byte a pixel, row by row: kind times 16 plus how full, 1 to 15; null where spans are sent.
    pixels: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRow:
    """A prediction that can be laid over the job; `suggested` where it is surely of the same job."""

    # What to ask with for the whole document.
    key: str
    # What happened, in a line.
    title: str
    # Which kind it is of.
    kind: str
    # How it is laid over: by the clock, or step by step.
    aligned: Literal["clock", "step"]
    # Whether it fits this job best.
    suggested: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FailuresDocument:
    """Everything on the page but the details of one verdict or run."""

    # Explained failures.
    verdicts: tuple[VerdictRow, ...]
    # Hosts, by name or with what is known of them.
    hosts: tuple[HostHistory, ...]
    # Supervised runs.
    runs: tuple[RunRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedDocument:
    """The last lines that watches printed, newest first."""

    # Lines of the feed, newest first.
    events: tuple[FeedRow, ...]
    # How many there are in all, also beyond this page.
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRow:
    """A line of the feed: a finding when it was told, updated or resolved."""

    # Its name or number among its like.
    id: str
    # told for the first time, updated, or resolved.
    event: Literal["told", "updated", "resolved"]
    # When it was told, nanoseconds since 1970 as text.
    reported_ns: str
    # Name of the job; empty for none.
    job: str
    # Key of the job, to ask /api/job with.
    job_key: str
    # Which kind it is of.
    kind: str
    # endpoint, host, link, switch, stage, group or job.
    culprit_type: str
    # What is blamed, by its name.
    culprit: str
    # When it began, nanoseconds since 1970 as text.
    start_ns: str
    # When it ended, nanoseconds since 1970 as text.
    end_ns: str
    # GPU-seconds lost.
    lost_gpu_seconds: float
    # How sure, from 0 to 1.
    score: float
    # What was measured, with units, or the lines it rests on.
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow:
    """A finding in a table; times count from the origin of its job."""

    # Key of the job, to ask /api/job with.
    job_key: str
    # Name of the job; empty for none.
    job: str
    # Folder that it was found in.
    place: str
    # Which kind it is of.
    kind: str
    # endpoint, host, link, switch, stage, group or job.
    culprit_type: str
    # What is blamed, by its name.
    culprit: str
    # The moment that times count from, nanoseconds since 1970 as text.
    origin_ns: str
    # Begin, nanoseconds since `origin_ns`.
    from_ns: int
    # End, nanoseconds since `origin_ns`.
    to_ns: int
    # GPU-seconds lost.
    lost_gpu_seconds: float
    # How sure, from 0 to 1.
    score: float
    # What was measured, with units, or the lines it rests on.
    evidence: str
    # The HTTP status, or open and resolved of a finding.
    status: Literal["open", "resolved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingsDocument:
    """Open findings of the newest looks, costliest first."""

    # Findings, costliest first.
    findings: tuple[FindingRow, ...]
    # How many there are in all, also beyond this page.
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundHost:
    """A host that the search found."""

    # Name of the host.
    host: str
    # How many rows of the history name it.
    num_entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group: its kind and its members as ranks."""

    # Which kind it is of.
    kind: str
    # Ranks, or how many there are.
    ranks: tuple[int, ...]
    # How sure, from 0 to 1.
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryDocument:
    """Rows of the history, newest first, one day at a time, and remarks on them."""

    # Rows of the history, newest first.
    entries: tuple[EntryRow, ...]
    # How many there are in all, also beyond this page.
    total: int
    # A row for each day on which something ended, oldest first.
    days: tuple[DayRow, ...]
    # Remarks of people, newest moment first.
    annotations: tuple[AnnotationRow, ...]
    # Sources that are not in the index yet.
    num_waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryJobsDocument:
    """Every job that was ever seen, by its newest look or run."""

    # Jobs, or their names.
    jobs: tuple[EntryRow, ...]
    # Sources that are not in the index yet.
    num_waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDocument:
    """One host."""

    # Name of the host.
    host: str
    # What state it is in.
    state: Literal["ok", "blamed", "cordoned", "unknown"]
    # Why it is in that state; empty for nothing.
    why: str
    # Jobs, or their names.
    jobs: tuple[str, ...]
    # Addresses of its network interfaces.
    addresses: tuple[str, ...]
    # Switches.
    switches: tuple[str, ...]
    # What supervisors hold against it; null for nothing.
    known: HostHistory | None
    # Rows of the history, newest first.
    entries: tuple[EntryRow, ...]
    # How many there are in all, also beyond this page.
    total: int
    # Remarks of people, newest moment first.
    annotations: tuple[AnnotationRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostHistory:
    """What is known against a host."""

    # Name of the host.
    host: str
    # Whether it is out of use.
    cordoned: bool
    # Failures met.
    num_failures: int
    # Strikes that count against it now.
    num_strikes: int
    # How often it was taken out of use.
    num_cordons: int
    # Findings.
    num_findings: int
    # Why, one by one.
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """A host, who uses it and what is held against it."""

    # Name of the host.
    host: str
    # Folder that it was found in.
    place: str
    # Jobs, or their names.
    jobs: tuple[str, ...]
    # What state it is in.
    state: Literal["ok", "blamed", "cordoned"]
    # Why it is in that state; empty for nothing.
    why: str
    # Its network interfaces.
    nics: tuple[NicRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InvestigationRow:
    """The verdict that `prism investigate` left in an attempt's folder."""

    # Number of the attempt, from 1.
    attempt: int
    # Path below the served folder.
    path: str
    # What it says in a line.
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDocument:
    """Everything on the page but the timeline."""

    # Name of the job; empty for none.
    job: JobRow
    # The moment that times count from, nanoseconds since 1970 as text.
    origin_ns: str
    # Training steps.
    steps: tuple[StepRow, ...]
    # Whether steps can be told from the records.
    steps_known: bool
    # Key of the newest look at the same job.
    latest_key: str
    # All looks at this job, newest first.
    looks: tuple[LookRow, ...]
    # Findings, costliest first.
    findings: tuple[MarkedFinding, ...]
    # Groups of ranks that communicate with each other.
    groups: tuple[GroupRow, ...]
    # How many groups are not in the list.
    groups_left_out: int
    # Ranks, or how many there are.
    ranks: tuple[RankRow, ...]
    # Predictions that can be laid over the timeline, or the one that was.
    expected: tuple[ExpectedRow, ...]
    # What the records cannot show, in words.
    notes: tuple[str, ...]
    # The document of `prism emulate`, for an emulation.
    emulation: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job in a table: one look at it. Null is unknown, never none."""

    # What to ask with for the whole document.
    key: str
    # Its name or number among its like.
    id: str
    # Folder that it was found in.
    place: str
    # Which command it comes from.
    source: Literal["observed", "watched", "supervised", "emulation", "simulation", "scenario"]
    # How well it is: ok, degraded, hung, failed, done, waiting or unknown.
    health: Literal["ok", "degraded", "hung", "failed", "done", "waiting", "unknown"]
    # Why, in words.
    health_text: str
    # What state it is in.
    state: Literal["running", "ended", "stopped", "paused", "gone", "unknown"]
    # Whether what should write about it has not for long.
    stale: bool
    # Ranks; null is unknown.
    num_ranks: int | None
    # Hosts; null is unknown.
    num_hosts: int | None
    # Hosts, by name or with what is known of them.
    hosts: tuple[str, ...]
    # The layout in short, as dp4 pp2 tp8; empty where unknown.
    layout: str
    # The layout, degree by degree.
    degrees: tuple[DegreeRow, ...]
    # Steps; null is unknown.
    num_steps: int | None
    # Median step, seconds; null is unknown.
    step_s: float | None
    # The last steps, seconds.
    trend_s: tuple[float, ...]
    # Findings.
    num_findings: int
    # GPU-seconds lost.
    lost_gpu_seconds: float
    # Whether /api/timeline has a picture of it.
    has_timeline: bool
    # When its files were last written, nanoseconds since 1970 as text.
    updated_ns: str
    # Until when the records go that this rests on, nanoseconds since 1970 as text.
    looked_until_ns: str
    # How many looks at this job there are.
    num_looks: int
    # Key of the supervised run on the same hosts; null for none.
    run_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsDocument:
    """Jobs, each by its newest look: those observed, watched or supervised first, then predictions."""

    # Jobs, or their names.
    jobs: tuple[JobRow, ...]
    # How many there are in all, also beyond this page.
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRow:
    """A link between a NIC and its switch; `series_gbps` is its load over the time that was seen."""

    # Address of the network interface.
    address: str
    # Name of the host.
    host: str
    # Name of the switch; empty where unknown.
    switch: str
    # Folder that it was found in.
    place: str
    # Jobs, or their names.
    jobs: tuple[str, ...]
    # Mean load, Gb/s; null is unknown.
    mean_gbps: float
    # Highest load, Gb/s; null is unknown.
    peak_gbps: float
    # Load over time, Gb/s.
    series_gbps: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveDocument:
    """What happens now; the counts are those of the Cluster page."""

    # The figures above the tables.
    counts: ClusterCounts
    # Jobs, or their names.
    jobs: tuple[JobRow, ...]
    # How many jobs are not in the list.
    jobs_left_out: int
    # Lines of the feed, newest first.
    events: tuple[FeedRow, ...]
    # Lines of the feed in all.
    num_events: int
    # Parts at risk, by the newest prediction, riskiest first.
    risks: tuple[RiskRow, ...]
    # Waits by policy, by the newest placement.
    queues: tuple[QueueRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookRow:
    """One look at a job, among others."""

    # What to ask with for the whole document.
    key: str
    # Folder that it was found in.
    place: str
    # Which command it comes from.
    source: str
    # Until when the records go that this rests on, nanoseconds since 1970 as text.
    looked_until_ns: str
    # Median step, seconds; null is unknown.
    step_s: float | None
    # Findings.
    num_findings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPoint:
    """A reported loss; null where it was not finite."""

    # Number of the attempt, from 1.
    attempt: int
    # Number of the step; null where unknown.
    step: int
    # Seconds since 1970.
    time_s: float
    # The loss; null where it was not a number.
    loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something on the loss curve."""

    # Which kind it is of.
    kind: Literal["saved", "save_failed", "restored", "broken", "failure", "rollback"]
    # Number of the attempt, from 1.
    attempt: int
    # Number of the step; null where unknown.
    step: int
    # Seconds since 1970.
    time_s: float
    # In words.
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedFinding:
    """A finding and the ranks it is about."""

    # The finding itself.
    finding: FindingRow
    # Ranks, or how many there are.
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NicRow:
    """A NIC and its load in gigabits a second, the busier direction; null where no load was written."""

    # Address of the network interface.
    address: str
    # Rail of the interface; empty where unknown.
    rail: int | None
    # Name of the switch; empty where unknown.
    switch: str | None
    # Mean load, Gb/s; null is unknown.
    mean_gbps: float | None
    # Highest load, Gb/s; null is unknown.
    peak_gbps: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewDocument:
    """What there is to see, in numbers."""

    # Name of the served folder.
    folder: str
    # Grows when a file changes.
    version: int
    # Files that are looked at.
    num_files: int
    # Jobs.
    num_jobs: int
    # Findings.
    num_findings: int
    # Explained failures.
    num_verdicts: int
    # Supervised runs.
    num_runs: int
    # Evaluations in memory.
    num_evaluations: int
    # Characterizations.
    num_reports: int
    # Printed reports.
    num_printed: int
    # Whether the folder holds more files than are looked at.
    files_left_out: bool
    # Sources that are only in the history, because many newer ones are there.
    num_archived: int
    # Price of a GPU-hour; null where none was given.
    price_per_gpu_hour: float | None
    # How money is written.
    currency: str
    # When the folder was last looked at, nanoseconds since 1970 as text.
    looked_ns: str
    # What was found, file by file.
    sources: tuple[SourceRow, ...]
    # Files that are gone, broken or stale.
    problems: tuple[ProblemRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseShare:
    """What a phase of trials cost, over all of them."""

    # load, infer, score or other.
    phase: str
    # How many there were.
    count: int
    # Seconds in all.
    total_s: float
    # Median, seconds.
    median_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Rows and what fills them. `pixels` is base64 of rows x width bytes, each kind * 16 + level (1 to 15)."""

    # Names of the rows.
    labels: tuple[str, ...]
    # Ranks, or how many there are.
    ranks: tuple[int, ...]
    # Rows that the timeline has in all.
    num_rows: int
    # Spans in sight.
    num_spans: int
    # Pixels in a row.
    width: int
    # Base64 of a byte a pixel, row by row: kind times 16 plus how full, 1 to 15; null where spans are sent.
    pixels: str
    # The spans in sight, by column; null where pixels are sent.
    spans: SpanColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedDocument:
    """One of them; `document` as the command printed it, but for risks that are left out."""

    # The report in a line.
    report: PrintedRow
    # The document as the command printed it.
    document: dict[str, Any]
    # How many lesser risks are not in the document.
    risks_left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedRow:
    """A printed document in a list; `line` is what it says in a line."""

    # Path below the served folder.
    path: str
    # Which kind it is of.
    kind: str
    # What it says in a line.
    line: str
    # When its files were last written, nanoseconds since 1970 as text.
    updated_ns: str
    # Whether a page of its own lies beside it, at /api/report.
    has_page: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemRow:
    """A file that is gone, broken, or has not been written to for long although something should."""

    # Path below the served folder.
    path: str
    # What state it is in.
    state: str
    # A line for people.
    message: str
    # Since when, nanoseconds since 1970 as text.
    since_ns: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an evaluation is."""

    # What state it is in.
    state: str
    # Trials that are done.
    done: int
    # Trials under way.
    running: int
    # Trials that wait.
    waiting: int
    # Trials that failed.
    failed: int
    # GPUs at work; null is unknown.
    gpus_busy: int | None
    # Number of GPUs; null is unknown.
    gpus: int | None
    # Samples scored so far, and of how many; null is unknown.
    samples: int | None
    # Samples scored so far; null is unknown.
    scored: int | None
    # Seconds left, as expected; null is unknown.
    time_left_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """How long jobs wait under one policy, by the newest placement."""

    # Name of the policy.
    policy: str
    # Seconds that a job waits on average; null is unknown.
    mean_queue_s: float | None
    # Seconds that one job of a hundred waits or more; null is unknown.
    p99_queue_s: float | None
    # Path below the served folder.
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """A rank of the job, where it sits and which stage it is."""

    # Global rank.
    rank: int
    # Address of the rank.
    endpoint: str
    # Name of the host.
    host: str
    # Pipeline stage, from 0; null is unknown.
    stage: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow:
    """A report of one or more clusters; `page` where the stand-alone page is there too."""

    # What to ask with for the whole document.
    key: str
    # Folder that it was found in.
    place: str
    # Figures of each cluster, as `prism characterize` wrote them.
    clusters: tuple[dict[str, Any], ...]
    # The same figures of published datacenters.
    comparison: dict[str, Any]
    # The page that shows it, from the root of the service.
    page: bool
    # When its files were last written, nanoseconds since 1970 as text.
    updated_ns: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportsDocument:
    """All of them, the newest first."""

    # Reports, newest first.
    reports: tuple[PrintedRow, ...]
    # How many are not in the list.
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskRow:
    """A part that the newest prediction holds to be at risk."""

    # Its name or number among its like.
    id: str
    # Chance of an event within the horizon, from 0 to 1; null is unknown.
    risk: float | None
    # Why, one by one.
    reasons: tuple[str, ...]
    # Path below the served folder.
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDocument:
    """One run: its story and its loss curve with marks."""

    # The run in a line.
    run: RunRow
    # The supervisor's decisions, chapter by chapter.
    story: tuple[Chapter, ...]
    # Loss by step, thinned out where there are many.
    losses: tuple[LossPoint, ...]
    # How many points were thinned out.
    losses_left_out: int
    # Checkpoints, failures and rollbacks.
    marks: tuple[Mark, ...]
    # What `prism investigate` said of its attempts that failed or hung.
    investigations: tuple[InvestigationRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A supervised run in a table."""

    # What to ask with for the whole document.
    key: str
    # Folder that it was found in.
    place: str
    # How well it is: ok, degraded, hung, failed, done, waiting or unknown.
    health: Literal["ok", "degraded", "hung", "failed", "done", "waiting", "unknown"]
    # What state it is in.
    state: str
    # Number of the attempt, from 1.
    attempt: int
    # Number of the step; null where unknown.
    step: int
    # Newest step with a good checkpoint; null for none.
    last_good_step: int | None
    # Failures met.
    num_failures: int
    # Rollbacks for a bad loss.
    num_rollbacks: int
    # Batches that are left out, as first-last.
    skipped: tuple[str, ...]
    # Whether its supervisor is alive.
    supervised: bool
    # When its files were last written, nanoseconds since 1970 as text.
    updated_ns: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRow:
    """One number of the leaderboard; `change` is against the checkpoint before, of the same dataset and metric."""

    # Name of the checkpoint.
    checkpoint: str
    # Number of the step; null where unknown.
    step: int | None
    # Name of the dataset.
    dataset: str
    # Name of the metric.
    metric: str
    # The figure; null is unknown.
    value: float | None
    # Difference from the checkpoint before; null for the first.
    change: float | None
    # As the evaluation says; null where it does not.
    higher_is_better: bool | None
    # Whether the change is for the better; null where the evaluation does not say.
    better: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchDocument:
    """What holds every word that was asked for, newest first in each group."""

    # In words.
    text: str
    # Hosts, by name or with what is known of them.
    hosts: tuple[FoundHost, ...]
    # Jobs, or their names.
    jobs: tuple[EntryRow, ...]
    # Supervised runs.
    runs: tuple[EntryRow, ...]
    # Findings, costliest first.
    findings: tuple[EntryRow, ...]
    # Explained failures.
    verdicts: tuple[EntryRow, ...]
    # Reports, newest first.
    reports: tuple[EntryRow, ...]
    # How many there are in all, also beyond this page.
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRow:
    """Something that several tenants use."""

    # Which type it is of.
    type: Literal["link", "switch"]
    # Its name or number among its like.
    id: str
    # Folder that it was found in.
    place: str
    # Jobs, or their names.
    jobs: tuple[str, ...]
    # Highest load, Gb/s; null is unknown.
    peak_gbps: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceRow:
    """A silence that holds."""

    # Its name or number among its like.
    id: str
    # Until when, nanoseconds since 1970 as text.
    until_ns: str
    # Name of the job; empty for none.
    job: str
    # Which kind it is of.
    kind: str
    # What is blamed, by its name.
    culprit: str
    # Why, in a word or a line.
    reason: str
    # Who wrote it, as far as known.
    author: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """Something that was found in the folder."""

    # Which kind it is of.
    kind: str
    # Folder that it was found in.
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanColumns:
    """Spans by column: shown row, kind and name as places in their lists, and times from the origin of the request."""

    # Names that `name` counts in.
    names: tuple[str, ...]
    # Row of each span, from the first row sent.
    row: tuple[int, ...]
    # Kind of each span, counted in `kinds`.
    kind: tuple[int, ...]
    # Name of each span, counted in `names`.
    name: tuple[int, ...]
    # Begin of each span, nanoseconds since `origin_ns`.
    from_ns: tuple[int, ...]
    # End of each span, nanoseconds since `origin_ns`.
    to_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRow:
    """One span; times count from the origin of the request."""

    # Which kind it is of.
    kind: str
    # Its name.
    name: str
    # Lane of the rank, such as a stream.
    lane: str
    # Begin, nanoseconds since `origin_ns`.
    from_ns: int
    # End, nanoseconds since `origin_ns`.
    to_ns: int
    # Number of the step; null where unknown.
    step: int | None
    # Bytes moved; null where unknown.
    bytes: int | None
    # The group it belongs to; null for none.
    group: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpansDocument:
    """Spans of one rank in a short window, longest first."""

    # Spans of the job itself.
    observed: tuple[SpanRow, ...]
    # Spans under the pointer in all.
    num_observed: int
    # Predictions that can be laid over the timeline, or the one that was.
    expected: tuple[SpanRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One step; times count from the job's origin."""

    # Number of the step, as its source counts; null is unknown.
    index: int
    # Begin, nanoseconds since `origin_ns`.
    from_ns: int
    # End, nanoseconds since `origin_ns`.
    to_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchRow:
    """A switch: its NICs, its load and its tenants."""

    # Name of the switch; empty where unknown.
    switch: str
    # Folder that it was found in.
    place: str
    # Network interfaces on it.
    num_nics: int
    # Jobs, or their names.
    jobs: tuple[str, ...]
    # Mean load, Gb/s; null is unknown.
    mean_gbps: float | None
    # Highest load, Gb/s; null is unknown.
    peak_gbps: float | None
    # Whether a finding blames it.
    blamed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineDocument:
    """A window of a timeline; times count from the origin, which is text because it does not fit a double."""

    # What to ask with for the whole document.
    key: str
    # The moment that times count from, nanoseconds since 1970 as text.
    origin_ns: str
    # Where the timeline begins, nanoseconds since its origin.
    first_ns: int
    # Where the timeline ends, nanoseconds since its origin.
    last_ns: int
    # Begin, nanoseconds since `origin_ns`.
    from_ns: int
    # End, nanoseconds since `origin_ns`.
    to_ns: int
    # Names of the kinds, in the order in which pixels or columns count them.
    kinds: tuple[str, ...]
    # Kinds that this timeline has.
    kinds_present: tuple[str, ...]
    # Spans of the whole timeline.
    total_spans: int
    # Training steps.
    steps: tuple[StepRow, ...]
    # The pixels or the spans in sight.
    picture: Picture
    # Predictions that can be laid over the timeline, or the one that was.
    expected: ExpectedPicture | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictDocument:
    """A verdict with its evidence in place."""

    # The verdict in a line.
    verdict: VerdictRow
    # Lines of the logs around the evidence.
    context: tuple[Context, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow:
    """A verdict in a table; `id` asks for its context."""

    # Its name or number among its like.
    id: str
    # Who reached the verdict: a supervisor, or a file of `prism explain`.
    origin: str
    # Path of the log, as the verdict names it.
    log: str
    # The cause, one of Prism's list, or Unknown.
    reason: str
    # infrastructure, framework or script.
    category: str
    # What to do about it: restart, isolate_and_restart, rollback, stop or none.
    action: str
    # How sure, from 0 to 1.
    confidence: float
    # Hosts, by name or with what is known of them.
    hosts: tuple[str, ...]
    # The rank that failed first; null where unknown.
    first_rank: int | None
    # What was measured, with units, or the lines it rests on.
    evidence: str
    # What to do about it, in words.
    mitigation: str
    # Lines that were read.
    lines_read: int
    # Lines worth reading.
    lines_kept: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The version of what is served; it grows when a file changes."""

    # Grows when a file changes.
    version: int
    # When the folder was last looked at, nanoseconds since 1970 as text.
    looked_ns: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What was written or ended, by its id."""

    # Its name or number among its like.
    id: str


class Client:
    """The API of one service."""

    def __init__(self, address: str, token: str | None = None, timeout_s: float = 30.0) -> None:
        self.address, self.token, self.timeout_s = address.rstrip("/"), token, timeout_s

    def ask(self, method: str, path: str, query: Mapping[str, Any], body: Mapping[str, Any] | None = None) -> bytes:
        """One request; the body of the answer."""
        given = {name: value for name, value in query.items() if value is not None}
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        if method != "GET":
            headers |= {"X-Prism-Write": "1", "Content-Type": "application/json"}
        url = f"{self.address}{path}{f'?{urlencode(given)}' if given else ''}"
        data = None if body is None else json.dumps(body).encode()
        try:
            with urlopen(Request(url, data, headers, method=method), timeout=self.timeout_s) as answer:
                return cast(bytes, answer.read())
        except HTTPError as error:
            said = json.loads(error.read() or b"{}").get("error", {})
            raise ServeError(said.get("code", "error"), said.get("message", str(error)), error.code) from None

    def _get(self, kind: type[T], path: str, /, **query: Any) -> T:
        return cast(T, shape(kind, json.loads(self.ask("GET", path, query))))

    def _write(self, kind: type[T], method: str, path: str, query: Mapping[str, Any], body: Mapping[str, Any]) -> T:
        return cast(T, shape(kind, json.loads(self.ask(method, path, query, body or None))))

    def version(self) -> Versions:
        """The version of the folder: ask again and again, and reload the rest when it grows."""
        return self._get(Versions, "/api/version")

    def overview(self) -> OverviewDocument:
        """What was found in the folder, and what could not be read."""
        return self._get(OverviewDocument, "/api/overview")

    def jobs(self, *, offset: int = 0, limit: int = 1000) -> JobsDocument:
        """Every job that some source knows, by its newest look."""
        return self._get(JobsDocument, "/api/jobs", offset=offset, limit=limit)

    def findings(self, *, offset: int = 0, limit: int = 1000) -> FindingsDocument:
        """Open findings of the newest looks, costliest first."""
        return self._get(FindingsDocument, "/api/findings", offset=offset, limit=limit)

    def cluster(self) -> ClusterDocument:
        """Jobs, hosts, switches, hot links, and who shares them."""
        return self._get(ClusterDocument, "/api/cluster")

    def live(self) -> LiveDocument:
        """What happens now: jobs, the feed of findings, risks and queues."""
        return self._get(LiveDocument, "/api/live")

    def failures(self) -> FailuresDocument:
        """Verdicts, hosts with their history, and supervised runs."""
        return self._get(FailuresDocument, "/api/failures")

    def evaluations(self) -> EvaluationsDocument:
        """All evaluations, the newest first."""
        return self._get(EvaluationsDocument, "/api/evaluations")

    def datacenter(self) -> DatacenterDocument:
        """Reports of `prism characterize`."""
        return self._get(DatacenterDocument, "/api/datacenter")

    def reports(self) -> ReportsDocument:
        """What investigate, compare, predict and goodput printed, newest first."""
        return self._get(ReportsDocument, "/api/reports")

    def job(self, *, key: str) -> JobDocument:
        """Steps, findings, groups and stages of a job, and what can be laid over its timeline."""
        return self._get(JobDocument, "/api/job", key=key)

    def verdict(self, *, id: str) -> VerdictDocument:
        """A verdict with its evidence in context."""
        return self._get(VerdictDocument, "/api/verdict", id=id)

    def run(self, *, key: str) -> RunDocument:
        """A supervised run: its story, its losses, and marks on them."""
        return self._get(RunDocument, "/api/run", key=key)

    def evaluation(self, *, key: str) -> EvaluationDocument:
        """An evaluation: its progress, its leaderboard, what its phases cost."""
        return self._get(EvaluationDocument, "/api/evaluation", key=key)

    def printed(self, *, path: str) -> PrintedDocument:
        """One printed document, by its path in the list."""
        return self._get(PrintedDocument, "/api/printed", path=path)

    def timeline(
        self,
        *,
        key: str,
        from_ns: int | None = None,
        to_ns: int | None = None,
        width: int = 1200,
        first_row: int = 0,
        num_rows: int = 64,
        by: Literal["rank", "lane"] = "rank",
        hide: str = "",
        expected: str = "",
    ) -> TimelineDocument:
        """A window of the timeline of a job, or of the trials of an evaluation, aggregated to the pixels shown."""
        return self._get(
            TimelineDocument,
            "/api/timeline",
            key=key,
            from_ns=from_ns,
            to_ns=to_ns,
            width=width,
            first_row=first_row,
            num_rows=num_rows,
            by=by,
            hide=hide,
            expected=expected,
        )

    def spans(
        self,
        *,
        key: str,
        rank: int,
        lane: str = "",
        from_ns: int | None = None,
        to_ns: int | None = None,
        expected: str = "",
    ) -> SpansDocument:
        """The spans of a rank that a short window touches, longest first: what lies under the pointer."""
        return self._get(
            SpansDocument, "/api/spans", key=key, rank=rank, lane=lane, from_ns=from_ns, to_ns=to_ns, expected=expected
        )

    def breakdown(self, *, key: str, from_ns: int | None = None, to_ns: int | None = None) -> BreakdownDocument:
        """Where the time of each rank went in a window."""
        return self._get(BreakdownDocument, "/api/breakdown", key=key, from_ns=from_ns, to_ns=to_ns)

    def trace(self, *, key: str, from_ns: int | None = None, to_ns: int | None = None) -> bytes:
        """The timeline of a job, or a window of it, as a Perfetto trace."""
        return self.ask("GET", "/api/trace", {"key": key, "from_ns": from_ns, "to_ns": to_ns})

    def report(self, *, key: str) -> bytes:
        """The stand-alone page of a characterization or of a printed report, without scripts."""
        return self.ask("GET", "/api/report", {"key": key})

    def history(
        self,
        *,
        job: str = "",
        host: str = "",
        cluster: str = "",
        kind: str = "",
        q: str = "",
        from_ns: int | None = None,
        to_ns: int | None = None,
        offset: int = 0,
        limit: int = 100,
    ) -> HistoryDocument:
        """Everything that was ever found in the folder, newest first, and day by day."""
        return self._get(
            HistoryDocument,
            "/api/history",
            job=job,
            host=host,
            cluster=cluster,
            kind=kind,
            q=q,
            from_ns=from_ns,
            to_ns=to_ns,
            offset=offset,
            limit=limit,
        )

    def history_jobs(self, *, limit: int = 500) -> HistoryJobsDocument:
        """Every job that was ever seen, by its newest look or run."""
        return self._get(HistoryJobsDocument, "/api/history/jobs", limit=limit)

    def difference(self, *, first: str, second: str) -> DifferenceDocument:
        """Two runs, looks or days side by side."""
        return self._get(DifferenceDocument, "/api/difference", first=first, second=second)

    def search(self, *, q: str) -> SearchDocument:
        """Jobs, hosts, runs, findings, verdicts and reports that hold every word."""
        return self._get(SearchDocument, "/api/search", q=q)

    def host(self, *, name: str, offset: int = 0, limit: int = 200) -> HostDocument:
        """Everything ever said of a host."""
        return self._get(HostDocument, "/api/host", name=name, offset=offset, limit=limit)

    def feed(self, *, offset: int = 0, limit: int = 200) -> FeedDocument:
        """Findings as watches told, updated and resolved them, newest first."""
        return self._get(FeedDocument, "/api/feed", offset=offset, limit=limit)

    def annotations(self, *, job: str = "", host: str = "") -> AnnotationsDocument:
        """Remarks that people wrote."""
        return self._get(AnnotationsDocument, "/api/annotations", job=job, host=host)

    def write_annotations(self, *, text: str, at_ns: int, job: str = "", host: str = "") -> Written:
        """Write a remark down; it survives a rebuild of the index."""
        return self._write(
            Written, "POST", "/api/annotations", {}, {"text": text, "at_ns": at_ns, "job": job, "host": host}
        )

    def delete_annotations(self, *, id: str) -> Written:
        """End a remark or a silence."""
        return self._write(Written, "DELETE", "/api/annotations", {"id": id}, {})

    def alerts(self) -> AlertsDocument:
        """Channels without their addresses, what fires, and silences."""
        return self._get(AlertsDocument, "/api/alerts")

    def write_silences(
        self, *, until_ns: int, job: str = "", kind: str = "", culprit: str = "", reason: str = ""
    ) -> Written:
        """Hold back alerts until a moment."""
        return self._write(
            Written,
            "POST",
            "/api/silences",
            {},
            {"until_ns": until_ns, "job": job, "kind": kind, "culprit": culprit, "reason": reason},
        )

    def delete_silences(self, *, id: str) -> Written:
        """End a remark or a silence."""
        return self._write(Written, "DELETE", "/api/silences", {"id": id}, {})

    def write_alerts_test(self, *, channel: str) -> ChannelRow:
        """Send a test message to a channel and say how it went."""
        return self._write(ChannelRow, "POST", "/api/alerts/test", {}, {"channel": channel})

    def metrics(self) -> bytes:
        """Prometheus metrics of jobs, steps, findings, recoveries and evaluations."""
        return self.ask("GET", "/metrics", {})

    def healthz(self) -> bytes:
        """For probes; needs no token."""
        return self.ask("GET", "/healthz", {})
