"""Meetings: the collective calls of a job, from hops that end together, and when each member was ready for them.

A member sends its own data first, so a hop begins with its sender, or once both of its ends are ready: one unknown of
the transport. All later pieces wait for the ring, so all hops of a call end together. Who sends has come: the first
hop that a member sends bounds when it was ready, and where a hop waits for both ends so does the first that it takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.findings.case import Case, Floats, Ints
from prism.observe.findings.collectives import POINT_TO_POINT
from prism.observe.jobs.grouping import connect

_NEVER = np.iinfo(np.int64).max
_TWO = 2
_SPREAD_NS = 200_000  # hops of a ring that begin less apart show nothing but the scatter of clocks
_RINGS = 10  # that must show how hops begin
_AT_ONCE = 0.1  # of the time by which hops of a ring begin apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Meetings:
    """One row for each member of each call; times in nanoseconds."""

    call: Ints  # by member, the row of its call below
    endpoint: Ints
    sent: Ints  # when the first hop that it sends began, a very late time where it sends none
    touched: Ints  # when the first hop that it sends or takes began
    step: Ints  # by call
    opened: Ints
    closed: Ints
    hop: Ints  # by first hop of a pair in a call: the row of its sender above
    to: Ints  # and of its receiver
    began: Ints
    ring: Ints  # the call that it is of on its own NICs: a ring or a tree of each
    group: Ints  # by call
    place: Ints  # by call, which of its group's in its step


def find_meetings(case: Case) -> Meetings | None:
    """The collective calls in the steps of a job; None where it has none."""
    calls = case.calls
    kept = np.array([kind not in (*POINT_TO_POINT, "storage") for kind in calls.kinds], np.bool_)
    calls = calls.take(kept[calls.kind][calls.row]) if len(calls.row) else calls
    if not len(calls.row):
        return None
    groups = _group_streams(case)
    group = groups.number[calls.row]
    places = int(calls.place.max()) + 1
    key = (group * case.steps.height + calls.step) * places + calls.place
    call = _end_together(np.unique(key, return_inverse=True)[1].astype(np.int64), group, calls.end)
    count = int(call.max()) + 1
    step, opened, closed = np.zeros(count, np.int64), np.full(count, _NEVER), np.zeros(count, np.int64)
    step[call] = calls.step
    np.minimum.at(opened, call, calls.start)
    np.maximum.at(closed, call, calls.end)
    ends = len(case.hosts)
    src, dst = calls.src[calls.row], calls.dst[calls.row]
    members, row = np.unique(np.concatenate([call * ends + src, call * ends + dst]), return_inverse=True)
    own, other = row[: len(src)].astype(np.int64), row[len(src) :].astype(np.int64)
    asked = _is_asked(own, other, calls.start, groups.answers[calls.row])
    own, other, start, ring = own[asked], other[asked], calls.start[asked], groups.ring[calls.row][asked]
    ring = np.unique(call[asked] * (int(ring.max()) + 1) + ring, return_inverse=True)[1].astype(np.int64)
    of_group = np.zeros(count, np.int64)
    of_group[call] = group
    sent, touched = np.full((2, len(members)), _NEVER)
    np.minimum.at(sent, own, start)
    for side in (own, other):
        np.minimum.at(touched, side, start)
    return Meetings(
        call=members // ends, endpoint=members % ends, sent=sent, touched=touched, step=step, opened=opened,
        closed=closed, hop=own, to=other, began=start,
        ring=ring, group=of_group, place=_count_places(of_group * case.steps.height + step, opened),
    )  # fmt: skip


def _count_places(cell: Ints, opened: Ints) -> Ints:
    """Which of the calls of its group and step each call is, in order of time."""
    order = np.lexsort((opened, cell))
    first = np.flatnonzero(np.diff(cell[order], prepend=-1))
    place = np.empty(len(cell), np.int64)
    place[order] = np.arange(len(cell)) - np.repeat(first, np.diff(np.append(first, len(cell))))
    return place


def waits_for_both(met: Meetings) -> bool | None:
    """Whether hops begin once both of their ends are ready, rather than with their sender; None if that is not seen.

    If they do, the latest member of a ring delays two hops that meet at it, and these begin at one moment.
    """
    rings = int(met.ring.max(initial=-1)) + 1
    order = np.lexsort((met.began, met.ring))
    first = np.flatnonzero(np.diff(met.ring[order], prepend=-1))
    size = np.diff(np.append(first, len(order)))
    last = order[first + size - 1]
    src, dst = met.hop[last][met.ring], met.to[last][met.ring]
    beside = (met.hop == src) | (met.hop == dst) | (met.to == src) | (met.to == dst)
    beside[last] = False
    second = np.zeros(rings, np.int64)
    np.maximum.at(second, met.ring[beside], met.began[beside])
    spread = met.began[last] - met.began[order[first + (size - 1) // 4]]
    told = (second > 0) & (size > 1) & (spread > _SPREAD_NS)
    if told.sum() < _RINGS:
        return None
    return bool(np.median(((met.began[last] - second) / np.maximum(spread, 1))[told]) < _AT_ONCE)


def _is_asked(src: Ints, dst: Ints, start: Ints, answers: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which hops are no answer: of two that pass both ways along an edge of a tree the later one follows the other."""
    span = int(max(src.max(), dst.max())) + 1
    edge = np.unique(np.minimum(src, dst) * span + np.maximum(src, dst), return_inverse=True)[1]
    first = np.full(int(edge.max()) + 1, _NEVER)
    np.minimum.at(first, edge, start)
    return np.asarray(~answers | (start == first[edge]), np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    """By stream the number of its group, and whether it is a tree's, where one way along an edge answers the other."""

    number: Ints
    ring: Ints
    answers: NDArray[np.bool_]


def _group_streams(case: Case) -> _Groups:
    """By stream its group: endpoints that messages of one kind and size connect, over all NICs of the same hosts."""
    calls = case.calls
    routed = np.array([kind == "ep" for kind in calls.kinds], np.bool_)[calls.kind]
    like = np.where(routed, 0, calls.like)
    sized = np.unique(calls.kind * (int(like.max()) + 1) + like, return_inverse=True)[1].astype(np.int64)
    ends, num = len(case.hosts), int(sized.max()) + 1
    own = connect(ends * num, sized * ends + calls.src, sized * ends + calls.dst)[sized * ends + calls.src]
    names: dict[tuple[int, frozenset[str]], int] = {}
    hosts: dict[int, set[str]] = {}
    for g, s, d in zip(own.tolist(), calls.src.tolist(), calls.dst.tolist(), strict=True):
        hosts.setdefault(g, set()).update((case.hosts[s], case.hosts[d]))
    found = [
        names.setdefault((k, frozenset(hosts[g])), len(names))
        for g, k in zip(own.tolist(), sized.tolist(), strict=True)
    ]
    members: dict[int, set[int]] = {}
    for g, s, d in zip(own.tolist(), calls.src.tolist(), calls.dst.tolist(), strict=True):
        members.setdefault(g, set()).update((s, d))
    ways = set(zip(own.tolist(), calls.src.tolist(), calls.dst.tolist(), strict=True))
    answers = [
        len(members[g]) > _TWO and (g, d, s) in ways
        for g, s, d in zip(own.tolist(), calls.src.tolist(), calls.dst.tolist(), strict=True)
    ]
    return _Groups(number=np.array(found, np.int64), ring=own, answers=np.array(answers, np.bool_) & ~routed)


def _end_together(call: Ints, group: Ints, end: Ints) -> Ints:
    """Each hop in the call of its group that usually ends nearest to it: a lost record shifts what is counted."""
    order = np.lexsort((end, call))
    first = np.flatnonzero(np.diff(call[order], prepend=-1))
    size = np.diff(np.append(first, len(call)))
    middle = end[order][first + size // 2]
    of_group = np.zeros(len(first), np.int64)
    of_group[call[order][first]] = group[order][first]
    at = np.empty(len(first), np.int64)
    at[call[order][first]] = middle
    span = int(end.max()) - int(end.min()) + 1
    line = of_group * span + (at - int(end.min()))
    sorted_calls = np.argsort(line, kind="stable")
    line = line[sorted_calls]
    own = group * span + (end - int(end.min()))
    right = np.clip(np.searchsorted(line, own), 1, max(len(line) - 1, 1))
    left = right - 1
    right = np.minimum(right, len(line) - 1)
    nearer = np.where(np.abs(line[right] - own) < np.abs(line[left] - own), right, left)
    found = sorted_calls[nearer]
    found = np.where(of_group[found] == group, found, call)
    return np.unique(found, return_inverse=True)[1].astype(np.int64)


def measure_idle(case: Case, met: Meetings, call: Ints, endpoint: Ints, ready: Ints) -> Floats:
    """How long nothing had ended at members of calls when they were ready; nan where nothing ever had.

    Clocks differ, so what ends at about the moment at which a member is ready, and before its call does, counts too.
    """
    calls = case.calls
    origin, span = int(calls.start.min()), int(calls.end.max() - calls.start.min()) + 1
    at = np.concatenate([calls.src[calls.row], calls.dst[calls.row]])
    done = np.sort(at * span + np.tile(calls.end - origin, 2))
    late = np.clip((met.closed[call] - ready) // 2, 0, levels.MILLISECOND_NS)
    wanted = endpoint * span + np.minimum(ready + late - origin, span - 1)
    last = done[np.maximum(np.searchsorted(done, wanted, side="right") - 1, 0)]
    same = (last >= endpoint * span) & (last <= wanted)
    return np.where(same, np.maximum(wanted - late - last, 0), np.nan).astype(np.float64)
