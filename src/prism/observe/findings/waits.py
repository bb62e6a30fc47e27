"""Waits: how much time each host costs the collectives of a job by arriving later than the others.

A collective proceeds when its last member has arrived. The hops that do not touch a host show when the others arrived:
the time between them and the last hop is the cost of this host alone. Nothing depends on the algorithm (ring, tree,
all-to-all), nor on whether a hop begins with its sender or once both of its ends are ready. A host where another
transfer had just ended was held up by that: it costs no more than the time for which nothing ended there.

If exporters split the records of hops that wait, the first records show what was sent before. If every rank that has
arrived adds its own piece to what it passes on, the bytes that reach the host of the missing rank stay there. Only this
host receives more than it sends; or, if the buffers before it are full, it has the largest excess and sends nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.findings.case import Calls, Case, Floats, Ints
from prism.observe.findings.collectives import POINT_TO_POINT
from prism.observe.traffic.numbering import group_by_number, number_keys


@dataclass(frozen=True)
class Waits:
    """By host and step: seconds that all others wait for it alone; `seen` are steps with collectives to judge by."""

    hosts: list[str]
    cost_s: Floats
    seen: NDArray[np.bool_]


@dataclass(frozen=True)
class Meetings:
    """The calls of collectives of a case, and which are one: `order` and where each begins in it."""

    calls: Calls
    kept: NDArray[np.bool_]  # which of the case's calls these are
    hosts: list[str]
    ends: tuple[Ints, Ints]  # the host that sends each, and the one that receives it
    order: Ints
    begin: Ints


def list_meetings(case: Case) -> Meetings | None:
    """The collectives of a case; None where it has none."""
    calls = case.calls
    kept = np.array([kind not in POINT_TO_POINT for kind in calls.kinds], np.bool_)[calls.kind][calls.row]
    calls = calls.take(kept)
    if not len(calls.row):
        return None
    names, number = np.unique(np.array(case.hosts, dtype=str), return_inverse=True)
    src, dst = number.astype(np.int64)[calls.src], number.astype(np.int64)[calls.dst]
    group = calls.number_alike(case.stage_of)[calls.row]
    call, found = number_keys((group * (int(calls.place.max()) + 1) + calls.place) * case.steps.height + calls.step)
    order, begin = group_by_number(call, len(found))
    return Meetings(calls, kept, names.tolist(), (src[calls.row], dst[calls.row]), order, begin)


def measure_waits(case: Case, met: Meetings, since: tuple[Floats, Floats], *, is_new: bool = False) -> Waits | None:
    """What each host costs every step; None where no collective has hops between other hosts to compare with.

    `since` is, by message of the calls, how long nothing had ended at its sender and at its receiver; `is_new` means
    that only the excess over the usual counts: which of two hops begins first may be by design.
    """
    calls, order, begin = met.calls, met.order, met.begin
    shape = len(met.hosts), case.steps.height
    begun = case.messages["begun"].to_numpy()[calls.message] if "begun" in case.messages.columns else None
    if begun is not None and _adds_up(order, begin, begun):
        cost, seen = _sum_kept(order, begin, met.ends, calls, begun, shape)
    else:
        # Where ranks share a NIC, one of them may send while another has not arrived.
        is_own = is_new and case.gpus == len(case.job.endpoints)
        hops = np.where(is_own, calls.src[calls.row], -1), calls.dst[calls.row]
        idle = since[0][met.kept], since[1][met.kept]
        cost, seen = _sum_costs(order, begin, met.ends, hops, calls.step, calls.start, calls.end, idle, shape)
    return Waits(met.hosts, cost / 1e9, seen) if seen.any() else None


def _adds_up(order: Ints, begin: Ints, begun: Ints) -> bool:
    """Whether hops of most waiting collectives sent different amounts before; equal buffers would show nothing."""
    most = np.maximum.reduceat(begun[order], begin[:-1])
    least = np.minimum.reduceat(np.where(begun > 0, begun, most.max())[order], begin[:-1])
    waited = most > 0
    return bool(waited.any() and np.median(most[waited] / least[waited]) >= levels.RATIO_DOUBLE)


def _sum_kept(
    order: Ints, begin: Ints, ends: tuple[Ints, Ints], calls: Calls, begun: Ints, shape: tuple[int, int]
) -> tuple[Floats, NDArray[np.bool_]]:
    """By host and step the time for which collectives waited for the one host that kept what reached it before.

    A collective that begins as the one before it ends was waiting already, and what it waits for may be done meanwhile.
    """
    call = np.empty(len(order), np.int64)
    call[order] = np.repeat(np.arange(len(begin) - 1), np.diff(begin))
    kept = np.zeros((len(begin) - 1, shape[0]))
    for side, sign in zip(ends, (-1, 1), strict=True):
        np.add.at(kept, (call, side), sign * begun)
    waited = begun > 0
    pause, first = np.full((2, len(kept)), np.iinfo(np.int64).max)
    np.minimum.at(pause, call[waited], (calls.end - calls.start)[waited])
    np.minimum.at(first, call, calls.start)
    last = np.zeros(len(kept), np.int64)
    np.maximum.at(last, call, calls.end)
    silent = np.zeros(kept.shape, np.bool_)
    silent[call, ends[0]] = True
    silent[call[waited], ends[0][waited]] = False
    most = kept.argmax(axis=1)
    alone = (silent.sum(axis=1) == 1) & silent[np.arange(len(most)), most] & (kept.max(axis=1) > 0)
    told = np.flatnonzero(((kept > 0).sum(axis=1) == 1) | alone)
    told = told[np.argsort(first[told])]
    before = np.maximum.accumulate(np.append(0, last[told]))[:-1]
    told = told[first[told] - before > levels.SHARE_SMALL * pause[told]]
    step = calls.step[order[begin[:-1]]]
    cost = np.zeros(shape)
    np.add.at(cost, (most[told], step[told]), pause[told])
    return cost, np.bincount(step[told], minlength=shape[1]) > 0


@numba.njit(cache=True, nogil=True)
def _sum_costs(
    order: Ints, begin: Ints, ends: tuple[Ints, Ints], hops: tuple[Ints, Ints], step: Ints, start: Ints, end: Ints,
    idle: tuple[Floats, Floats], shape: tuple[int, int],
) -> tuple[Floats, NDArray[np.bool_]]:  # fmt: skip
    """By host and step the time between the last hop of each collective and the last one that does not touch a host.

    A rank that has begun to send its own part of a collective has come: the receiver of the last hop is no later than
    that. `hops` are the endpoints of each hop, its sender -1 where ranks share it.
    """
    cost = np.zeros(shape)
    seen = np.zeros(shape[1], np.bool_)
    src, dst = ends
    for c in range(len(begin) - 1):
        own = order[begin[c] : begin[c + 1]]
        last = own[np.argmax(start[own])]
        for side in range(2):
            late = src[last] if side == 0 else dst[last]
            others, until, came, back = np.int64(-1), np.int64(-1), start[last], start[last]
            for i in own:
                if side == 1 and hops[0][i] == hops[1][last]:
                    came = min(came, start[i])
                if side == 0 and hops[0][i] == hops[1][last] and hops[1][i] == hops[0][last] and end[i] > start[last]:
                    back = min(back, start[i])
                if src[i] != late and dst[i] != late and start[i] > others:
                    others, until = start[i], end[i]
            # Those that were done before it began did not wait for it: they are of another collective.
            waited = until > start[last] and src[last] != dst[last]
            if others >= 0:
                seen[step[last]] = True
            if waited:
                cost[late, step[last]] += np.fmin(max(came - others, 0), idle[side][last])
            elif back < start[last]:  # Of two that exchange, the one that has begun waits for the other.
                seen[step[last]] = True
                cost[late, step[last]] += np.fmin(start[last] - back, idle[side][last])
    return cost, seen


def are_of_larger_group(case: Case, hosts: set[str]) -> bool:
    """Whether hosts exchange gradients with each other and with more: of groups of two one is the last by design."""
    gradients = np.array([kind == "dp" for kind in case.calls.kinds], np.bool_)[case.calls.kind]
    ends = zip(case.calls.src[gradients].tolist(), case.calls.dst[gradients].tolist(), strict=True)
    met = [{case.hosts[src], case.hosts[dst]} for src, dst in ends]
    return hosts in met and any(len(pair & hosts) == 1 < len(pair) for pair in met)
