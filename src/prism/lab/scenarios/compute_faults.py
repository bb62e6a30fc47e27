"""Compute faults: ranks and hosts that are slow, uneven, paused or lost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prism.lab.scenarios.fault import Fault
from prism.lab.scenarios.planted import Planted, Site, slow_down
from prism.lab.scenarios.timeline import Disturbance, JobPlan
from prism.records.findings import Culprit
from prism.simulate.endpoints import host_name
from prism.simulate.solving.slowdowns import Slowdown

_LONG_NS = 10**15  # a hang lasts longer than any scenario
_THERMAL_STAIRS = 16


def slow_rank(fault: Fault, site: Site, start: int, end: int) -> Planted:
    """One GPU computes slowly."""
    plan = site.plan_of(fault.job)
    assert fault.rank is not None
    slow = Slowdown(target="rank", id=fault.rank, speed=fault.speed, start_ns=start, end_ns=end)
    return slow_down(fault, start, end, "slow_compute", *_rank_names(site, plan, fault.rank), {plan.index: (slow,)})


def slow_host(fault: Fault, site: Site, start: int, end: int) -> Planted:
    """All GPUs of a host compute slowly, suddenly or gradually."""
    assert fault.host is not None
    windows = [(start, end, fault.speed)]
    if fault.kind == "thermal":  # gradually slower over the first four fifths, then constant
        edges = np.linspace(start, start + (end - start) * 4 // 5, _THERMAL_STAIRS + 1).astype(np.int64)
        speeds = 1 - (1 - fault.speed) * (np.arange(_THERMAL_STAIRS) + 0.5) / _THERMAL_STAIRS
        windows = [(int(b), int(e), float(s)) for b, e, s in zip(edges, edges[1:], speeds, strict=False)]
        windows.append((int(edges[-1]), end, fault.speed))
    slow = {plan.index: _on_host(plan, fault.host, windows) for plan in site.plans}
    # If a host is a stage, its work and its speed cannot be distinguished.
    stages = {s for plan in site.plans for s, host in _hosts_of_stages(plan).items() if host == fault.host}
    accepted = tuple(Culprit(type="stage", id=str(s)) for s in sorted(stages))
    return slow_down(fault, start, end, "slow_compute", Culprit(type="host", id=host_name(fault.host)), accepted, slow)


def _hosts_of_stages(plan: JobPlan) -> dict[int, int]:
    """The host of each stage that has its own host."""
    stage, host = plan.layout.stage, plan.layout.host
    found = {}
    for s in range(plan.job.pp):
        hosts = np.unique(host[stage == s])
        if len(hosts) == 1 and plan.job.pp > 1 and (stage[host == hosts[0]] == s).all():
            found[s] = int(hosts[0])
    return found


def _on_host(plan: JobPlan, host: int, windows: Sequence[tuple[int, int, float]]) -> tuple[Slowdown, ...]:
    return tuple(
        Slowdown(target="rank", id=rank, speed=speed, start_ns=begin, end_ns=end)
        for rank in np.flatnonzero(plan.layout.host == host).tolist()
        for begin, end, speed in windows
    )


def unbalance_stage(fault: Fault, site: Site, start: int, end: int) -> Planted:
    """One stage has more work than the others."""
    plan = site.plan_of(fault.job)
    ranks = np.flatnonzero(plan.layout.stage == fault.stage).tolist()
    slow = tuple(Slowdown(target="rank", id=r, speed=fault.speed, start_ns=start, end_ns=end) for r in ranks)
    culprit = Culprit(type="stage", id=str(fault.stage))
    host = _hosts_of_stages(plan).get(fault.stage if fault.stage is not None else -1)
    accepted = (Culprit(type="host", id=host_name(host)),) if host is not None else _name_worker(site, plan, ranks)
    return slow_down(fault, start, end, "stage_imbalance", culprit, accepted, {plan.index: slow})


def _name_worker(site: Site, plan: JobPlan, ranks: Sequence[int]) -> tuple[Culprit, ...]:
    """The endpoints of ranks that share one host, so that their work and their speed cannot be distinguished."""
    if len(np.unique(plan.layout.host[list(ranks)])) > 1:
        return ()
    endpoints = sorted({site.endpoint_of(plan, r) for r in ranks})
    return tuple(Culprit(type="endpoint", id=site.names[e]) for e in endpoints)


def unbalance_load(fault: Fault, site: Site, start: int, end: int) -> Planted:
    """Replicas get uneven amounts of work, different in every step."""
    plan = site.plan_of(fault.job)
    return Planted(
        fault=fault,
        start_ns=start,
        end_ns=end,
        finding="load_imbalance",
        culprit=Culprit(type="job", id=plan.job.id),
        disturbances={plan.index: Disturbance(spread=(start, end, fault.spread))},
    )


def pause_often(fault: Fault, site: Site, start: int, end: int) -> Planted:
    """Garbage collection pauses one rank after the other, or always the given one."""
    plan = site.plan_of(fault.job)
    rng = np.random.default_rng([site.seed, 13])
    begins = np.arange(start, end, round(fault.period_s * 1e9)) + rng.integers(0, round(fault.period_s * 5e8))
    ranks = rng.integers(0, plan.job.num_gpus, len(begins)) if fault.rank is None else np.full(len(begins), fault.rank)
    pause = round(fault.pause_ms * 1e6)
    slow = tuple(
        Slowdown(target="rank", id=int(r), speed=0.0, start_ns=int(b), end_ns=int(b) + pause)
        for r, b in zip(ranks, begins, strict=True)
    )
    if fault.rank is not None:
        return slow_down(fault, start, end, "slow_compute", *_rank_names(site, plan, fault.rank), {plan.index: slow})
    return slow_down(fault, start, end, "slow_step", Culprit(type="job", id=plan.job.id), (), {plan.index: slow})


def stall_checkpoints(fault: Fault, site: Site, start: int, end: int) -> Planted:
    """Storage is slow, so checkpoints pause the job for longer."""
    plan = site.plan_of(fault.job)
    return Planted(
        fault=fault,
        start_ns=start,
        end_ns=end,
        finding="slow_step",
        culprit=Culprit(type="job", id=plan.job.id),
        disturbances={plan.index: Disturbance(pause_factor=(start, end, 1 / fault.speed))},
    )


def hang(fault: Fault, site: Site, start: int, end: int) -> Planted:
    """One rank stops; the ranks that wait for it stop too."""
    plan = site.plan_of(fault.job)
    assert fault.rank is not None
    over = end if fault.end_s is not None else start + _LONG_NS
    stop = Slowdown(target="rank", id=fault.rank, speed=0.0, start_ns=start, end_ns=over)
    return slow_down(fault, start, end, "hang", *_rank_names(site, plan, fault.rank), {plan.index: (stop,)})


def lose_node(fault: Fault, site: Site, start: int, end: int) -> Planted:
    """A host dies; its jobs stop until they are restarted on a spare that takes over its name."""
    assert fault.host is not None
    back = start + round(fault.down_s * 1e9)
    found = {}
    for plan in site.plans:
        if (plan.layout.host == fault.host).any():
            dead = _on_host(plan, fault.host, [(start, back, 0.0)])
            found[plan.index] = Disturbance(slowdowns=dead, outages=((back, back + 1),))
    culprit = Culprit(type="host", id=host_name(fault.host))
    return Planted(
        fault=fault, start_ns=start, end_ns=min(back, end), finding="hang", culprit=culprit, disturbances=found
    )


def _rank_names(site: Site, plan: JobPlan, rank: int) -> tuple[Culprit, tuple[Culprit, ...]]:
    address = site.names[site.endpoint_of(plan, rank)]
    return Culprit(type="endpoint", id=address), (Culprit(type="host", id=host_name(int(plan.layout.host[rank]))),)
