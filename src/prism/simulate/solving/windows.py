"""Time windows in which work goes slower or faster, and when work that runs through them ends.

numba caches compiled callers without looking here: after a change, delete __pycache__ of this package.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit


@njit(cache=True)
def elapse(
    windows: npt.NDArray[np.float64], profiles: npt.NDArray[np.int64], profile: int, start: int, work: int
) -> int:
    """When work of this many nanoseconds at normal speed ends; windows are rows of begin, end and speed."""
    low = profiles[profile]
    high = stop = profiles[profile + 1]
    while low < high:
        middle = (low + high) // 2
        if windows[middle, 1] <= start:
            low = middle + 1
        else:
            high = middle
    now = float(start)
    left = float(work)
    for window in range(low, stop):
        begin, end, speed = windows[window, 0], windows[window, 1], windows[window, 2]
        if begin > now:
            if begin - now >= left:
                break
            left -= begin - now
            now = begin
        if (end - now) * speed >= left:
            return start + int(np.rint(now - start + (left / speed if left > 0.0 else 0.0)))
        left -= (end - now) * speed
        now = end
    return start + int(np.rint(now - start + left))
