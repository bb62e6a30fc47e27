"""The past: entries by day and host, remarks, alerts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prism.serve.shapes.runs import HostHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRow:
    """Something that was written once, as the index remembers it; null is unknown."""

    ref: str
    kind: str
    cluster: str
    job: str
    key: str
    page: str
    at_ns: str
    until_ns: str
    state: str
    text: str
    step_s: float | None
    num_steps: int | None
    gpus: int | None
    lost_gpu_s: float | None
    restarts: int | None
    goodput: float | None
    num_findings: int | None
    gone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DayRow:
    """One day (UTC); null is unknown."""

    day: str
    num_jobs: int
    num_runs: int
    step_s: float | None  # median over looks and runs
    num_findings: int
    num_verdicts: int
    lost_gpu_s: float
    gpu_s: float | None  # that looks have seen
    restarts: int
    goodput: float | None  # median over runs


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationRow:
    """A remark of a person on a moment."""

    id: str
    at_ns: str
    text: str
    author: str
    job: str
    host: str
    written_ns: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationsDocument:
    """Remarks, newest moment first."""

    annotations: tuple[AnnotationRow, ...]
    writable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryDocument:
    """Rows of the history, newest first, one day at a time, and remarks on them."""

    entries: tuple[EntryRow, ...]
    total: int
    days: tuple[DayRow, ...]
    annotations: tuple[AnnotationRow, ...]
    num_waiting: int  # sources that are not in the index yet


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryJobsDocument:
    """Every job that was ever seen, by its newest look or run."""

    jobs: tuple[EntryRow, ...]
    num_waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceRow:
    """One figure of both sides; `ratio` is the second over the first, null where either is unknown or zero."""

    name: str
    unit: str
    first: float | None
    second: float | None
    ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceDocument:
    """Two runs, looks or days, figure by figure."""

    first: str
    second: str
    rows: tuple[DifferenceRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundHost:
    """A host that the search found."""

    host: str
    num_entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchDocument:
    """What holds every word that was asked for, newest first in each group."""

    text: str
    hosts: tuple[FoundHost, ...]
    jobs: tuple[EntryRow, ...]
    runs: tuple[EntryRow, ...]
    findings: tuple[EntryRow, ...]
    verdicts: tuple[EntryRow, ...]
    reports: tuple[EntryRow, ...]
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDocument:
    """One host."""

    host: str
    state: Literal["ok", "blamed", "cordoned", "unknown"]
    why: str
    jobs: tuple[str, ...]
    addresses: tuple[str, ...]
    switches: tuple[str, ...]
    known: HostHistory | None
    entries: tuple[EntryRow, ...]
    total: int
    annotations: tuple[AnnotationRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRow:
    """A channel; its address is a secret and never part of an answer."""

    name: str
    type: str
    last_ok: bool | None
    last_why: str
    last_ns: str
    num_sent: int
    num_waiting: int
    num_lost: int  # refused for good, or too old


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsDocument:
    """Channels, and what people were told that is not over."""

    channels: tuple[ChannelRow, ...]
    num_firing: int
    trouble: str  # why messages or incidents are kept in memory only
    writable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What was written or ended, by its id."""

    id: str
