"""Spans from messages: those that overlap or touch are one span; the gaps between them are spans too."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from prism.kernel import kernel

Ints = NDArray[np.int64]


@kernel
def join_touching(
    out: Ints, into: Ints, count: int, start: Ints, end: Ints, size: Ints, touch_ns: int
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Spans of `count` lanes: lane, begin, end, bytes, and 1 where anything is sent, 2 where received, 3 for both.

    Messages are in order of start; each is on the lane that it goes `out` of and on the one that it comes `into`, or
    on none, -1. On a lane those that overlap or are no further apart than `touch_ns` are one span.
    """
    most = 2 * len(start)
    lane, begin, final = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    total, verb = np.zeros(most, np.int64), np.zeros(most, np.int64)
    now = np.full(count, -1, np.int64)  # the span that each lane is in
    num = 0
    for i in range(len(start)):
        for side in range(2):
            at = out[i] if side == 0 else into[i]
            if at < 0:
                continue
            span = now[at]
            if span < 0 or start[i] > final[span] + touch_ns:
                span = now[at] = num
                lane[span], begin[span], final[span] = at, start[i], end[i]
                num += 1
            final[span] = max(final[span], end[i])
            total[span] += size[i]
            verb[span] |= side + 1
    order = np.argsort(lane[:num], kind="mergesort")
    return lane[order], begin[order], final[order], total[order], verb[order]


@kernel
def reach_before(rank: Ints, end: Ints) -> Ints:
    """The latest end of all that comes before each row of the same rank; -1 for none. Rows of a rank are together."""
    reach = np.empty(len(end), np.int64)
    for i in range(len(end)):
        first = i == 0 or rank[i] != rank[i - 1]
        reach[i] = -1 if first else max(reach[i - 1], end[i - 1])
    return reach
