"""Residuals: by how much members of calls were later than the model of the job predicts.

A member starts when everything it needs has arrived and its work is done. So the time since anything last ended at
either end of a message is work, and a member that only waited shows none. Work is usual if the same position in quick
steps, or similar members in the same step, take as long. Nothing depends on the algorithm: hops of rings and trees,
shards, experts and pipelines are all members of calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numba
import numpy as np

from prism.observe import levels
from prism.observe.findings.case import Calls, Case, Floats, Ints, is_pipeline
from prism.observe.findings.waits import Meetings, list_meetings, measure_waits
from prism.observe.findings.windows import quantile_rows, spread_of
from prism.observe.findings.work_table import tabulate_work
from prism.observe.steps.work import find_over
from prism.observe.traffic.medians import quantile_groups
from prism.observe.traffic.numbering import number_keys

_QUICK = levels.SHARE_QUICK  # share of the steps, and of similar members, that are surely not late
_CLOSE = levels.TWO_PER_MILLE  # of a step, or of the work itself: what differs by less says nothing


@dataclass(frozen=True, slots=True)
class Residuals:
    """Seconds that each row is late by in each step, nan where not seen, and how much that scatters by chance.

    A row is a hop with both its ends, or an endpoint, or a host (`of_hosts`), whose number is then its `sender`.
    """

    sender: Ints
    receiver: Ints  # -1 where a row has one end
    late_s: Floats
    scale_s: float
    of_hosts: bool = False
    per_work: bool = False  # as a share of the usual work instead of seconds
    of_past: bool = False  # against quick steps alone
    of_like: bool = False  # also against similar members, so it does not show what began

    def since(self) -> Residuals:
        """The same relative to each row's own quick steps: changes that began, or came and went."""
        return replace(self, late_s=self.late_s - quantile_rows(self.late_s, levels.SHARE_MINOR, axis=1)[:, None])


def list_residuals(case: Case, host: Ints, *, of_past: bool = True) -> Iterator[Residuals]:
    """The residuals of a case, those `of_past` only where asked for; `host` is the number of the host of each endpoint.

    In a pipeline a message between two stages finds its receiver busy: work is read where nothing holds it up.
    """
    in_stages = is_pipeline(case)
    step_s = float(np.median(case.length_s))
    since = _measure_gaps(case) if len(case.calls.row) else None
    if since is not None:
        yield from _compare_starts(case, np.fmin(*since), in_stages, step_s, of_past=of_past)
        if in_stages and of_past:
            yield from _compare_answers(case, since[0], step_s)
    if not case.work.is_empty():
        yield from _compare_work(case, step_s)
    met = list_meetings(case) if since is not None and not in_stages else None
    if since is not None and met is not None:
        yield from _compare_waits(case, host, met, since, step_s, of_like=True)
        if of_past:  # A rank that is held up works as long as before; only the excess is lateness.
            sent, taken = (np.maximum(idle - _find_usual(case.calls, idle), 0.0) for idle in since)
            yield from _compare_waits(case, host, met, (sent, taken), step_s, of_past=True)
    if not in_stages and of_past:
        yield from _compare_ring_waits(case, host, step_s)


def _compare_waits(
    case: Case, host: Ints, met: Meetings, idle: tuple[Floats, Floats], step_s: float, *, of_past: bool = False,
    of_like: bool = False,
) -> Iterator[Residuals]:  # fmt: skip
    """By host, how long all others wait for it alone."""
    waits = measure_waits(case, met, idle, is_new=of_past)
    if waits is None:
        return
    names = dict(zip(case.hosts, host.tolist(), strict=True))
    own = [i for i, name in enumerate(waits.hosts) if name in case.own_by_host]
    rows = np.array([names[waits.hosts[i]] for i in own], np.int64)
    late = np.where(waits.seen, waits.cost_s[own], np.nan)
    table = Residuals(rows, np.full(len(rows), -1), late, 0.0, of_hosts=True, of_past=of_past, of_like=of_like)
    yield _centre(table, step_s)


