"""Counters of parts over time (DCGM, kernel logs), and how much each rose recently; a reset is not a decrease."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_SECOND_NS = 1_000_000_000
_KEY = 1 << 36  # room for seconds in a key that also holds the number of a part: two thousand years
_MOST_COUNTERS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """One counter of all parts: its total rise at each reading, in order of part and time."""

    name: str
    key: Ints  # part and second
    risen: NDArray[np.float64]

    def rise(self, part: Ints, from_ns: int, to_ns: int) -> NDArray[np.float64]:
        """By how much it rose in a window, per part; 0 where it was not read."""
        return self._at(part, to_ns) - self._at(part, from_ns)

    def _at(self, part: Ints, at_ns: int) -> NDArray[np.float64]:
        place = np.searchsorted(self.key, part * _KEY + max(at_ns, 0) // _SECOND_NS, side="right") - 1
        found = np.where(place >= 0, self.risen[np.maximum(place, 0)], 0.0)
        return np.where((place >= 0) & (self.key[np.maximum(place, 0)] // _KEY == part), found, 0.0)


def make_counters(readings: pl.DataFrame, numbers: Mapping[str, int], codes: Sequence[str] = ()) -> tuple[Counter, ...]:
    """Counters from rows of serial, at (ns), counter and value; parts that are not known are left out.

    A `series` column separates counters of one part (GPUs of a host); of `codes` every new value counts as one.
    """
    known = pl.DataFrame({"serial": list(numbers), "part": list(numbers.values())}, schema_overrides={"part": pl.Int64})
    table = readings.drop_nulls(["serial", "at", "counter", "value"]).join(known, on="serial")
    table = table.filter(pl.col("value").is_finite() & (pl.col("at") >= 0))
    if "series" not in table.columns:
        table = table.with_columns(pl.lit("").alias("series"))
    found = []
    for name in table["counter"].unique().sort().to_list()[:_MOST_COUNTERS]:
        rows = table.filter(pl.col("counter") == name).sort("part", "series", "at")
        rise = pl.col("value") - pl.col("value").shift(1).over("part", "series")
        if name in codes:
            rise = ((rise != 0) & (pl.col("value") != 0)).cast(pl.Float64)
        # A value below the previous one means that the counter was reset, so all of it is new.
        rise = pl.when(rise < 0).then(pl.col("value")).otherwise(rise).fill_null(0.0)
        rows = rows.with_columns(rise.alias("rise")).sort("part", "at")
        risen = rows.select(pl.col("rise").cum_sum().over("part")).to_series().to_numpy()
        key = rows["part"].to_numpy() * _KEY + rows["at"].to_numpy() // _SECOND_NS
        found.append(Counter(name=str(name), key=key, risen=risen))
    return tuple(found)


def describe_counters(
    counters: Sequence[Counter], part: Ints, at_ns: int, day_ns: int
) -> dict[str, NDArray[np.float64]]:
    """How much each counter rose in the last week and in the last month, as features."""
    columns = {}
    for counter in counters:
        for days in (7, 30):
            columns[f"counter_{counter.name}_{days}d"] = np.log1p(counter.rise(part, at_ns - days * day_ns, at_ns))
    return columns
