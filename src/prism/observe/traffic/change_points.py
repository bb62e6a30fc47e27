"""Bayesian online change-point detection (Adams and MacKay, 2007) over many series at once."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from prism.kernel import kernel

_HAZARD = 1 / 100  # a change every so many values, beforehand
_SURE = 0.5  # posterior that a run begins here; more likely than not
_MOST_RUNS = 64  # run lengths kept alive; the unlikeliest go first
_UNLIKELY = 1e-5  # run lengths below this are dropped
_LONGEST = 512  # values after which a run's statistics count no further
_PRIOR_KAPPA, _PRIOR_ALPHA, _PRIOR_BETA = 1.0, 1.0, 0.03  # a run is far steadier than the series it is cut from


def find_changes(values: NDArray[np.float64], begin: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Where a new run begins; series i is values[begin[i]:begin[i + 1]], each scaled to mean 0 and deviation 1."""
    out = np.zeros(len(values), np.bool_)
    if len(values):
        _find_all(values, begin, _list_heights(), out)
    return out


@cache
def _list_heights() -> NDArray[np.float64]:
    """Student's t density at its middle, times the root of beta, by the size of a run."""
    found = []
    for size in range(_LONGEST + 1):
        alpha, kappa = _PRIOR_ALPHA + size / 2, _PRIOR_KAPPA + size
        height = math.exp(math.lgamma(alpha + 0.5) - math.lgamma(alpha)) / math.sqrt(2 * math.pi * alpha)
        found.append(height * math.sqrt(alpha * kappa / (kappa + 1)))
    return np.array(found)


@kernel
def _find_all(
    values: NDArray[np.float64], begin: NDArray[np.int64], heights: NDArray[np.float64], out: NDArray[np.bool_]
) -> None:
    chance = np.empty(_MOST_RUNS + 1)
    mean = np.empty(_MOST_RUNS + 1)
    beta = np.empty(_MOST_RUNS + 1)
    size = np.empty(_MOST_RUNS + 1, np.int64)
    for i in range(len(begin) - 1):
        low, high = begin[i], begin[i + 1]
        if high - low < 2:
            continue
        middle, spread = values[low:high].mean(), values[low:high].std()
        if spread <= 0:
            continue
        num = 1
        chance[0], mean[0], beta[0], size[0] = 1.0, 0.0, _PRIOR_BETA, 0
        for t in range(low, high):
            x = (values[t] - middle) / spread
            num, fresh = _step(x, num, chance, mean, beta, size, heights)
            out[t] = t > low and fresh > _SURE


@kernel
def _step(
    x: float, num: int, chance: NDArray[np.float64], mean: NDArray[np.float64], beta: NDArray[np.float64],
    size: NDArray[np.int64], heights: NDArray[np.float64],
) -> tuple[int, float]:  # fmt: skip
    """Take in one value: how many run lengths live on, and the posterior that a run begins with this value."""
    total = 0.0
    for h in range(num):
        kappa = _PRIOR_KAPPA + size[h]
        grown = beta[h] + kappa * (x - mean[h]) ** 2 / (2 * (kappa + 1))
        chance[h] *= (1 - _HAZARD) * heights[size[h]] * _fall(beta[h], grown, size[h])
        beta[h] = grown
        mean[h] += (x - mean[h]) / (kappa + 1)
        if size[h] < _LONGEST:
            size[h] += 1
        total += chance[h]
    first = _PRIOR_BETA + _PRIOR_KAPPA * x**2 / (2 * (_PRIOR_KAPPA + 1))
    fresh = _HAZARD * heights[0] * _fall(_PRIOR_BETA, first, 0)
    total += fresh
    kept = 0
    for h in range(num):
        share = chance[h] / total
        if share > _UNLIKELY:
            chance[kept], mean[kept], beta[kept], size[kept] = share, mean[h], beta[h], size[h]
            kept += 1
    if kept == _MOST_RUNS:
        worst = np.argmin(chance[:kept])
        kept -= 1
        chance[worst], mean[worst], beta[worst], size[worst] = chance[kept], mean[kept], beta[kept], size[kept]
    fresh /= total
    chance[kept], mean[kept], beta[kept], size[kept] = fresh, x / (_PRIOR_KAPPA + 1), first, 1
    return kept + 1, fresh


@kernel
def _fall(beta: float, grown: float, size: int) -> float:
    """Student's t density of a value over its height; `grown` is what the value makes of beta.

    The density falls with (beta / grown) ** (alpha + 0.5), and twice that power is a whole number.
    """
    ratio, power, left = beta / grown, 1.0, size + 3
    while left:
        if left & 1:
            power *= ratio
        ratio *= ratio
        left >>= 1
    return math.sqrt(power / beta)
