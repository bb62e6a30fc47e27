"""Times whose column is named after one unit and holds another, such as milliseconds in a column `start_ns`."""

from __future__ import annotations

import polars as pl

from prism.errors import BadRowError
from prism.records.times import NS_PER

_PRESENT_S = (1_262_304_000, 2_524_608_000)  # seconds since the epoch, 2010 to 2050
_LEAST_ROWS = 20  # rows that must agree before they decide about a table
_IMPOSSIBLE_GBIT_PER_S = 100_000  # of one endpoint; NVLink 5 gives a GPU 14,400 (NVIDIA, Blackwell)
_NEAR_ZERO_NS = 10**10  # times of simulated captures, and seconds since 1970 that were read as nanoseconds
_CALLED = {"start_ns": "start", "end_ns": "end", "duration": "duration"}


def check_units(flows: pl.DataFrame, named: dict[str, tuple[str, str]], where: str) -> tuple[str, ...]:
    """A note where times fit another unit than their columns' names say; raises where no network is that fast.

    `named` gives for `start_ns`, `end_ns` and `duration` the file's column and the unit in its name. Times may count
    from any moment, so a capture that merely starts near zero is left alone.
    """
    if "start_ns" not in named or flows.height < _LEAST_ROWS:
        return ()
    column, unit = named["start_ns"]
    low, high = flows.select(low=pl.col("start_ns").min(), high=pl.col("start_ns").max()).row(0)
    looks = _find_present_unit(low / NS_PER[unit], high / NS_PER[unit])
    if looks is None or NS_PER[looks] <= NS_PER[unit]:
        return ()
    remedy = _name_remedy(named, looks)
    rate = _fastest_sender(flows)
    if rate > _IMPOSSIBLE_GBIT_PER_S:
        raise BadRowError(
            f"{where}: '{column}' holds no times in {unit}: an endpoint would send {rate / 1000:,.0f} Tbit/s, and the "
            f"values look like {looks} since 1970; {remedy}"
        )
    if high < _NEAR_ZERO_NS:
        return ()
    return (f"{where}: '{column}' in {unit} lies in 1970, and its values look like {looks}; if they are, {remedy}",)


def _find_present_unit(low: float, high: float) -> str | None:
    """The unit in which both numbers are times since the epoch of these decades."""
    first, last = _PRESENT_S
    per_s = {unit: NS_PER["s"] // ns for unit, ns in NS_PER.items()}
    return next((u for u, num in per_s.items() if first * num <= low and high < last * num), None)


def _fastest_sender(flows: pl.DataFrame) -> float:
    """Gbit/s that the busiest endpoint sends on average, from the first to the last time of the table."""
    first, last = flows.select(pl.col("start_ns").min(), pl.max_horizontal("start_ns", "end_ns").max().alias("b")).row(
        0
    )
    sent = flows.group_by("src").agg(pl.col("bytes").sum())["bytes"].max()
    return 8 * float(sent) / max(last - first, 1) if isinstance(sent, int) else 0.0


def _name_remedy(named: dict[str, tuple[str, str]], unit: str) -> str:
    columns = [(_CALLED[name], column) for name, (column, _) in named.items()]
    mapped = ",".join(f"{called}={column}:{unit}" for called, column in columns)
    return f"pass --map {mapped}, or rename to {', '.join(f'{called}_{unit}' for called, _ in columns)}"