def _measure_gaps(case: Case) -> tuple[Floats, Floats]:
    """By message of the calls the time since anything ended at its sender, and at its receiver, without pauses."""
    calls = case.calls
    src, dst, start = calls.src[calls.row], calls.dst[calls.row], calls.start
    ends = _end_exchanges(case)
    first = int(start.min())
    span = int(max(e.max() for e in ends)) - first + 1
    line = (number_hosts(case) if is_host_one(case) else np.arange(len(case.hosts))) * span
    lines = line[src], line[dst]
    done = np.concatenate([own + (end - first) for own, end in zip(lines, ends, strict=True)])
    done.sort(kind="stable")  # Those of one connection are in order, which this way of sorting makes use of.
    sent, taken = (_look_back(done, own, own + (start - first)) for own in lines)
    if case.pause_s[:-1].any():  # The first messages of a step come after the pause that follows the one before.
        inside = start - case.steps["start_ns"].to_numpy()[calls.step]
        paused = np.append(0.0, case.pause_s[:-1] * 1e9)[calls.step]
        sent, taken = (np.where(gap > inside, np.maximum(gap - paused, inside), gap) for gap in (sent, taken))
    return sent, taken


def is_host_one(case: Case) -> bool:
    """Whether the ranks of a host share each tensor or sequence: none continues before what comes to all of them.

    Frameworks number ranks by tensor first and by sequence next, so blocks that leave a host are passed by all of it.
    """
    crossing = "cp" in case.calls.kinds and len(case.own_by_host) > 1
    parts = (case.layout.tp.value or 1) * (case.layout.cp.value or 1)
    return not case.stages.chains and (crossing or parts * len(case.own_by_host) >= case.gpus)


def _end_exchanges(case: Case) -> tuple[Ints, Ints]:
    """By message of the calls when it is over for its sender, and for its receiver.

    All NICs of a host carry the tokens of its ranks: none of them continues before an exchange is complete.
    """
    calls, host = case.calls, number_hosts(case)
    routed = np.flatnonzero(np.array([kind == "ep" for kind in calls.kinds])[calls.kind][calls.row])
    if not len(routed):
        return calls.end, calls.end
    places, steps = int(calls.place.max()) + 1, case.steps.height
    keys = [
        (host[side[calls.row[routed]]] * places + calls.place[routed]) * steps + calls.step[routed]
        for side in (calls.src, calls.dst)
    ]
    number, found = number_keys(np.concatenate(keys))
    over = np.zeros(len(found), np.int64)
    np.maximum.at(over, number, np.tile(calls.end[routed], 2))
    sent, taken = calls.end.copy(), calls.end.copy()
    sent[routed], taken[routed] = over[number[: len(routed)]], over[number[len(routed) :]]
    return sent, taken


@numba.njit(cache=True, nogil=True)
def _look_back(done: Ints, begin: Ints, wanted: Ints) -> Floats:
    """Time since the last end before each moment on its own time line, nan if none; `done` holds all time lines."""
    gap = np.full(len(wanted), np.nan)
    low = 0  # everything before this index ended no later than the wanted time
    for i in range(len(wanted)):
        if low and done[low - 1] > wanted[i]:
            low = 0
        reach = 1
        while low + reach <= len(done) and done[low + reach - 1] <= wanted[i]:
            low += reach
            reach *= 2
        while reach:
            if low + reach <= len(done) and done[low + reach - 1] <= wanted[i]:
                low += reach
            reach //= 2
        if low and done[low - 1] >= begin[i]:
            gap[i] = wanted[i] - done[low - 1]
    return gap


def _find_usual(calls: Calls, gap: Floats) -> Floats:
    """By message, how long the same position of its stream takes in quick steps."""
    places = int(calls.place.max(initial=0)) + 1
    slot = calls.row * places + calls.place
    usual: Floats = quantile_groups(gap, slot, len(calls.src) * places, levels.SHARE_MINOR)[slot]
    return usual


