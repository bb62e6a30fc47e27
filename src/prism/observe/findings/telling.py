"""Findings about late ranks, hosts and stages: their wording, confidence and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl

from prism.observe import levels
from prism.observe.findings.case import Case, culprit, is_pipeline
from prism.observe.findings.cost import Cost, price_slow_work, settle
from prism.observe.findings.residuals import is_host_one
from prism.observe.findings.scoring import Cause
from prism.observe.findings.verdicts import CLOSE_SECOND, Proposal
from prism.observe.findings.work_table import tabulate_work
from prism.records.findings import Alternative

AHEAD = levels.SHARE_HALF  # margin that a cause must have
_AS_LATE = levels.SHARE_MINOR  # of the gain of a host's latest rank: above it, others are late too


def tell_late(case: Case, cause: Cause, causes: list[Cause], rivals: list[Cause], margin: float) -> Proposal:
    """The finding of one rank, host or stage; `causes` are all candidates in its window, `rivals` those elsewhere."""
    cost = price(case, cause)
    first, last = cause.window.first, cause.window.last
    steps = f"in {cause.window.length} of {case.steps.height} steps"
    sure = f"{100 * margin:.0f} % of what it explains nobody else does"
    if cause.stage is not None:
        evidence = f"stage {cause.stage} works {100 * cause.window.mean:.1f} % longer {steps}; {sure}; {cost.words}"
        who = culprit("stage", str(cause.stage))
        told = case.finding("stage_imbalance", who, first, last, lost_s=cost.lost_s, score=margin, evidence=evidence)
        return Proposal(finding=told, gain=cause.gain)
    evidence = f"{say_late(case, cause)} {steps}, and all others wait for it; {sure}; {cost.words}"
    members = with_mates(case, cause, causes)
    who = case.name_worker(members)
    seconds = list_seconds(case, cause, causes, rivals)
    stages = list_stages(case, members)
    if stages:  # Records do not show whether its hosts are slow or it got more work.
        odds = levels.SHARE_HALF / len(stages)
        seconds += tuple(
            Alternative(kind="stage_imbalance", culprit=culprit("stage", str(s)), score=odds) for s in stages
        )
    if len(stages) > 1 and not set(members) <= {e for c in causes if len(c.members) == 1 and c.seen for e in c.members}:
        margin = min(margin, levels.SHARE_HALF)  # One of its stages may have more work, and only some of it was seen.
    told = case.finding("slow_compute", who, first, last, lost_s=cost.lost_s, score=margin, evidence=evidence)
    return Proposal(finding=told, gain=cause.gain, seconds=seconds)


def tell_two(case: Case, one: Cause, other: Cause, margin: float) -> list[Proposal]:
    """Two hosts with equal gain, one of which is late: the hop between them is late."""
    names = sorted(hosts_of(case, one.members | other.members))
    if one.late_s <= 0 or margin < AHEAD or len(names) > 2 or len(case.own_by_host) < levels.MIN_SAMPLES:
        return []
    cost = price(case, one)
    members = [e for name in names for e in sorted(case.own_by_host[name])]
    evidence = (
        f"all others wait for {' or '.join(names)}, {1000 * one.late_s:.1f} ms of a step in all its calls; the hop "
        f"between the two comes last, and records do not show which of them is late; {cost.words}"
    )
    who = culprit("group", ",".join(case.address(e) for e in members))
    window = one.window
    told = case.finding(
        "slow_compute", who, window.first, window.last, lost_s=cost.lost_s, score=margin, evidence=evidence
    )
    return [Proposal(finding=told, gain=one.gain)]


def find_late_hop(case: Case, cause: Cause) -> tuple[str, str] | None:
    """The hosts of a hop onward that comes late, if a stage works longer on its way there but not on its way back.

    Where a message begins only once both ends are ready, the next stage may be what comes late to its step.
    """
    after = {a: b for chain in case.stages.chains for a, b in pairwise(chain)}
    hosts = {(case.hosts[e], case.hosts[after[e]]) for e in cause.members if e in after}
    if cause.stage is not None or len(hosts) != 1 or len(next(iter(hosts))) != len(set(next(iter(hosts)))):
        return None
    there, back = (_measure_more_work(case, cause, phase) for phase in ("forward", "backward"))
    return None if back > levels.SHARE_SMALL * there else hosts.pop()


def _measure_more_work(case: Case, cause: Cause, phase: str) -> float:
    """Nanoseconds that a phase of a cause takes longer in its window than before, or, if unseen then, than others'."""
    own, inside = (
        pl.col("endpoint").is_in(sorted(cause.members)),
        pl.col("step").is_between(cause.window.first, cause.window.last),
    )
    work, seen = pl.col("work_ns"), case.work.filter(phase=phase)
    usual = pl.coalesce(work.filter(own & ~inside).median(), work.filter(~own & inside).median())
    return float(seen.select(work.filter(own & inside).median() - usual).item() or 0.0)


