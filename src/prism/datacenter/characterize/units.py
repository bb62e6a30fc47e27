"""Checks the units of a table's numbers: converts them if the real unit is certain, otherwise refuses the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import polars as pl

from prism.datacenter.characterize.columns import ColumnMap
from prism.datacenter.characterize.fields import NS, TIME_UNITS
from prism.errors import BadFileError

DAY_S = 86_400.0
_YEAR_S = 365 * DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Plausible:
    """Limits of plausible jobs."""

    median_duration_s: float = 60 * DAY_S
    longest_s: float = 5 * _YEAR_S
    span_s: float = 20 * _YEAR_S  # from the first to the last time of one table
    gpus: float = 200_000.0  # of one job
    distinct: int = 20  # different values that must agree before a unit counts as certain


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCheck:
    """Units that differ from the column names, and the remarks for the reader."""

    units: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def apply(self, columns: ColumnMap) -> ColumnMap:
        """The columns with the units that were found."""
        return replace(columns, units={**columns.units, **self.units})


def check_units(
    raw: pl.DataFrame, parsed: pl.DataFrame, columns: ColumnMap, where: str, limits: Plausible | None = None
) -> UnitCheck:
    """Check a table's first rows, as text and as parsed; raises if the numbers are impossible in the assumed units."""
    limits = limits or Plausible()
    found = _compare_duration(raw, parsed, columns)
    for name in ("submit", "start", "end", "duration", "queue"):
        if (
            name in raw.columns
            and name not in columns.units
            and name not in found
            and _all_thousands(raw[name], limits)
        ):
            found[name] = "ms"
    notes = tuple(
        f"'{columns.column_of[name]}' is in {unit}, not in seconds ({_reason(name, found)}), and was read so."
        for name, unit in found.items()
    )
    _refuse_implausible(parsed, columns, found, where, limits)
    return UnitCheck(units=found, notes=notes)


def _reason(name: str, found: Mapping[str, str]) -> str:
    if name == "duration" and found["duration"] != "ms":
        return "end minus start proves it"
    return "every value is a whole thousand, or end minus start proves it"


def _is_bare(text: pl.Series) -> bool:
    """Whether every non-empty cell is a number."""
    numbers = text.cast(pl.Float64, strict=False)
    return numbers.null_count() < len(text) and bool(text.filter(numbers.is_null()).drop_nulls().is_empty())


def _compare_duration(raw: pl.DataFrame, parsed: pl.DataFrame, columns: ColumnMap) -> dict[str, str]:
    """The unit of the duration column, if end minus start shows that it is not seconds."""
    if not {"start", "end", "duration"} <= set(parsed.columns) or "duration" in columns.units:
        return {}
    if not _is_bare(raw["duration"]):
        return {}
    ran = (parsed["end"] - parsed["start"]).cast(pl.Float64) / NS
    ratio = (parsed["duration"] / ran).filter((ran >= 60) & (parsed["duration"] > 0)).drop_nulls()
    if len(ratio) < 3:
        return {}
    low, high = ratio.quantile(0.1) or 0.0, ratio.quantile(0.9) or 0.0
    for unit, scale in TIME_UNITS.items():
        expected = NS / scale  # a second in that unit
        if unit != "s" and 0.97 * expected <= low and high <= 1.03 * expected:
            return {"duration": unit}
    return {}


def _all_thousands(text: pl.Series, limits: Plausible) -> bool:
    """Whether a column of small numbers holds only whole thousands: seconds would hold others, too."""
    if not _is_bare(text):
        return False
    numbers = text.cast(pl.Float64, strict=False).drop_nulls()
    numbers = numbers.filter(numbers > 0)
    # Numbers of today's size since 1970 are known by their size alone.
    small = len(numbers) > 0 and float(numbers.max() or 0) < 1e11  # type: ignore[arg-type]
    return small and numbers.n_unique() >= limits.distinct and bool((numbers % 1000 == 0).all())


def _refuse_implausible(
    parsed: pl.DataFrame, columns: ColumnMap, found: Mapping[str, str], where: str, limits: Plausible
) -> None:
    lengths = parsed["duration"].drop_nulls() if "duration" in parsed.columns and "duration" not in found else None
    if lengths is not None and len(lengths) and "duration" not in columns.units:
        median, longest = float(lengths.median() or 0), float(lengths.max() or 0)  # type: ignore[arg-type]
        if median > limits.median_duration_s or longest > limits.longest_s:
            column = columns.column_of["duration"]
            raise BadFileError(
                f"{where}: as seconds, '{column}' has a median of {median / DAY_S:,.0f} days and goes up to "
                f"{longest / _YEAR_S:,.1f} years; say what unit it is in, for example --map duration={column}:ms"
            )
    most = float(parsed["gpus"].max() or 0)  # type: ignore[arg-type]
    if most > limits.gpus:
        column = columns.column_of["gpus"]
        raise BadFileError(
            f"{where}: '{column}' goes up to {most:,.0f} GPUs for one job; say what unit it is in, for "
            f"example --map gpus={column}:milli or :percent"
        )
    times = [parsed[name].drop_nulls() for name in ("submit", "start", "end") if name in parsed.columns]
    times = [column for column in times if len(column)] if not set(found) & {"submit", "start", "end"} else []
    if times:
        first, last = min(int(t.min()) for t in times), max(int(t.max()) for t in times)  # type: ignore[arg-type]
        refuse_span((last - first) / NS, columns, where, limits)


def refuse_span(span_s: float, columns: ColumnMap, where: str, limits: Plausible | None = None) -> None:
    """Raise if the times of a table span more than the lifetime of a cluster."""
    limits = limits or Plausible()
    if span_s > limits.span_s:
        name = next(name for name in ("submit", "start", "end") if name in columns.column_of)
        raise BadFileError(
            f"{where}: its times span {span_s / _YEAR_S:,.0f} years; say what unit they are in, for example "
            f"--map {name}={columns.column_of[name]}:ms, or fix the rows that lie far off"
        )
