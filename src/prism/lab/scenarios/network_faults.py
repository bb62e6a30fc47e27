"""Network faults: links and switches that are slow, overloaded or shared."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from prism.errors import BadConfigError
from prism.lab.scenarios.fault import Fault
from prism.lab.scenarios.planted import Blocker, Planted, Reroute, Site, slow_down
from prism.lab.scenarios.timeline import Disturbance, JobPlan
from prism.records.findings import Culprit
from prism.simulate.endpoints import host_name
from prism.simulate.solving.slowdowns import Slowdown


def slow_nic(fault: Fault, site: Site, start: int, end: int) -> Planted:
    """One link between a NIC and its leaf is slow, permanently or intermittently."""
    assert fault.host is not None and fault.nic is not None
    endpoint = fault.host * site.cluster.nics.count + fault.nic
    windows = [(start, end)]
    if fault.kind == "flapping_link":  # down for half of every period
        period = round(fault.period_s * 1e9)
        windows = [(b, min(end, b + period // 2)) for b in range(start, end, period)]
    touched = (pl.col("src") == endpoint) | (pl.col("dst") == endpoint)
    leaf = f"leaf-{site.cluster.leaf_of(fault.host, fault.nic)}"
    address = site.names[endpoint]
    culprit = Culprit(type="link", id=f"{address}>{leaf}")
    accepted = (
        Culprit(type="link", id=f"{leaf}>{address}"),
        Culprit(type="endpoint", id=address),
        Culprit(type="host", id=host_name(fault.host)),
        *_name_twin(site, endpoint),
    )
    slow = {plan.index: _on_groups(plan, touched, windows, fault.speed) for plan in site.plans}
    return slow_down(fault, start, end, "slow_link", culprit, accepted, slow, _slow_hops(site, touched))


def _name_twin(site: Site, endpoint: int) -> tuple[Culprit, ...]:
    """The NIC at the other end, if two NICs only exchange data with each other: flows do not show which one is slow."""
    ends = pl.concat([plan.connections.select("src", "dst") for plan in site.plans])
    peers = set(ends.filter(pl.col("src") == endpoint)["dst"]) | set(ends.filter(pl.col("dst") == endpoint)["src"])
    if len(peers) != 1:
        return ()
    twin = int(peers.pop())
    theirs = set(ends.filter(pl.col("src") == twin)["dst"]) | set(ends.filter(pl.col("dst") == twin)["src"])
    if theirs != {endpoint}:
        return ()
    address, leaf = site.names[twin], f"leaf-{site.cluster.leaf_of(*divmod(twin, site.cluster.nics.count))}"
    link = Culprit(type="link", id=f"{address}>{leaf}")
    return link, Culprit(type="link", id=f"{leaf}>{address}"), Culprit(type="endpoint", id=address)


def slow_switch(fault: Fault, site: Site, start: int, end: int) -> Planted:
    """All transfers through one switch are slow."""
    name = fault.switch or ""
    touched = pl.col("path").str.split(">").list.contains(name)
    slow = {plan.index: _on_groups(plan, touched, [(start, end)], fault.speed) for plan in site.plans}
    return slow_down(
        fault, start, end, "slow_switch", Culprit(type="switch", id=name), (), slow, _slow_hops(site, touched)
    )


def _slow_hops(site: Site, touched: pl.Expr) -> dict[int, tuple[int, ...]]:
    return {p.index: tuple(p.connections.filter(touched)["connection"].to_list()) for p in site.plans}


def _on_groups(
    plan: JobPlan, touched: pl.Expr, windows: Sequence[tuple[int, int]], speed: float
) -> tuple[Slowdown, ...]:
    """A collective is as slow as its slowest hop, so a slow link slows all of its group."""
    groups = plan.connections.filter(touched)["group"].unique().sort().to_list()
    return tuple(Slowdown(target="group", id=g, speed=speed, start_ns=b, end_ns=e) for g in groups for b, e in windows)


def _uphill(plan: JobPlan) -> pl.DataFrame:
    """Connections that pass a spine, with their first leaf and the bytes of a step, the largest first."""
    volume = plan.messages.group_by("connection").agg(pl.col("bytes").sum())
    crossing = plan.connections.filter(pl.col("spine") >= 0).join(volume, on="connection")
    leaf = pl.col("path").str.split(">").list.first().alias("leaf")
    return crossing.with_columns(leaf).sort(["bytes", "connection"], descending=[True, False])


def collide(fault: Fault, site: Site, start: int, end: int) -> Planted:
    """Hashing puts two large connections of one job on the same uplink."""
    plan = site.plan_of(fault.job)
    uphill = _uphill(plan)
    both = uphill.filter(pl.col("src").n_unique().over("leaf") > 1)
    if both.is_empty():
        raise BadConfigError(
            f"an ecmp_collision needs two NICs of job '{plan.job.id}' that leave one leaf by its spines"
        )
    first = both.row(0, named=True)
    others = both.filter((pl.col("leaf") == first["leaf"]) & (pl.col("src") != first["src"]))
    apart = others.filter(pl.col("spine") != first["spine"])  # if there is none, hashing has caused the collision
    second = (apart if apart.height else others).row(0, named=True)
    slow = tuple(
        Slowdown(target="group", id=g, speed=fault.speed, start_ns=start, end_ns=end)
        for g in sorted({first["group"], second["group"]})
    )
    link = f"{first['leaf']}>spine-{first['spine']}"
    return Planted(
        fault=fault,
        start_ns=start,
        end_ns=end,
        finding="slow_link",
        culprit=Culprit(type="link", id=link),
        accepted=tuple(Culprit(type="endpoint", id=site.names[c["src"]]) for c in (first, second)),
        disturbances={plan.index: Disturbance(slowdowns=slow)},
        reroutes=(Reroute(job=plan.index, connection=second["connection"], spine=first["spine"]),),
        slow_hops={plan.index: (first["connection"], second["connection"])},
    )


def contend(fault: Fault, site: Site, start: int, end: int) -> Planted:
    """While the other job sends over a link that both use, this job gets only a part of its bandwidth."""
    victim, other = site.plan_of(fault.job), site.plan_of(fault.other)
    accepted: tuple[Culprit, ...] = ()
    reroutes: tuple[Reroute, ...] = ()
    shared = _shared_nic(victim, other)
    if shared is not None:
        address = site.names[shared]
        host, nic = divmod(shared, site.cluster.nics.count)
        link = f"{address}>leaf-{site.cluster.leaf_of(host, nic)}"
        touched = pl.col("src") == shared
        accepted = (Culprit(type="endpoint", id=address),)
    else:
        mine, theirs = _uphill(victim), _uphill(other)
        common = mine.join(theirs, on="leaf", suffix="_other")
        if common.is_empty():
            raise BadConfigError(
                f"a contention fault: jobs '{victim.job.id}' and '{other.job.id}' share no NIC and no leaf's uplinks; "
                "place them on the same hosts, or behind the same leaf and reaching beyond it"
            )
        best = common.row(0, named=True)
        link = f"{best['leaf']}>spine-{best['spine_other']}"
        touched = pl.col("path").str.starts_with(link + ">")
        reroutes = (Reroute(job=victim.index, connection=best["connection"], spine=best["spine_other"]),)
    hops = victim.connections.filter(touched)["connection"].to_list() + [r.connection for r in reroutes]
    groups = victim.connections["group"].gather(hops).to_list()
    blocking = other.connections.filter(touched)["connection"].to_list()
    blocker = Blocker(
        job=other.index, connections=tuple(blocking), victim=victim.index, groups=tuple(sorted(set(groups)))
    )
    return Planted(
        fault=fault,
        start_ns=start,
        end_ns=end,
        finding="contention",
        culprit=Culprit(type="link", id=link),
        accepted=accepted,
        reroutes=reroutes,
        blocker=blocker,
        slow_hops={victim.index: tuple(hops)},
    )


def _shared_nic(victim: JobPlan, other: JobPlan) -> int | None:
    volume = victim.messages.group_by("src").agg(pl.col("bytes").sum())
    shared = volume.filter(pl.col("src").is_in(other.messages["src"].unique().to_list()))
    return int(shared.sort("bytes", "src", descending=[True, False])["src"][0]) if shared.height else None
