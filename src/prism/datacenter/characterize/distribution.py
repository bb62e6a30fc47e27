"""Distributions from (value, how many) tables: percentiles, means and cumulative curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The usual statistics of a set of numbers."""

    count: int = 0
    mean: float | None = None
    min: float | None = None
    p10: float | None = None
    p25: float | None = None
    median: float | None = None
    p75: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None

    def to_json(self) -> dict[str, float | int | None]:
        """The document form; "p50" is the median under the name that tables use."""
        return {**asdict(self), "p50": self.median}


@dataclass(frozen=True, slots=True)
class Counted:
    """Ascending values, and how many times each occurs; a value may come more than once."""

    values: Array
    counts: Array


def count_values(table: pl.DataFrame, value: str, count: str, *, scale: float = 1.0) -> Counted:
    """A table's values in ascending order, times `scale`, with how many there are of each."""
    merged = table.group_by(value).agg(pl.col(count).sum()).filter(pl.col(count) > 0).sort(value)
    return _count(merged, value, count, scale)


def split_values(
    ordered: pl.DataFrame, by: str, value: str, count: str, *, scale: float = 1.0
) -> Iterator[tuple[object, Counted]]:
    """The values of every group of a table that is in order of `value`."""
    for part in ordered.partition_by(by, maintain_order=True):
        yield part[by][0], _count(part, value, count, scale)


def find_percentiles(counted: Counted, percents: Sequence[float]) -> Array:
    """Percentiles, interpolated between neighbours as numpy's default does."""
    ends = np.cumsum(counted.counts)
    positions = np.asarray(percents) / 100 * (ends[-1] - 1)
    below = counted.values[np.searchsorted(ends, np.floor(positions), side="right")]
    above = counted.values[np.searchsorted(ends, np.ceil(positions), side="right")]
    return np.asarray(below + (above - below) * (positions - np.floor(positions)))


def describe(counted: Counted, *, mean: float | None = None) -> Distribution:
    """The distribution of counted values; `mean` is given if the sum is known more exactly."""
    values, counts = counted.values, counted.counts
    if not len(values):
        return Distribution()
    p10, p25, p50, p75, p90, p95, p99 = (float(v) for v in find_percentiles(counted, (10, 25, 50, 75, 90, 95, 99)))
    return Distribution(
        count=int(counts.sum()),
        mean=float(values @ counts / counts.sum()) if mean is None else mean,
        min=float(values[0]),
        p10=p10, p25=p25, median=p50, p75=p75, p90=p90, p95=p95, p99=p99,
        max=float(values[-1]),
    )  # fmt: skip


def describe_counts(table: pl.DataFrame, value: str, count: str, *, scale: float = 1.0) -> Distribution:
    """The distribution of a (value, count) table."""
    return describe(count_values(table, value, count, scale=scale))


def trace_cdf(counted: Counted, points: int = 120) -> pl.DataFrame:
    """(value, pct at or below it) at evenly spread points of a log axis, for drawing; empty without values."""
    values = counted.values
    if not len(values):
        return pl.DataFrame(schema={"value": pl.Float64, "pct": pl.Float64})
    ends = np.cumsum(counted.counts)
    low, high = max(float(values[0]), 1.0), max(float(values[-1]), 1.0)
    at = np.unique(np.geomspace(low, high, points)) if high > low else np.array([low])
    at[-1] = high  # geomspace may fall a rounding short of the largest value
    found = np.searchsorted(values, at, side="right")
    below = np.where(found > 0, ends[np.maximum(found, 1) - 1], 0.0)
    return pl.DataFrame({"value": at, "pct": 100 * below / ends[-1]})


def _count(merged: pl.DataFrame, value: str, count: str, scale: float) -> Counted:
    return Counted(merged[value].cast(pl.Float64).to_numpy() * scale, merged[count].cast(pl.Float64).to_numpy())
