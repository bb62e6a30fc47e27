"""Spacing: which of many moments to keep, so that each step has one, and the usual distances around them."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.kernel import kernel
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


@kernel
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


def find_step(times: Times, steps: pl.DataFrame) -> NDArray[np.int32]:
    """The index of the step that each time falls into, -1 for none."""
    if not steps.height:
        return np.full(len(times), -1, np.int32)
    found: NDArray[np.int32] = _look_up(times, steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy())
    return found


@kernel
def _look_up(times: Times, begin: Times, end: Times) -> NDArray[np.int32]:
    """The last stretch that begins before each time, -1 where it is over; times mostly follow each other."""
    found = np.empty(len(times), np.int32)
    at = 0  # stretches that have begun
    for i in range(len(times)):
        while at < len(begin) and begin[at] <= times[i]:
            at += 1
        while at > 0 and begin[at - 1] > times[i]:
            at -= 1
        found[i] = at - 1 if at > 0 and times[i] < end[at - 1] else -1
    return found
