"""Medians inside of compiled passes: numpy's takes longer to call than a few hundred values take to order."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray


@numba.njit(cache=True, nogil=True)
def find_median(values: NDArray[np.float64]) -> float:
    """The middle value, or the mean of the two middle ones; puts `values` in another order."""
    half = len(values) // 2
    upper = float(_select(values, half))
    if len(values) % 2:
        return upper
    return float((values[:half].max() + upper) / 2.0)


@numba.njit(cache=True, nogil=True)
def _select(values: NDArray[np.float64], k: int) -> float:
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
