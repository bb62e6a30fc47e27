"""Lateness: how much later than its like each endpoint is in every step, by its calls or by its work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prism.observe.delays.meetings import Meetings, find_meetings, measure_idle, waits_for_both
from prism.observe.findings.case import Case, Floats, Ints, is_pipeline, number_hosts
from prism.observe.findings.windows import quantile_rows
from prism.observe.findings.work_table import WorkTable, tabulate_work
from prism.observe.traffic.medians import quantile_groups
from prism.observe.traffic.numbering import number_keys

_NEVER = np.iinfo(np.int64).max
_QUICK = 0.25  # of the members of a call are surely not late
_ALWAYS = 0.9  # of the steps
_UNHINDERED = 0.1  # of the blocks of a pair in a step surely do not wait
_UNSEEN_S = 1e18
_AT_ONCE = 5e-4  # of a step: ranks that send within it share each tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Hops:
    """By pair of endpoints and step, how much later than their like its hops began, as a share of a step."""

    src: Ints
    dst: Ints
    late: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """By endpoint and step, as a share of a step or of a rank's work; nan where it was not seen.

    `of_past` rows are compared with their own quick steps alone, so they show only what begins or ends.
    """

    endpoints: Ints
    late: Floats
    how: str
    hops: Hops | None = None
    of_past: bool = False
    of_work: bool = False


def list_lateness(case: Case) -> list[Lateness]:
    """What shows who is late in a job: its work in a pipeline, else when its members are ready for their calls.

    Both ways in which a hop may begin are measured: with its sender, and once both of its ends are ready.
    """
    if is_pipeline(case) and not case.work.is_empty():
        return _measure_work(case)
    ring = _compare_ring_waits(case)
    if ring is not None:
        return [ring]
    met = find_meetings(case)
    if met is None:
        return []
    step_s = float(np.median(case.length_s))
    hops = _tabulate_hops(case, met, step_s)
    both = waits_for_both(met)
    ways = [("both", met.touched)] if both is not False else []
    ways += [("sender", met.sent)] if not both else []
    found = [
        Lateness(endpoints=ends, late=late / step_s, how=how, hops=hops)
        for how, ready in ways
        for ends, late in (_tabulate(case, met, ready),)
        if len(ends)
    ]
    if len(case.own_by_host) > 2:
        return found
    # Where hops wait for both ends, two hosts are late to all of them together: only the past shows that one is.
    ends, late = _compare_past(case, met)
    return [*found, Lateness(endpoints=ends, late=late / step_s, how="idle", of_past=True)]


def _compare_past(case: Case, met: Meetings) -> tuple[Ints, Floats]:
    """Seconds by endpoint and step that it worked longer before its calls than in its own quick steps."""
    known = np.flatnonzero(met.sent < _NEVER)
    call, endpoint, at = met.call[known], met.endpoint[known], met.sent[known]
    idle = measure_idle(case, met, call, endpoint, at)
    kept = np.flatnonzero(~np.isnan(idle))
    call, endpoint, idle = call[kept], endpoint[kept], idle[kept]
    slot = np.unique((met.group[call] * (int(met.place.max()) + 1) + met.place[call]) * len(case.hosts) + endpoint,
                     return_inverse=True)[1].astype(np.int64)  # fmt: skip
    more = np.maximum(idle - quantile_groups(idle, slot, int(slot.max(initial=-1)) + 1, _QUICK)[slot], 0.0) / 1e9
    ends, row = np.unique(endpoint, return_inverse=True)
    shape = len(ends), case.steps.height
    cell = row * shape[1] + met.step[call]
    seen = np.bincount(cell, minlength=shape[0] * shape[1]) > 0
    return ends, np.where(seen, np.bincount(cell, more, shape[0] * shape[1]), np.nan).reshape(shape)


def _tabulate(case: Case, met: Meetings, ready: Ints) -> tuple[Ints, Floats]:
    """Seconds by endpoint and step that its calls waited for it beyond the quicker members."""
    known = np.flatnonzero(ready < _NEVER)
    late = _compare(case, met, met.call[known], met.endpoint[known], ready[known])
    ends, row = np.unique(met.endpoint[known], return_inverse=True)
    shape = len(ends), case.steps.height
    cell = row * shape[1] + met.step[met.call[known]]
    seen = np.bincount(cell, minlength=shape[0] * shape[1]) > 0
    total = np.bincount(cell, late, shape[0] * shape[1])
    return ends, np.where(seen, total, np.nan).reshape(shape)


def _tabulate_hops(case: Case, met: Meetings, step_s: float) -> Hops:
    src, dst = met.endpoint[met.hop], met.endpoint[met.to]
    late = _compare(case, met, met.call[met.hop], src, met.began) / step_s
    ends = len(case.hosts)
    pairs, row = np.unique(src * ends + dst, return_inverse=True)
    shape = len(pairs), case.steps.height
    cell = row * shape[1] + met.step[met.call[met.hop]]
    table = np.bincount(cell, late, shape[0] * shape[1]).astype(np.float64).reshape(shape)
    return Hops(src=pairs // ends, dst=pairs % ends, late=table)


def _compare(case: Case, met: Meetings, call: Ints, endpoint: Ints, at: Ints) -> Floats:
    """Seconds by which members of calls are later than the quicker ones of the same call.

    What a member is late by because something that it took part in had only just ended is not its own work.
    """
    calls = len(met.step)
    since = (at - met.opened[call]).astype(np.float64)
    idle = measure_idle(case, met, call, endpoint, at)
    late = since - quantile_groups(since, call, calls, _QUICK)[call]
    timed = np.flatnonzero(~np.isnan(idle))
    more = np.full(len(at), np.inf)
    if len(timed):
        usual = quantile_groups(idle[timed], call[timed], calls, _QUICK)
        more[timed] = idle[timed] - usual[call[timed]]
    return np.asarray(np.maximum(np.minimum(late, more), 0.0) / 1e9, np.float64)


def _measure_work(case: Case) -> list[Lateness]:
    """Work on the micro-batches that nothing holds up, against other replicas of the stage and against the past."""
    table = tabulate_work(case)
    step_s = float(np.median(case.length_s))
    like, past = [], []
    groups = _group_lockstep(case, table)
    for every in table.phases.values():
        # Ranks that share each tensor continue with the last message that comes to any of them.
        values = every.copy()
        for rows in groups:
            values[rows] = np.where(np.isnan(every[rows]), np.nan, np.fmin.reduce(every[rows], axis=0))
        quick = quantile_rows(values, _QUICK, axis=1)
        least = np.where(quick >= 0.002 * step_s, quick, np.nan)
        past.append(values / least[:, None] - 1)
        others = np.full(values.shape, np.nan)
        for stage in range(table.num_stages):
            rows = np.flatnonzero(table.stage == stage)
            if len(np.unique(table.host[rows])) > 1:
                others[rows] = quantile_rows(values[rows], _QUICK, axis=0)
        like.append(values / np.where(others >= 0.002 * step_s, others, np.nan) - 1)
    out = []
    for parts, of_past in ((past, True), (like, False)):
        stack = np.stack(parts)
        known = (~np.isnan(stack)).sum(axis=0)
        mean = np.where(known > 0, np.nansum(stack, axis=0) / np.maximum(known, 1), np.nan)
        if known.any():
            how = "past" if of_past else "like"
            out.append(Lateness(endpoints=table.endpoints, late=mean, how=how, of_past=of_past, of_work=True))
    return out


def _compare_ring_waits(case: Case) -> Lateness | None:
    """How much longer blocks of a sequence wait for a host to take them than those that it sends wait.

    A late rank keeps others waiting; a rank that is kept waiting passes the delay on to the one before it. A slow link
    slows all blocks of a pair, so the time of the quickest in a step is no waiting.
    """
    calls, steps, host = case.calls, case.steps.height, number_hosts(case)
    passes = np.array([kind == "cp" for kind in calls.kinds], np.bool_)[calls.kind]
    calls = calls.take((passes & (host[calls.src] != host[calls.dst]))[calls.row]) if len(calls.row) else calls
    if not len(calls.row):
        return None
    took, cell = (calls.end - calls.start).astype(np.float64), calls.row * steps + calls.step
    wait_s = (took - quantile_groups(took, cell, len(calls.src) * steps, _UNHINDERED)[cell]) / 1e9
    late = np.zeros((int(host.max()) + 1, steps))
    for side, sign in ((calls.src, -1), (calls.dst, 1)):  # Ranks of a host wait at the same time, each for its blocks.
        streams = np.unique(calls.row)
        beside, found = number_keys(host[side] * (int(calls.like.max()) + 1) + calls.like)
        lanes = np.bincount(beside[streams], minlength=len(found))[beside]
        np.add.at(late, (host[side[calls.row]], calls.step), sign * wait_s / lanes[calls.row])
    ends = np.unique(np.concatenate([calls.src[calls.row], calls.dst[calls.row]]))
    late = np.maximum(late[host[ends]], 0.0) / float(np.median(case.length_s))
    return Lateness(endpoints=ends, late=late, how="ring")


def _group_lockstep(case: Case, table: WorkTable) -> list[Ints]:
    """Rows of ranks of one host and stage that always send at the same moments."""
    calls = case.calls
    first = np.flatnonzero(calls.place == 0)
    row = np.full(len(case.hosts), -1, np.int64)
    row[table.endpoints] = np.arange(len(table.endpoints))
    src = row[calls.src[calls.row[first]]]
    first, src = first[src >= 0], src[src >= 0]
    sent = np.full((len(table.endpoints), case.steps.height), _UNSEEN_S)
    np.minimum.at(sent, (src, calls.step[first]), (calls.start[first] - int(calls.start.min())) / 1e9)
    sent[sent == _UNSEEN_S] = np.nan
    close_s = _AT_ONCE * float(np.median(case.length_s))
    groups = []
    left = list(range(len(table.endpoints)))
    while left:
        apart = np.nan_to_num(quantile_rows(np.abs(sent[left] - sent[left[0]]), _ALWAYS, axis=1), nan=np.inf)
        same = [
            r
            for r, far in zip(left, apart.tolist(), strict=True)
            if r == left[0]
            or (far <= close_s and table.host[r] == table.host[left[0]] and table.stage[r] == table.stage[left[0]])
        ]
        groups.append(np.array(same, np.int64))
        left = [r for r in left if r not in same]
    return groups