def _compare_starts(
    case: Case, both: Floats, in_stages: bool, step_s: float, *, of_past: bool = True
) -> Iterator[Residuals]:
    """By hop, the total lateness of a step's messages, against quick steps and against similar hops of the step."""
    calls, ends = case.calls, len(case.hosts)
    between_stages = np.array([in_stages and kind == "pp" for kind in calls.kinds], np.bool_)
    kept = ~np.isnan(both) & ~between_stages[calls.kind][calls.row]
    calls, gap = calls.take(kept), both[kept]
    if not len(gap):
        return
    past = _find_usual(calls, gap)
    # Like messages of one place and step are of one kind and size, and between the same stages.
    alike, found = number_keys(calls.number_alike(case.stage_of) * (ends + 1) + case.stage_of[calls.dst] + 1)
    peer, cells = number_keys(
        (alike[calls.row] * (int(calls.place.max()) + 1) + calls.place) * case.steps.height + calls.step
    )
    usual = quantile_groups(gap, peer, len(cells), _QUICK)[peer]
    senders = np.unique(alike * ends + calls.src) // ends
    enough = (np.bincount(senders, minlength=len(found)) >= levels.MIN_SAMPLES)[alike[calls.row]]
    against_like = gap - np.where(enough, np.minimum(past, usual), past)
    hop, hops = number_keys(calls.src * ends + calls.dst)
    hop = hop[calls.row]
    yield from _by_hop(case, hops, hop, calls.step, against_like, step_s)
    if not of_past:
        return
    # Where nothing ends meanwhile because others are late, the time since then grows, but a call does not come later.
    since = calls.start - find_over(case.calls.end, case.steps["start_ns"].to_numpy())[calls.step]
    late = np.fmin(gap - past, np.maximum(since - _find_usual(calls, since), 0.0))
    # A rank that is late to calls of one kind leaves them together with all others.
    kinds = calls.kind[calls.row]
    for kind in np.flatnonzero(np.bincount(kinds)):
        own = kinds == kind if len(calls.kinds) > 1 else slice(None)
        yield from _by_hop(case, hops, hop[own], calls.step[own], late[own], step_s, past[own])


def _by_hop(
    case: Case, hops: Ints, hop: Ints, step: Ints, late_ns: Floats, step_s: float, past_ns: Floats | None = None
) -> Iterator[Residuals]:
    """The lateness of all messages of a hop in each step, against similar ones or against the given past.

    `hops` are the numbers of the hops' ends, `hop` is that of each message and `step` its step.

    Hops that never had work before them and are never late, as those between replicas that follow the ones between
    shards at once, do not show which rank works longer now.
    """
    ends, shape = len(case.hosts), (len(hops), case.steps.height)
    table = _add_up(late_ns / 1e9, hop, step, shape)
    seen = ~np.isnan(table)
    if past_ns is not None:
        seen &= np.fmax(table, _add_up(past_ns / 1e9, hop, step, shape)) >= _CLOSE * step_s
    rows, of_past = seen.any(axis=1), past_ns is not None
    if rows.any():
        sender, receiver = hops[rows] // ends, hops[rows] % ends
        yield _centre(Residuals(sender, receiver, table[rows], 0.0, of_past=of_past, of_like=not of_past), step_s)


def _add_up(values: Floats, row: Ints, step: Ints, shape: tuple[int, int]) -> Floats:
    at = row * shape[1] + step
    seen = np.bincount(at, minlength=shape[0] * shape[1]) > 0
    return np.where(seen, np.bincount(at, values, shape[0] * shape[1]), np.nan).reshape(shape)


def _compare_ring_waits(case: Case, host: Ints, step_s: float) -> Iterator[Residuals]:
    """By host, how much longer blocks of a sequence wait for it to receive them than those that it sends wait.

    A block is under way from when its sender has it until its receiver is done with the one before. A late rank keeps
    others waiting; a rank that is kept waiting passes the delay on to the one before. A slow link slows
    all blocks of a pair, so the time of the quickest in a step is not waiting.
    """
    calls, steps = case.calls, case.steps.height
    crossing = host[calls.src] != host[calls.dst]
    calls = calls.take((np.array([kind == "cp" for kind in calls.kinds], np.bool_)[calls.kind] & crossing)[calls.row])
    if not len(calls.row):
        return
    took, cell = (calls.end - calls.start).astype(np.float64), calls.row * steps + calls.step
    wait_s = (took - quantile_groups(took, cell, len(calls.src) * steps, levels.SHARE_SMALL)[cell]) / 1e9
    late = np.zeros((int(host.max()) + 1, steps))
    for side, sign in ((calls.src, -1), (calls.dst, 1)):  # Ranks of a host wait at the same time, each for its blocks.
        streams = np.unique(calls.row)
        beside, found = number_keys(host[side] * (int(calls.like.max()) + 1) + calls.like)
        lanes = np.bincount(beside[streams], minlength=len(found))[beside]
        np.add.at(late, (host[side[calls.row]], calls.step), sign * wait_s / lanes[calls.row])
    rows = np.unique(host[np.concatenate([calls.src[calls.row], calls.dst[calls.row]])])
    late = np.maximum(late[rows], 0.0)
    yield _centre(Residuals(rows, np.full(len(rows), -1), late, 0.0, of_hosts=True, of_past=True), step_s)


