"""The window of a disturbance: the steps in which a measure stays above normal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prism.observe.traffic.medians import scatter

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Window:
    """Steps `first` to `last`, both included, and the mean excess in them."""

    first: int
    last: int
    mean: float
    share: float  # of its steps that are above the threshold

    @property
    def length(self) -> int:
        """Its number of steps."""
        return self.last - self.first + 1

    def overlap(self, other: Window) -> int:
        """The number of steps that both hold."""
        return max(0, min(self.last, other.last) - max(self.first, other.first) + 1)


def find_window(excess: Floats, threshold: float) -> Window | None:
    """The window with the largest sum above `threshold`; missing values (nan) do not count."""
    above = np.where(np.isnan(excess), 0.0, excess - threshold)
    if not len(above) or above.max() <= 0:
        return None
    total = np.concatenate([[0.0], np.cumsum(above)])
    lowest = np.minimum.accumulate(total)
    last = int(np.argmax(total[1:] - lowest[:-1]))
    first = int(np.argmin(total[: last + 1]))
    inside = excess[first : last + 1]
    known = inside[~np.isnan(inside)]
    return Window(first, last, float(known.mean()), float((known > threshold).mean()))


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
