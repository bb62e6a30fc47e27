"""Times in any unit or notation, as whole nanoseconds."""

from __future__ import annotations

import polars as pl

from prism.errors import BadRowError

NS_PER = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_DIGITS = {"ns": 0, "us": 3, "ms": 6, "s": 9}
_EPOCH_RANGES = (("s", 1e8, 1e11), ("ms", 1e11, 1e14), ("us", 1e14, 1e17), ("ns", 1e17, 9.3e18))
"""Between 1973 and 5138 a time since the epoch shows its unit by its size."""


def to_ns(column: str, dtype: pl.DataType, unit: str) -> pl.Expr:
    """An expression for `column` in nanoseconds, null where it cannot be one; `unit` is "iso" for written dates."""
    value = pl.col(column)
    if isinstance(dtype, pl.Datetime):
        return value.dt.epoch("ns")
    if isinstance(dtype, pl.Duration):
        return value.dt.total_nanoseconds()
    if dtype == pl.String:
        return _written_date(value) if unit == "iso" else _written_number(value, unit)
    if dtype.is_integer():
        return value.cast(pl.Int64, strict=False) * NS_PER[unit]
    if dtype.is_numeric():
        return (value * NS_PER[unit]).round().cast(pl.Int64, strict=False)
    return pl.lit(None, pl.Int64)


def infer_unit(lazy: pl.LazyFrame, column: str, dtype: pl.DataType, where: str, rename_to: str) -> str:
    """The unit of a time column, from its values; raises if they do not show it."""
    if isinstance(dtype, (pl.Datetime, pl.Duration)):
        return "ns"
    if dtype == pl.String:
        first = lazy.select(pl.col(column).drop_nulls().first()).collect().item()
        if first is None or not _is_number(first):
            return "iso"
    numbers = pl.col(column).cast(pl.Float64, strict=False)
    # A zero is a time that the tool did not know.
    known = numbers.filter(numbers != 0)
    low, high, rows = lazy.select(low=known.min(), high=known.max(), rows=numbers.count()).collect().row(0)
    if low is None and rows and rename_to == "end":
        return "ns"
    if low is None:
        raise BadRowError(f"{where}: '{column}' has no value in any row; export it again with times")
    units = [next((u for u, lo, hi in _EPOCH_RANGES if lo <= v < hi), None) for v in (low, high)]
    if units[0] is None or units[1] is None:
        raise BadRowError(
            f"{where}: cannot tell the unit of '{column}' (values {low:g} to {high:g}); "
            f"rename it to {rename_to}_s, {rename_to}_ms, {rename_to}_us or {rename_to}_ns"
        )
    if units[0] != units[1]:
        raise BadRowError(
            f"{where}: '{column}' mixes time units ({low:.0f} looks like {units[0]}, {high:.0f} like {units[1]}); "
            f"export it again in one unit"
        )
    return units[1]


def unit_by_size(value: float) -> str | None:
    """The unit in which `value` would be a present-day time since the epoch."""
    return next((u for u, lo, hi in _EPOCH_RANGES if lo <= value < hi), None)


def _written_number(text: pl.Expr, unit: str) -> pl.Expr:
    text = text.str.strip_chars()
    if unit == "ns":
        return text.cast(pl.Int64, strict=False)
    # Decimal keeps every nanosecond; a float of seconds since the epoch would lose 200 of them.
    exact = text.cast(pl.Decimal(38, _DIGITS[unit]), strict=False)
    return (exact * NS_PER[unit]).cast(pl.Int64, strict=False)


def _written_date(text: pl.Expr) -> pl.Expr:
    text = text.str.strip_chars().str.strip_suffix("Z").str.strip_suffix(" UTC").str.replace("T", " ", literal=True)
    text = text.str.replace_all("/", "-", literal=True)  # SiLK writes 2023/11/14
    form = "%Y-%m-%d %H:%M:%S%.f"
    plain = text.str.to_datetime(form, time_unit="ns", strict=False)
    zoned = text.str.to_datetime(form + "%z", time_unit="ns", strict=False).dt.replace_time_zone(None)
    return pl.coalesce(plain, zoned).dt.epoch("ns")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
