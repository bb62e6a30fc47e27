"""Max-min fair rates of flows that are given by the links they cross."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from prism.simulate.links import FlowLinks
from prism.simulate.solving.sharing import fill_rates


def max_min_rates(
    capacity: NDArray[np.float64], flows: FlowLinks, caps: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """The rate of every flow, in the unit of `capacity`."""
    caps = np.full(len(flows.start) - 1, np.inf) if caps is None else caps
    flow = np.repeat(np.arange(len(flows.start) - 1), np.diff(flows.start))
    start = np.zeros(len(capacity) + 1, np.int64)
    np.cumsum(np.bincount(flows.links, minlength=len(capacity)), out=start[1:])
    crossing = flow[np.argsort(flows.links, kind="stable")]
    rates: NDArray[np.float64] = fill_rates(capacity, flows.start, flows.links, start, crossing, caps)
    return rates
