"""The window of a disturbance: the steps in which a measure stays above normal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prism.kernel import kernel
from prism.observe.traffic.medians import scatter

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Window:
    """Steps `first` to `last`, both included, and the mean excess in them."""

    first: int
    last: int
    mean: float = 0.0
    share: float = 1.0  # of its steps that are above the threshold

    @property
    def length(self) -> int:
        """Its number of steps."""
        return self.last - self.first + 1


def find_window(excess: Floats, threshold: float) -> Window | None:
    """The window with the largest sum above `threshold`; missing values (nan) do not count."""
    first, last, mean, share = _find_stretch(excess, threshold)
    return Window(first, last, mean, share) if last >= first else None


@kernel
def _find_stretch(excess: Floats, threshold: float) -> tuple[int, int, float, float]:
    """The steps with the largest sum above a threshold, their mean, and the share above it; the last is -1 if none."""
    first, last, begin, total, lowest, most = 0, -1, 0, 0.0, 0.0, 0.0
    for i in range(len(excess)):
        total += 0.0 if np.isnan(excess[i]) else excess[i] - threshold
        if total - lowest > most:
            first, last, most = begin, i, total - lowest
        if total < lowest:
            begin, lowest = i + 1, total
    if last < first:
        return first, last, 0.0, 0.0
    known = excess[first : last + 1]
    known = known[~np.isnan(known)]
    return first, last, known.mean(), (known > threshold).mean()


def spread_of(values: Floats) -> float:
    """The usual deviation, unmoved by outliers: scaled so that it equals the standard deviation of normal noise."""
    known = values[~np.isnan(values)]
    return float(1.4826 * scatter(known)) if len(known) else 0.0


def quantile_rows(values: Floats, share: float, axis: int) -> Floats:
    """The lower value at a quantile along an axis, nan left out; nan where nothing is known."""
    ordered = np.sort(values, axis=axis)  # nan last
    count = (~np.isnan(values)).sum(axis=axis)
    at = np.floor(share * np.maximum(count - 1, 0)).astype(np.int64)
    picked: Floats = np.take_along_axis(ordered, np.expand_dims(at, axis), axis).squeeze(axis)
    return picked
