"""Medians and quantiles in compiled passes: calling numpy takes longer than ordering a few hundred values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from prism.kernel import kernel
from prism.observe.traffic.numbering import group_values


@kernel
def find_median(values: NDArray[np.float64]) -> float:
    """The middle value, or the mean of the two middle ones; puts `values` in another order."""
    half = len(values) // 2
    upper = float(select_nth(values, half))
    if len(values) % 2:
        return upper
    return float((values[:half].max() + upper) / 2.0)


@kernel
def take_median(values: NDArray[np.float64] | NDArray[np.int64]) -> float:
    """The median of values that all are known, left as they are; nan where there are none."""
    return float(find_median(values.astype(np.float64))) if len(values) else np.nan


@kernel
def scatter(values: NDArray[np.float64] | NDArray[np.int64]) -> float:
    """The usual deviation from the median."""
    return float(find_median(np.abs(values - take_median(values))))


@kernel
def interpolate_quantile(values: NDArray[np.float64], share: float) -> float:
    """The value at a quantile, between its two neighbours as numpy puts it; puts `values` in another order."""
    place = share * (len(values) - 1)
    low = int(place)
    below = float(select_nth(values, low))
    if low + 1 == len(values):
        return below
    between, above = place - low, values[low + 1 :].min()
    step = above - below
    return float(above - step * (1 - between)) if between >= 0.5 else float(below + step * between)


@kernel
def quantile_groups(
    values: NDArray[np.float64], number: NDArray[np.int64], count: int, share: float
) -> NDArray[np.float64]:
    """The value at a quantile of each group, the lower of two; `number` is the group of each value."""
    grouped, begin = group_values(values, number, count)
    found = np.full(count, np.nan)
    for g in range(count):
        num = begin[g + 1] - begin[g]
        if num:
            found[g] = select_nth(grouped[begin[g] : begin[g + 1]], int(share * (num - 1)))
    return found


@kernel
def median_groups(values: NDArray[np.float64], number: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """The median of each group, nan where it is empty; `number` is the group of each value."""
    grouped, begin = group_values(values, number, count)
    found = np.full(count, np.nan)
    for g in range(count):
        if begin[g + 1] > begin[g]:
            found[g] = find_median(grouped[begin[g] : begin[g + 1]])
    return found


@kernel
def select_nth(values: NDArray[np.float64], k: int) -> float:
    """The value that is at place k once all are in order; those before it are no larger (Hoare's selection)."""
    low, high = 0, len(values) - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if k <= j:
            high = j
        elif k >= i:
            low = i
        else:
            break
    return float(values[k])
