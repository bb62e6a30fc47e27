"""How one file's columns become FLOWS: which column gives what, in which unit, and what makes a row bad."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from prism.errors import BadRowError
from prism.records.flow_aliases import ALIASES, H3C_PACKETS, Alias, find_aliases
from prism.records.flows import FLOWS
from prism.records.shape import describe
from prism.records.times import infer_unit, to_ns

LOST = "_lost"
"""A helper column: true where a value was there and could not be understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPlan:
    """Expressions that make FLOWS columns of one file, the columns they read, and what to tell about it."""

    expressions: dict[str, pl.Expr]
    sources: dict[str, tuple[str, ...]]
    units: dict[str, str]
    notes: tuple[str, ...]

    def select(self, lazy: pl.LazyFrame, schema: pl.Schema) -> pl.LazyFrame:
        """FLOWS columns, with `LOST` where text had to be parsed."""
        risky = [
            pl.col(self.sources[name][0]).is_not_null() & expression.is_null()
            for name, expression in self.expressions.items()
            if FLOWS.columns[name] != pl.String and any(schema[c] == pl.String for c in self.sources[name])
        ]
        lost = [pl.any_horizontal(risky).alias(LOST)] if risky else []
        return lazy.select(*(e.alias(n) for n, e in self.expressions.items()), *lost)

    def bad(self, *, lost: bool) -> pl.Expr:
        """True for a row that breaks a rule of FLOWS."""
        rules = [pl.col(c).is_null() for c in ("start_ns", "src", "dst", "bytes")]
        rules += [pl.col("bytes") < 0]
        rules += [pl.col("end_ns") < pl.col("start_ns")]
        rules += [pl.col("packets") < 0] if "packets" in self.expressions else []
        rules += [pl.col(LOST)] if lost else []
        return pl.any_horizontal(rules).fill_null(False)


def plan_flows(
    lazy: pl.LazyFrame,
    schema: pl.Schema,
    where: str,
    *,
    packet_bytes: int,
    units: dict[str, str] | None = None,
) -> FlowPlan:
    """Map a file's columns to FLOWS; `units` repeats what an earlier plan of the same file inferred."""
    columns = schema.names()
    doubled = next((c for c in columns if "_duplicated_" in c), None)
    if doubled:
        raise BadRowError(f"{where}: column '{doubled.split('_duplicated_')[0]}' appears twice; keep one of them")
    found = find_aliases(columns)
    given = dict(units or {})
    notes: list[str] = []

    def time(name: str) -> pl.Expr:
        column, alias = found[name]
        if alias.unit == "auto" and column not in given:
            given[column] = infer_unit(lazy, column, schema[column], where, name.removesuffix("_ns"))
        return to_ns(column, schema[column], given.get(column, alias.unit))

    _require(found, columns, where)
    expressions: dict[str, pl.Expr] = {"start_ns": time("start_ns")}
    sources: dict[str, tuple[str, ...]] = {"start_ns": (found["start_ns"][0],)}
    if "end_ns" in found:
        expressions["end_ns"], sources["end_ns"] = time("end_ns"), (found["end_ns"][0],)
    elif "duration" in found:
        expressions["end_ns"] = expressions["start_ns"] + time("duration")
        sources["end_ns"] = (found["duration"][0],)
    else:
        expressions["end_ns"], sources["end_ns"] = pl.lit(None, pl.Int64), ()
        notes.append("no end time: end_ns is null")
    for name in ("src", "dst"):
        expressions[name], sources[name] = _address(found[name][0], schema), (found[name][0],)
    _plan_sizes(found, schema, expressions, sources, notes, packet_bytes)
    for name in ("src_port", "dst_port", "qp", "path", "exporter"):
        if name in found:
            column = found[name][0]
            cast = _address(column, schema) if name == "exporter" else _parsed(column, schema, FLOWS.columns[name])
            expressions[name], sources[name] = cast, (column,)
    order = [c for c in FLOWS.columns if c in expressions]
    return FlowPlan(expressions={c: expressions[c] for c in order}, sources=sources, units=given, notes=tuple(notes))


def typed_csv_columns(columns: list[str]) -> dict[str, pl.DataType]:
    """Which columns of a CSV hold whole numbers, so that its parser can type them at once."""
    whole = {"bytes", "packets", "qp", "sampling_rate", "src_port", "dst_port"}
    return {
        column: pl.Int64()
        for column, alias in find_aliases(columns).values()
        if alias.gives in whole or alias.unit == "ns"
    }


