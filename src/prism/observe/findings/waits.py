"""Waits: what each host costs the collectives of a job, had it come with the others.

A collective goes on when its last member has come. The hops that do not touch a host show when the others had: what is
between them and the last hop is what the host alone costs. Nothing depends on the algorithm (ring, tree, all-to-all),
nor on whether a hop begins with its sender or once both of its ends are ready.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from prism.observe.findings.case import Case, Floats, Ints
from prism.observe.findings.collectives import POINT_TO_POINT
from prism.observe.traffic.numbering import group_by_number, number_keys


@dataclass(frozen=True)
class Waits:
    """By host and step: seconds that all others wait for it alone; `seen` are steps with collectives to judge by."""

    hosts: list[str]
    cost_s: Floats
    seen: NDArray[np.bool_]


def measure_waits(case: Case) -> Waits | None:
    """What each host costs every step; None where no collective has hops between other hosts to compare with."""
    calls = case.calls
    together = np.array([kind not in POINT_TO_POINT for kind in calls.kinds], np.bool_)
    calls = calls.take(together[calls.kind][calls.row])
    if not len(calls.row):
        return None
    names, number = np.unique(np.array(case.hosts, dtype=str), return_inverse=True)
    src, dst = number.astype(np.int64)[calls.src], number.astype(np.int64)[calls.dst]
    group = calls.number_alike(case.stage_of)[calls.row]
    call, found = number_keys((group * (int(calls.place.max()) + 1) + calls.place) * case.steps.height + calls.step)
    order, begin = group_by_number(call, len(found))
    ends = src[calls.row], dst[calls.row]
    cost, seen = _sum_costs(order, begin, ends, calls.step, calls.start, calls.end, (len(names), case.steps.height))
    return Waits(names.tolist(), cost / 1e9, seen) if seen.any() else None


@numba.njit(cache=True, nogil=True)
def _sum_costs(
    order: Ints, begin: Ints, ends: tuple[Ints, Ints], step: Ints, start: Ints, end: Ints, shape: tuple[int, int]
) -> tuple[Floats, NDArray[np.bool_]]:
    """By host and step the time between the last hop of each collective and the last one that does not touch a host."""
    cost = np.zeros(shape)
    seen = np.zeros(shape[1], np.bool_)
    src, dst = ends
    for c in range(len(begin) - 1):
        own = order[begin[c] : begin[c + 1]]
        last = own[np.argmax(start[own])]
        for side in range(2):
            late = src[last] if side == 0 else dst[last]
            others, until = np.int64(-1), np.int64(-1)
            for i in own:
                if src[i] != late and dst[i] != late and start[i] > others:
                    others, until = start[i], end[i]
            if others >= 0:
                seen[step[last]] = True
                # Those that were done before it began did not wait for it: they are of another collective.
                if until > start[last] and src[last] != dst[last]:
                    cost[late, step[last]] += start[last] - others
    return cost, seen