def _compare_answers(case: Case, gap: Floats, step_s: float) -> Iterator[Residuals]:
    """By endpoint, the growth that nearly all of its answers share: a waiting rank then answers as fast as before."""
    known = ~np.isnan(gap)
    calls, gap = case.calls.take(known), gap[known]
    quick = _find_usual(calls, gap)
    work = quick >= _CLOSE * step_s * 1e9  # what is shorter is a delay of the network
    if not work.any():
        return
    src = calls.src[calls.row[work]]
    ends = np.flatnonzero(np.bincount(src))
    cell = np.searchsorted(ends, src) * case.steps.height + calls.step[work]
    grown = quantile_groups(gap[work] / quick[work] - 1, cell, len(ends) * case.steps.height, _QUICK)
    table = Residuals(ends, np.full(len(ends), -1), grown.reshape(len(ends), -1), 0.0, per_work=True, of_past=True)
    yield _centre(table, 10.0)


def _compare_work(case: Case, step_s: float) -> Iterator[Residuals]:
    """By endpoint, the work on the micro-batches that nothing holds up, against quick steps and against replicas.

    A lasting delay shows only against replicas; a rank without replicas cannot be compared.
    """
    table = tabulate_work(case)
    since: list[Floats] = []
    like: list[Floats] = []
    for values in table.phases.values():
        past = np.broadcast_to(quantile_rows(values, _QUICK, axis=1)[:, None], values.shape)
        others = np.full(values.shape, np.nan)
        for stage in range(table.num_stages):
            rows = np.flatnonzero(table.stage == stage)
            if len(np.unique(table.host[rows])) > 1:
                others[rows] = quantile_rows(values[rows], _QUICK, axis=0)
        for late, usual in ((since, np.fmin(past, others)), (like, others)):
            late.append(
                values / np.where(usual >= _CLOSE * step_s, usual, np.nan) - 1
            )  # less is a delay of the network
    ends = table.endpoints, np.full(len(table.endpoints), -1)
    for late, of_past in ((since, True), (like, False)):
        phases = np.stack(late) if late else np.empty((0, 0, 0))
        known = (~np.isnan(phases)).sum(axis=0)
        mean = np.where(known > 0, np.nansum(phases, axis=0) / np.maximum(known, 1), np.nan)
        if known.any():
            yield _centre(Residuals(*ends, mean, 0.0, per_work=True, of_past=of_past, of_like=not of_past), 10.0)


def _centre(table: Residuals, unit_s: float) -> Residuals:
    """The table less what all rows share in a step, and its scale."""
    late = table.late_s - quantile_rows(table.late_s, _QUICK, axis=0)
    return replace(table, late_s=late, scale_s=measure_scale(late, unit_s))


def measure_scale(late: Floats, unit: float) -> float:
    """How much residuals scatter by chance: from step to step, or between rows at all times; `unit` is a whole step."""
    # In each step one row is what the others are compared with: of two, every other value is zero.
    known = np.where(late == 0, np.nan, late) if len(late) == levels.MIN_TWO else late
    by_step = spread_of(np.diff(known, axis=1).ravel()) / float(np.sqrt(2))
    usual = quantile_rows(late, levels.SHARE_HALF, axis=1)
    by_row = float(quantile_rows(np.abs(usual - quantile_rows(usual, _QUICK, axis=0)), levels.SHARE_HALF, axis=0))
    return max(by_step, by_row, _CLOSE * unit)


def number_hosts(case: Case) -> Ints:
    """A number by endpoint that those of one host share."""
    return np.unique(np.array(case.hosts, dtype=str), return_inverse=True)[1].astype(np.int64)