def explain_row(plan: FlowPlan, row: dict[str, object], raw: dict[str, object]) -> str:
    """Say in words what is wrong with one row, given its FLOWS values and the file's own."""
    for name, columns in plan.sources.items():
        column = next((c for c in columns if raw.get(c) is None), columns[0]) if columns else ""
        value, given = row[name], raw.get(column)
        if value is None and (given is not None or name in ("start_ns", "src", "dst", "bytes")):
            expected = _expected(name)
            shown = "empty" if given is None else _quoted(given)
            return f"'{column}' is {shown}, expected {expected}"
    for name in ("bytes", "packets"):
        if isinstance(size := row.get(name), int) and size < 0:
            return f"'{plan.sources[name][0]}' is {size}, expected zero or more"
    start, end = row["start_ns"], row["end_ns"]
    return (
        f"'{plan.sources['end_ns'][0]}' is {_quoted(raw.get(plan.sources['end_ns'][0]))}, "
        f"which ends the flow before it starts ({end} < {start} ns)"
    )


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _expected(name: str) -> str:
    if name in ("start_ns", "end_ns"):
        return "a time"
    if name in ("src", "dst", "exporter"):
        return "an address"
    return describe(FLOWS.columns[name])


def _require(found: dict[str, tuple[str, Alias]], columns: list[str], where: str) -> None:
    for name in ("start_ns", "src", "dst"):
        if name not in found:
            known = ", ".join(dict.fromkeys(a.name for a in ALIASES if a.gives == name))
            raise BadRowError(f"{where}: no column for '{name}'; name it one of: {known}")
    if "bytes" not in found and "packets" not in found and not set(H3C_PACKETS) <= set(columns):
        raise BadRowError(f"{where}: no column for 'bytes' or 'packets'; a flow needs a size")


def _plan_sizes(
    found: dict[str, tuple[str, Alias]],
    schema: pl.Schema,
    expressions: dict[str, pl.Expr],
    sources: dict[str, tuple[str, ...]],
    notes: list[str],
    packet_bytes: int,
) -> None:
    """Bytes and packets: counted, or estimated one from the other, scaled up by the sampling rate."""
    rate = pl.lit(1, pl.Int64)
    if "sampling_rate" in found:
        column = found["sampling_rate"][0]
        # Exporters write 0 where they do not know the rate.
        rate = pl.max_horizontal(_parsed(column, schema, pl.Int64()).fill_null(1), pl.lit(1, pl.Int64))
        expressions["sampling_rate"], sources["sampling_rate"] = rate, (column,)
        notes.append(f"bytes and packets multiplied by '{column}'")
    if "packets" in found:
        column = found["packets"][0]
        expressions["packets"], sources["packets"] = _parsed(column, schema, pl.Int64()) * rate, (column,)
    elif set(H3C_PACKETS) <= set(schema):
        parts = [_parsed(c, schema, pl.Int64()) for c in H3C_PACKETS]
        expressions["packets"], sources["packets"] = (
            pl.sum_horizontal(parts, ignore_nulls=False) * rate,
            H3C_PACKETS,
        )
    if "bytes" in found:
        column = found["bytes"][0]
        expressions["bytes"], sources["bytes"] = _parsed(column, schema, pl.Int64()) * rate, (column,)
    else:
        expressions["bytes"] = expressions["packets"] * packet_bytes
        sources["bytes"] = sources["packets"]
        notes.append(f"no bytes: estimated as packets x {packet_bytes}")


def _parsed(column: str, schema: pl.Schema, dtype: pl.DataType | type[pl.DataType]) -> pl.Expr:
    value = pl.col(column)
    if schema[column] == pl.String and dtype != pl.String:
        value = value.str.strip_chars()
    if schema[column].is_float():
        value = pl.when(value == value.round()).then(value)  # 12.5 bytes is a mistake, not 12.
    return value.cast(dtype, strict=False)


def _address(column: str, schema: pl.Schema) -> pl.Expr:
    from prism.records.addresses import binary_to_text

    value = pl.col(column)
    if schema[column] == pl.Binary:
        return value.map_batches(
            lambda s: s.to_frame("b").join(
                s.unique().drop_nulls().to_frame("b").with_columns(
                    t=pl.Series([binary_to_text(b) for b in s.unique().drop_nulls()], dtype=pl.String)
                ), on="b", how="left", maintain_order="left",
            )["t"],
            return_dtype=pl.String,
        )  # fmt: skip
    return value.cast(pl.String)