def tell_hop(case: Case, cause: Cause, hop: tuple[str, str], margin: float) -> Proposal:
    """The finding of one hop of a pipeline, either end of which may be late."""
    cost = price(case, cause)
    window = cause.window
    evidence = (
        f"what {hop[0]} sends to {hop[1]} comes later in {window.length} of {case.steps.height} steps, and all others "
        "wait for it; messages begin once both ends are ready, and records do not show which of the two is late; "
        f"{cost.words}"
    )
    who = culprit("group", ",".join(case.address(e) for host in hop for e in sorted(case.own_by_host[host])))
    told = case.finding(
        "slow_compute", who, window.first, window.last, lost_s=cost.lost_s, score=margin, evidence=evidence
    )
    return Proposal(finding=told, gain=cause.gain)


def price(case: Case, cause: Cause) -> Cost:
    """The cost of a cause: by solving the job again if it has stages, else by how long others wait for it."""
    if is_pipeline(case):
        table = tabulate_work(case)
        return price_slow_work(case, table, sorted(cause.members), cause.window, by_design=False)
    late = min(cause.late_s / float(np.median(case.length_s)), levels.SHARE_HALF)
    return settle(case, replace(cause.window, mean=late / (1 - late)), None)


def list_stages(case: Case, members: list[int]) -> list[int]:
    """The stages that consist of these members only, if a job has others; of several on one host, one is visible."""
    stage, shown = case.stage_of[members[0]], len(set(case.stages.stage.values()))
    if {e for e, s in case.stages.stage.items() if s == stage} != set(members) or not is_pipeline(case):
        return []
    parts = max((case.layout.pp.value or 1) // shown, 1)
    return list(range(int(stage) * parts, (int(stage) + 1) * parts))


def list_seconds(case: Case, cause: Cause, causes: list[Cause], rivals: list[Cause]) -> tuple[Alternative, ...]:
    """Ranks and hosts on other hosts that gain nearly as much, each host once."""
    found: dict[str, Alternative] = {}
    for rival in rivals:
        names = hosts_of(case, rival.members)
        if rival.gain < CLOSE_SECOND * cause.gain or rival.stage is not None or len(names) > 1:
            continue
        share = round(rival.gain / (rival.gain + cause.gain), 3)
        who = case.name_worker(with_mates(case, rival, causes))
        found.setdefault(names.pop(), Alternative(kind="slow_compute", culprit=who, score=share))
    return tuple(found.values())


def say_late(case: Case, cause: Cause) -> str:
    """By how much a cause is late, in words."""
    if cause.late_s <= 0:
        return f"works {100 * cause.window.mean:.1f} % longer than usual"
    return f"comes {1000 * cause.late_s:.1f} ms late to the calls of a step"


def with_mates(case: Case, cause: Cause, causes: list[Cause]) -> list[int]:
    """The late ranks of a cause's host; the whole host if all visible ones are late, or none continues without all."""
    own = case.own_by_host[case.hosts[next(iter(cause.members))]]
    if is_host_one(case):
        return sorted(own)
    gains = {next(iter(c.members)): c.gain for c in causes if len(c.members) == 1 and c.members <= own and c.seen}
    most = max(gains.values(), default=0.0)
    late = [e for e, gain in gains.items() if gain >= _AS_LATE * most]
    return sorted(cause.members if most <= 0 else own if len(late) == len(gains) else late)


def hosts_of(case: Case, members: Sequence[int] | set[int] | frozenset[int]) -> set[str]:
    """The hosts of some endpoints."""
    return {case.hosts[e] for e in members}
