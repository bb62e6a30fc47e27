"""Spacing: which of many moments to keep, so that each step has one, and the usual distances around them."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.traffic.period import Times

NEARBY = levels.MIN_STATISTICS  # steps that show what is usual


def keep_apart(times: Times, weights: Times, distance: float) -> NDArray[np.int64]:
    """Which of the times, in order, to keep, the heaviest first, so that no two are closer than `distance`."""
    return np.flatnonzero(_mark_apart(times, np.argsort(-weights, kind="stable"), distance))


def list_nearby(values: Times) -> Times:
    """For each value those around it, in a row."""
    width = min(NEARBY, len(values))
    first = np.clip(np.arange(len(values)) - width // 2, 0, len(values) - width)
    return np.asarray(values[first[:, None] + np.arange(width)])


@numba.njit(cache=True, nogil=True)
def _mark_apart(times: Times, order: Times, distance: float) -> NDArray[np.bool_]:
    kept = np.zeros(len(times), np.bool_)
    taken = np.zeros(len(times), np.bool_)  # too close to one that is kept
    for i in order:
        if taken[i]:
            continue
        kept[i] = True
        k = i
        while k < len(times) and times[k] - times[i] <= distance:
            taken[k] = True
            k += 1
        k = i
        while k >= 0 and times[i] - times[k] <= distance:
            taken[k] = True
            k -= 1
    return kept
