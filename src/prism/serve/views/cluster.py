"""The Cluster page: jobs, hosts and their NICs, switches, hot links, and who shares what."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import polars as pl

from prism.serve.shapes.cluster import ClusterCounts, ClusterDocument, HostRow, LinkRow, NicRow, SharedRow, SwitchRow
from prism.serve.shapes.jobs import FindingRow
from prism.serve.snapshot import Snapshot
from prism.serve.sources.diagnosed import Diagnosed
from prism.serve.sources.supervised import Supervised
from prism.serve.views.looks import Now, find_now

_MOST_LINKS = 50
_LOADS = pl.Schema({"address": pl.String(), "mean": pl.Float64(), "peak": pl.Float64(), "series": pl.List(pl.Float64)})
_MOST_HOSTS = 4_096
_MOST_JOBS = 2_000
_MOST_EARLIER = 200


def describe_cluster(snapshot: Snapshot) -> ClusterDocument:
    """The page's document."""
    now = find_now(snapshot)
    switches: list[SwitchRow] = []
    links: list[LinkRow] = []
    seen: list[HostRow] = []
    for source in now.diagnoses:
        load = measure_links(source)
        links += list_links(source, load)
        nics = _list_nics(source, load)
        seen += _list_hosts(source, nics)
        switches += _list_switches(source, nics)
    hosts = _judge_hosts(snapshot, now, _newest_hosts(seen))
    switches, links = _newest_switches(switches), _newest_links(links)
    suspects = [row for row in hosts if row.state != "ok"]
    earlier = sorted(now.earlier, key=lambda row: -int(row.looked_until_ns))
    return ClusterDocument(
        counts=ClusterCounts(
            jobs=len(now.jobs),
            ranks=sum(job.num_ranks or 0 for job in now.jobs),
            hosts=len(hosts),
            open_findings=len(now.findings),
            lost_gpu_seconds=sum(row.lost_gpu_seconds for row in now.findings),
            suspects=len(suspects),
            cordoned=sum(row.state == "cordoned" for row in hosts),
        ),
        jobs=now.jobs[:_MOST_JOBS],
        jobs_left_out=max(0, len(now.jobs) - _MOST_JOBS),
        predictions=now.predictions[:_MOST_JOBS],
        earlier=tuple(earlier[:_MOST_EARLIER]),
        earlier_left_out=max(0, len(earlier) - _MOST_EARLIER),
        findings=now.findings,
        resolved=now.resolved,
        # Suspected hosts are always in the list.
        hosts=tuple(sorted([*suspects, *[h for h in hosts if h.state == "ok"]][:_MOST_HOSTS], key=lambda h: h.host)),
        switches=tuple(switches),
        hot_links=tuple(sorted(links, key=lambda link: -link.peak_gbps)[:_MOST_LINKS]),
        shared=tuple(_list_shared(links, switches)),
        links_known=any(source.links is not None for source in now.diagnoses),
        switches_known=bool(switches),
        top_gbps=max((link.peak_gbps for link in links), default=None),
        hosts_left_out=max(0, len(hosts) - _MOST_HOSTS),
        notes=tuple(dict.fromkeys(note for source in now.diagnoses for note in source.notes)),
    )


def _list_shared(links: list[LinkRow], switches: list[SwitchRow]) -> list[SharedRow]:
    """What several tenants use."""
    return [
        SharedRow(type="link", id=link.address, place=link.place, jobs=link.jobs, peak_gbps=link.peak_gbps)
        for link in links
        if len(link.jobs) > 1
    ] + [
        SharedRow(type="switch", id=row.switch, place=row.place, jobs=row.jobs, peak_gbps=row.peak_gbps)
        for row in switches
        if len(row.jobs) > 1
    ]


def _newest_hosts(rows: list[HostRow]) -> list[HostRow]:
    """Each host once, as in the newest diagnosis; the same name with other addresses is another host."""
    kept: dict[str, list[tuple[set[str], HostRow]]] = {}
    for row in rows:
        addresses = {nic.address for nic in row.nics}
        known = kept.setdefault(row.host, [])
        if not any(not addresses or not others or addresses & others for others, _ in known):
            known.append((addresses, row))
    return [row for known in kept.values() for _, row in known]


def _newest_switches(rows: list[SwitchRow]) -> list[SwitchRow]:
    kept: dict[str, SwitchRow] = {}
    for row in rows:
        kept.setdefault(row.switch, row)
    return list(kept.values())


def _newest_links(rows: list[LinkRow]) -> list[LinkRow]:
    kept: dict[str, LinkRow] = {}
    for row in rows:
        kept.setdefault(row.address, row)
    return list(kept.values())


def _judge_hosts(snapshot: Snapshot, now: Now, rows: list[HostRow]) -> list[HostRow]:
    """Hosts with their findings and cordons; hosts that only a finding or a supervisor names are added."""
    owner = {nic.address: row.host for row in rows for nic in row.nics}
    blamed: dict[str, tuple[str, FindingRow]] = {}
    for row in reversed(now.findings):
        if row.culprit_type in ("host", "endpoint"):
            text = f"{row.kind.replace('_', ' ')}: {row.evidence}"
            blamed |= {owner.get(name, name): (text, row) for name in row.culprit.split(",")}
    cordoned = {
        record.host: ("; ".join(record.reasons) or "cordoned", run.place)
        for run in snapshot.all_of(Supervised)
        for record in run.host_records
        if record.cordoned
    }
    known = {row.host for row in rows}
    rows = rows + [
        HostRow(host=name, place=place, jobs=jobs, state="ok", why="", nics=())
        for name, place, jobs in [
            *((name, row.place, (row.job,)) for name, (_, row) in blamed.items() if name not in known),
            *((name, place, ()) for name, (_, place) in cordoned.items() if name not in known | blamed.keys()),
        ]
    ]
    judged = []
    for host in rows:
        if host.host in cordoned:
            judged.append(replace(host, state="cordoned", why=cordoned[host.host][0]))
        elif host.host in blamed:
            judged.append(replace(host, state="blamed", why=blamed[host.host][0]))
        else:
            judged.append(host)
    return judged


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
    """The links with their tenants, if their load was written."""
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


def _list_hosts(source: Diagnosed, nics: dict[str, list[NicRow]]) -> list[HostRow]:
    tenants = _tenants(source)
    rows = []
    for host in sorted(nics):
        jobs = sorted({job for nic in nics[host] for job in tenants.get(nic.address, ())} | set(tenants.get(host, ())))
        rows.append(
            HostRow(host=host, place=source.place, jobs=tuple(jobs), state="ok", why="", nics=tuple(nics[host]))
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
