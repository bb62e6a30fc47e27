"""From the posterior to findings: one host, two that nothing tells apart, or the job where its load is uneven."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import polars as pl

from prism.observe.delays.lateness import Lateness
from prism.observe.delays.posterior import DelayConfig, Late, choose_table, find_causes, share_out
from prism.observe.delays.uneven import find_uneven
from prism.observe.findings.case import Case, culprit, is_pipeline
from prism.observe.findings.cost import Cost, price_slow_work, settle
from prism.observe.findings.verdicts import Proposal
from prism.observe.findings.work_table import tabulate_work
from prism.records.findings import Alternative, Culprit, FindingKind

_HARDLY = 0.1  # of how much longer a rank works on its way there: on its way back it works as ever


def find_delays(case: Case, tables: Sequence[Lateness], config: DelayConfig | None = None) -> list[Proposal]:
    """The host whose ranks keep a job waiting, two that look alike, or the job if another one is late each time."""
    config = config or DelayConfig()
    if case.steps.height < config.shortest or case.messages.is_empty():
        return []
    found = share_out(choose_table([find_causes(case, table, config) for table in tables], config), config)
    told = _tell(case, found, config)
    return [told] if told is not None else find_uneven(case, tables)


def _tell(case: Case, found: list[tuple[Late, float]], config: DelayConfig) -> Proposal | None:
    """The best cause; the two best as a group if neither stands out, and nobody if there are more."""
    if not found:
        return None
    (best, sure), rest = found[0], found[1:]
    tied = [late for late, p in rest[:1] if p >= config.second * sure]
    sure += sum(p for _, p in rest[: len(tied)])
    if sure < config.least_sure:
        return None
    names = [_name(case, late) for late in (best, *tied)]
    who: Culprit = names[0]
    if tied:
        who = culprit("group", ",".join(case.address(e) for late in (best, *tied) for e in late.members))
    hop = _find_late_hop(case, best) if case.meets and not tied else ()
    if hop:
        who = culprit("group", ",".join(case.address(e) for host in hop for e in sorted(case.own_by_host[host])))
    cost = _price(case, best)
    evidence = f"{_say(best, ' or '.join(name.id for name in names))}; {cost.words}"
    if hop:
        evidence += f"; messages begin once both ends are ready, so it may be {hop[1]} that comes late to them"
    if tied:
        evidence += "; records do not show which of the two it is"
    seconds = tuple(
        Alternative(kind=_kind_of(late), culprit=_name(case, late), score=round(p, 3))
        for late, p in rest[len(tied) :][:2]
        if p >= config.worth_listing
    )
    told = case.finding(
        _kind_of(best), who, best.window.first, best.window.last, lost_s=cost.lost_s,
        score=min(sure, config.surest), evidence=evidence,
    )  # fmt: skip
    return Proposal(
        finding=replace(told, alternatives=seconds), gain=best.gain, seconds=seconds, explained=cost.explained
    )


def _find_late_hop(case: Case, late: Late) -> tuple[str, ...]:
    """The hosts of a hop onward that comes late, if a rank works longer on its way there but not on its way back.

    Where a message begins only once both ends are ready, the next stage may be what comes late to its step.
    """
    after = {a: b for chain in case.stages.chains for a, b in pairwise(chain)}
    hosts = {(case.hosts[e], case.hosts[after[e]]) for e in late.members if e in after}
    if late.stage is not None or len(hosts) != 1 or any(a == b for a, b in hosts):
        return ()
    there, back = (_measure_more_work(case, late, phase) for phase in ("forward", "backward"))
    return () if back > _HARDLY * there else hosts.pop()


def _measure_more_work(case: Case, late: Late, phase: str) -> float:
    """Nanoseconds that a phase takes longer in the window of a cause than before, or, if unseen then, than others'."""
    own = pl.col("endpoint").is_in(late.members)
    inside = pl.col("step").is_between(late.window.first, late.window.last)
    work, seen = pl.col("work_ns"), case.work.filter(phase=phase)
    usual = pl.coalesce(work.filter(own & ~inside).median(), work.filter(~own & inside).median())
    return float(seen.select(work.filter(own & inside).median() - usual).item() or 0.0)


def _kind_of(late: Late) -> FindingKind:
    return "slow_compute" if late.stage is None else "stage_imbalance"


def _name(case: Case, late: Late) -> Culprit:
    return case.name_worker(list(late.members)) if late.stage is None else culprit("stage", str(late.stage))


def _say(late: Late, names: str) -> str:
    much, unit = f"{100 * late.late:.1f} %", "of its work" if late.table.of_work else "of a step"
    how = {
        "sender": f"calls wait {much} {unit} for {names}: hops begin with their sender, and it sends none earlier",
        "both": f"calls wait {much} {unit} for {names}: all hops that touch it begin late, and few others do",
        "ring": f"blocks of sequences wait {much} {unit} longer for {names} than those that it sends wait",
        "idle": f"{names} begins its calls {much} {unit} later after the last ones ended than in quick steps",
        "past": f"{names} works {much} longer on a micro-batch than in its own quick steps",
        "like": f"{names} works {much} longer on a micro-batch than others of its stage",
    }
    return how[late.table.how]


def _price(case: Case, late: Late) -> Cost:
    window = replace(late.window, mean=late.late)
    if is_pipeline(case) and late.table.of_work:
        return price_slow_work(case, tabulate_work(case), list(late.members), window, by_design=False)
    if late.always:  # the time that calls waited is all that could be saved
        window = replace(window, mean=min(late.late, 0.5))
    return settle(case, window, None)
