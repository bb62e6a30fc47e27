"""How concurrent transfers share links: max-min fairness by progressive filling."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from prism.simulate.cluster import IntArray

FloatArray = NDArray[np.float64]

# Rates that differ by less than this share of themselves are one level: symmetric flows freeze together.
_SAME = 1e-9


@numba.njit(cache=True)
def fill_rates(
    capacity: FloatArray,
    flow_start: IntArray,
    flow_links: IntArray,
    link_start: IntArray,
    link_flows: IntArray,
    caps: FloatArray,
) -> FloatArray:
    """The max-min fair rate of every flow, in the unit of `capacity`; `caps` bounds what a flow can use itself.

    All rates rise together; when a link is full its flows keep their rate, when a flow meets its cap it keeps it.
    A flow that crosses no link gets its cap. `link_start` and `link_flows` say which flows cross each link.
    """
    rate = np.full(len(caps), -1.0)
    left = capacity.copy()
    active = np.diff(link_start)
    busy = np.flatnonzero(active)
    by_cap = np.argsort(caps)
    next_cap = 0
    while True:
        while next_cap < len(by_cap) and rate[by_cap[next_cap]] >= 0:
            next_cap += 1
        level = caps[by_cap[next_cap]] if next_cap < len(by_cap) else np.inf
        kept = 0
        for link in busy:
            if active[link] > 0:
                busy[kept] = link
                kept += 1
                level = min(level, max(left[link], 0.0) / active[link])
        busy = busy[:kept]
        if next_cap == len(by_cap):
            return rate
        upto = level * (1 + _SAME)
        for position in range(next_cap, len(by_cap)):
            flow = by_cap[position]
            if caps[flow] > upto:
                break
            if rate[flow] < 0:
                _freeze(flow, caps[flow], rate, left, active, flow_start, flow_links)
        for link in busy:
            # Divided as above, so that the link that set the level passes whatever the rounding.
            if active[link] > 0 and max(left[link], 0.0) / active[link] <= upto:
                for position in range(link_start[link], link_start[link + 1]):
                    flow = link_flows[position]
                    if rate[flow] < 0:
                        _freeze(flow, level, rate, left, active, flow_start, flow_links)


@numba.njit(cache=True)
def _freeze(
    flow: int,
    level: float,
    rate: FloatArray,
    left: FloatArray,
    active: IntArray,
    flow_start: IntArray,
    flow_links: IntArray,
) -> None:
    rate[flow] = level
    for position in range(flow_start[flow], flow_start[flow + 1]):
        link = flow_links[position]
        left[link] -= level
        active[link] -= 1
