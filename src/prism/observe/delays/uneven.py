"""Uneven load: another host is late in each step, and steps are longer by what it is late.

Calls show all that a host is late by in a step, so it must go with how long steps are. Work in a pipeline is seen on a
few of its micro-batches, which says little about the length of a step; but all stages of a replica work on the same
data, so what is long for one of them is long for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from prism.observe.delays.lateness import Lateness
from prism.observe.findings.case import Case, Floats, culprit
from prism.observe.findings.cost import settle
from prism.observe.findings.verdicts import Proposal
from prism.observe.findings.windows import find_window, quantile_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenConfig:
    """When hosts take turns at being late."""

    least: float = 0.03  # of a step: in any job some rank arrives last
    explains: float = 0.5  # correlation of who is last with the length of steps, or of a stage with the next
    others: float = 0.2  # of the lateness of the last: a third host is this late too where work is uneven
    one: float = 0.6  # of the slow steps: a host that is last in more is the cause itself
    steps: int = 8  # slow ones, at least
    gain: float = 20.0  # nats: less than a host that is clearly late


def find_uneven(case: Case, tables: Sequence[Lateness], config: UnevenConfig | None = None) -> list[Proposal]:
    """The job, if a different host is late in each slow step and this is why they are slow."""
    config = config or UnevenConfig()
    for table in tables:
        late = _by_host(case, table)
        if len(late) < 2:
            continue
        top = late.max(axis=0)
        length = case.length_s / float(np.quantile(case.length_s, 0.3, method="lower")) - 1
        window = find_window(np.minimum(length, top), config.least)
        if window is None or window.length < config.steps:
            continue
        inside = slice(window.first, window.last + 1)
        slow = length[inside] > config.least
        last = late[:, inside].argmax(axis=0)[slow]
        if slow.sum() < config.steps or np.bincount(last).max() > config.one * len(last):
            continue
        if (~slow).any() and np.median(top[inside][~slow]) < config.least:
            continue  # In other steps nobody is late: hosts pause now and then.
        third = np.sort(late[:, inside], axis=0)[-3] if len(late) > 2 else top[inside]
        if np.median(third / np.maximum(top[inside], 1e-12)) < config.others:
            continue  # One host pauses and all others come as ever.
        explained = _compare_stages(case, table) if table.of_work else _correlate(top, length)
        if explained < config.explains:
            continue
        cost = settle(case, window, None)
        if cost.lost_s < config.least * float(case.length_s[inside].sum()):
            continue
        num = len(np.unique(last))
        evidence = f"the last to come changes: {num} different hosts in {len(last)} slow steps; {cost.words}"
        told = case.finding("load_imbalance", culprit("job", case.job.id), window.first, window.last,
                            lost_s=cost.lost_s, score=0.8, evidence=evidence)  # fmt: skip
        return [Proposal(finding=told, gain=config.gain)]
    return []


def _by_host(case: Case, table: Lateness) -> Floats:
    """By host and step, how much later than usual its latest endpoint is."""
    usual = quantile_rows(table.late, 0.25, axis=1)
    more = np.nan_to_num(table.late - usual[:, None])
    hosts = [[case.hosts[e] == host for e in table.endpoints.tolist()] for host in case.own_by_host]
    rows = [more[own].max(axis=0) for own in hosts if any(own)]
    return np.stack(rows) if rows else np.empty((0, table.late.shape[1]))


def _compare_stages(case: Case, table: Lateness) -> float:
    """How far what each stage of a replica is late by goes with what the next one is late by."""
    row = {int(e): i for i, e in enumerate(table.endpoints.tolist())}
    hops = [(row[a], row[b]) for chain in case.stages.chains for a, b in pairwise(chain) if a in row and b in row]
    one, other = (table.late[[hop[side] for hop in hops]].ravel() for side in (0, 1))
    known = ~np.isnan(one) & ~np.isnan(other)
    return _correlate(one[known], other[known])


def _correlate(one: Floats, other: Floats) -> float:
    """Their correlation, 0 where one of them is always the same."""
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])
