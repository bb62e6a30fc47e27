"""The cluster now: hosts, switches, links, risks and queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prism.serve.shapes.jobs import FindingRow, JobRow


@dataclass(frozen=True, slots=True, kw_only=True)
class NicRow:
    """A NIC and its load in gigabits a second, the busier direction; null where no load was written."""

    address: str
    rail: int | None
    switch: str | None
    mean_gbps: float | None
    peak_gbps: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """A host, its tenants, and its findings and cordons."""

    host: str
    place: str
    jobs: tuple[str, ...]
    state: Literal["ok", "blamed", "cordoned"]
    why: str
    nics: tuple[NicRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchRow:
    """A switch: its NICs, its load and its tenants."""

    switch: str
    place: str
    num_nics: int
    jobs: tuple[str, ...]
    mean_gbps: float | None
    peak_gbps: float | None
    blamed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRow:
    """A link between a NIC and its switch; `series_gbps` is its load over the time that was seen."""

    address: str
    host: str
    switch: str
    place: str
    jobs: tuple[str, ...]
    mean_gbps: float
    peak_gbps: float
    series_gbps: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRow:
    """Something that several tenants use."""

    type: Literal["link", "switch"]
    id: str
    place: str
    jobs: tuple[str, ...]
    peak_gbps: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCounts:
    """The numbers above the tables, each counted from the rows of its table before any are left out."""

    jobs: int
    ranks: int  # of jobs whose ranks are known
    hosts: int
    open_findings: int
    lost_gpu_seconds: float
    suspects: int  # hosts that a finding blames or that a supervisor has cordoned
    cordoned: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDocument:
    """Everything on the page, of the newest look at every job."""

    counts: ClusterCounts
    jobs: tuple[JobRow, ...]
    jobs_left_out: int
    predictions: tuple[JobRow, ...]
    earlier: tuple[JobRow, ...]  # looks that newer ones have replaced
    earlier_left_out: int
    findings: tuple[FindingRow, ...]
    resolved: tuple[FindingRow, ...]
    hosts: tuple[HostRow, ...]
    switches: tuple[SwitchRow, ...]
    hot_links: tuple[LinkRow, ...]
    shared: tuple[SharedRow, ...]
    links_known: bool  # whether the load and the tenants of links were written at all
    switches_known: bool  # whether a topology names switches
    top_gbps: float | None  # the highest load of a NIC, for the scale of colours
    hosts_left_out: int
    notes: tuple[str, ...]  # what the newest diagnoses could not determine
