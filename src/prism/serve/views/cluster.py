"""The Cluster page: jobs, hosts and their NICs, switches, hot links, and who shares what."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

import polars as pl

from prism.serve.library import Snapshot
from prism.serve.sources.diagnosed import Diagnosed
from prism.serve.sources.supervised import Supervised
from prism.serve.views.jobs import FindingRow, JobRow, list_findings, list_jobs

_MOST_LINKS = 50
_LOADS = pl.Schema({"address": pl.String(), "mean": pl.Float64(), "peak": pl.Float64(), "series": pl.List(pl.Float64)})
_MOST_HOSTS = 4_096


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
    """A host, who uses it and what is held against it."""

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
class ClusterDocument:
    """Everything on the page."""

    jobs: tuple[JobRow, ...]
    findings: tuple[FindingRow, ...]
    hosts: tuple[HostRow, ...]
    switches: tuple[SwitchRow, ...]
    hot_links: tuple[LinkRow, ...]
    shared: tuple[SharedRow, ...]
    top_gbps: float | None  # the highest load of a NIC, for the scale of colours
    hosts_left_out: int


def describe_cluster(snapshot: Snapshot) -> ClusterDocument:
    """The page's document."""
    findings = list_findings(snapshot)
    cordoned = {
        record.host: "; ".join(record.reasons) or "cordoned"
        for run in snapshot.all_of(Supervised)
        for record in run.host_records
        if record.cordoned
    }
    hosts: list[HostRow] = []
    switches: list[SwitchRow] = []
    links: list[LinkRow] = []
    for source in snapshot.all_of(Diagnosed):
        load = measure_links(source)
        links += list_links(source, load)
        nics = _list_nics(source, load)
        hosts += _list_hosts(source, nics, cordoned)
        switches += _list_switches(source, nics)
    shared = [
        SharedRow(type="link", id=link.address, place=link.place, jobs=link.jobs, peak_gbps=link.peak_gbps)
        for link in links
        if len(link.jobs) > 1
    ] + [
        SharedRow(type="switch", id=row.switch, place=row.place, jobs=row.jobs, peak_gbps=row.peak_gbps)
        for row in switches
        if len(row.jobs) > 1
    ]
    return ClusterDocument(
        jobs=tuple(list_jobs(snapshot)),
        findings=tuple(findings),
        hosts=tuple(hosts[:_MOST_HOSTS]),
        switches=tuple(switches),
        hot_links=tuple(sorted(links, key=lambda link: -link.peak_gbps)[:_MOST_LINKS]),
        shared=tuple(shared),
        top_gbps=max((link.peak_gbps for link in links), default=None),
        hosts_left_out=max(0, len(hosts) - _MOST_HOSTS),
    )


def measure_links(source: Diagnosed) -> pl.DataFrame:
    """Mean, peak and series of each address's load, in gigabits a second of the busier direction."""
    if source.links is None or not len(source.links):
        return pl.DataFrame(schema=_LOADS)
    busier = pl.max_horizontal("bytes_out", "bytes_in")
    rate = 8.0 * busier / (pl.col("end_ns") - pl.col("start_ns")).clip(lower_bound=1)
    return (
        source.links.sort("address", "start_ns")
        .with_columns(rate.alias("gbps"))
        .group_by("address", maintain_order=True)
        .agg(pl.col("gbps").mean().alias("mean"), pl.col("gbps").max().alias("peak"), pl.col("gbps").alias("series"))
    )


def list_links(source: Diagnosed, load: pl.DataFrame) -> list[LinkRow]:
    """The links with their tenants, as far as their load was written."""
    if source.links is None:
        return []
    about = source.links.group_by("address").agg(
        pl.col("host").first(), pl.col("switch").first(), pl.col("jobs").explode(empty_as_null=False).unique().sort()
    )
    return [
        LinkRow(
            address=row["address"],
            host=row["host"] or "",
            switch=row["switch"] or "",
            place=source.place,
            jobs=tuple(job for job in row["jobs"] if job is not None),
            mean_gbps=row["mean"],
            peak_gbps=row["peak"],
            series_gbps=tuple(round(value, 3) for value in row["series"]),
        )
        for row in load.join(about, on="address").sort("address").iter_rows(named=True)
    ]


def _list_nics(source: Diagnosed, load: pl.DataFrame) -> dict[str, list[NicRow]]:
    """The NICs of each host."""
    if source.topology is None:
        return {host: [] for job in source.jobs for host in job.hosts}
    rated = {address: (mean, peak) for address, mean, peak, _ in load.iter_rows()}
    nics: dict[str, list[NicRow]] = defaultdict(list)
    for address, host, rail, switch in source.topology.select("address", "host", "rail", "switch").iter_rows():
        mean, peak = rated.get(address, (None, None))
        nics[host].append(NicRow(address=address, rail=rail, switch=switch, mean_gbps=mean, peak_gbps=peak))
    return dict(nics)


def _list_hosts(source: Diagnosed, nics: dict[str, list[NicRow]], cordoned: dict[str, str]) -> list[HostRow]:
    tenants = _tenants(source)
    blamed: dict[str, str] = {}
    owner = {nic.address: host for host, found in nics.items() for nic in found}
    for finding in reversed(source.findings):
        text = f"{finding.kind.replace('_', ' ')}: {finding.evidence}"
        if finding.culprit.type in ("host", "endpoint"):
            blamed |= {owner.get(name, name): text for name in finding.culprit.id.split(",")}
    rows = []
    for host in sorted(nics):
        state: Literal["ok", "blamed", "cordoned"] = (
            "cordoned" if host in cordoned else "blamed" if host in blamed else "ok"
        )
        jobs = sorted({job for nic in nics[host] for job in tenants.get(nic.address, ())} | set(tenants.get(host, ())))
        rows.append(
            HostRow(
                host=host,
                place=source.place,
                jobs=tuple(jobs),
                state=state,
                why=cordoned.get(host) or blamed.get(host, ""),
                nics=tuple(nics[host]),
            )
        )
    return rows


def _list_switches(source: Diagnosed, nics: dict[str, list[NicRow]]) -> list[SwitchRow]:
    tenants = _tenants(source)
    blamed = {finding.culprit.id for finding in source.findings if finding.culprit.type == "switch"}
    by_switch: dict[str, list[NicRow]] = defaultdict(list)
    for found in nics.values():
        for nic in found:
            if nic.switch:
                by_switch[nic.switch].append(nic)
    rows = []
    for switch, found in sorted(by_switch.items(), key=lambda item: (len(item[0]), item[0])):
        known = [nic for nic in found if nic.mean_gbps is not None and nic.peak_gbps is not None]
        rows.append(
            SwitchRow(
                switch=switch,
                place=source.place,
                num_nics=len(found),
                jobs=tuple(sorted({job for nic in found for job in tenants.get(nic.address, ())})),
                mean_gbps=sum(nic.mean_gbps or 0.0 for nic in known) if known else None,
                peak_gbps=max((nic.peak_gbps or 0.0 for nic in known), default=None),
                blamed=switch in blamed,
            )
        )
    return rows


def _tenants(source: Diagnosed) -> dict[str, set[str]]:
    """Jobs by address, and by host for those that have no address in a topology."""
    tenants: dict[str, set[str]] = defaultdict(set)
    for job in source.jobs:
        for name in (*job.endpoints, *(job.hosts if source.topology is None else ())):
            tenants[name].add(job.id)
    if source.links is not None:
        for address, jobs in source.links.select("address", "jobs").iter_rows():
            tenants[address].update(job for job in jobs or () if job)
    return tenants
