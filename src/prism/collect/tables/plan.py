"""How one file's columns become FLOWS: which column gives what, in which unit, and what makes a row bad."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from prism.collect.tables.aliases import (
    H3C_PACKETS,
    KIND_COLUMNS,
    STATUS_COLUMNS,
    TWINS,
    Alias,
    describe_missing,
    find_aliases,
)
from prism.errors import BadRowError
from prism.records.addresses import binary_to_text, numbers_to_text
from prism.records.flows import FLOWS
from prism.records.shape import describe
from prism.records.text_tables import find_value
from prism.records.times import NS_PER, infer_unit, to_ns

LOST = "_lost"
"""A helper column: true where a value was there and could not be understood."""
REVERSE = ("_reverse_bytes", "_reverse_packets")
"""Helper columns of two-way records: what went from `dst` to `src`."""
SAMPLE = "_sample"
"""A helper column: true where the record is one sampled packet."""
_LEAST_IPV4 = 1 << 24  # 1.0.0.0; LIDs and ranks are smaller numbers
_ABSENT = r"^\s*(0(\.0+)?\s*$|0000-00-00)"  # what pmacct writes for an unknown time


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPlan:
    """Expressions that make FLOWS columns of one file, the columns they read, and notes for the user."""

    expressions: dict[str, pl.Expr]
    sources: dict[str, tuple[str, ...]]
    notes: tuple[str, ...]
    extra: dict[str, pl.Expr] = field(default_factory=dict)  # helper columns
    is_flow: pl.Expr | None = None  # false for rows of a tool's output that are not flows
    named_units: dict[str, tuple[str, str]] = field(default_factory=dict)  # times: the column and the unit it names

    def select(self, lazy: pl.LazyFrame, schema: pl.Schema) -> pl.LazyFrame:
        """FLOWS columns, with `LOST` where text had to be parsed."""
        risky = [
            _present(self.sources[name][0], schema) & expression.is_null()
            for name, expression in self.expressions.items()
            if FLOWS.columns[name] != pl.String and any(schema[c] == pl.String for c in self.sources[name])
        ]
        lost = [pl.any_horizontal(risky).alias(LOST)] if risky else []
        if self.is_flow is not None:
            lazy = lazy.filter(self.is_flow)
        made = {**self.expressions, **self.extra}
        return lazy.select(*(e.alias(n) for n, e in made.items()), *lost)

    def bad(self, *, lost: bool) -> pl.Expr:
        """An expression: true for a row that breaks a rule of FLOWS."""
        rules = [pl.col(c).is_null() for c in ("start_ns", "src", "dst", "bytes")]
        rules += [pl.col("bytes") < 0]
        rules += [pl.col("end_ns") < pl.col("start_ns")]
        rules += [pl.col("packets") < 0] if "packets" in self.expressions else []
        rules += [pl.col(LOST)] if lost else []
        return pl.any_horizontal(rules).fill_null(False)


def plan_flows(
    lazy: pl.LazyFrame, schema: pl.Schema, where: str, *, packet_bytes: int, chosen: tuple[Alias, ...] = ()
) -> FlowPlan:
    """Map a file's columns to FLOWS; `chosen` are the columns that the user named."""
    columns = schema.names()
    found = find_aliases(columns, chosen)
    value = None if found else find_value(columns)
    if value is not None:
        raise BadRowError(
            f"{where}: the first line is not a header of names (it holds {value}); export it again with the names in "
            "the first line (nfdump: write it with nfdump -o json, or give the nfcapd file itself)"
        )
    doubled = next((c for c in columns if "_duplicated_" in c), None)
    if doubled:
        raise BadRowError(f"{where}: column '{doubled.split('_duplicated_')[0]}' appears twice; keep one of them")
    missing = next((a.name for a in chosen if a.name.lower() not in {c.lower() for c in columns}), None)
    if missing is not None:
        raise BadRowError(f"{where}: no column '{missing}', which --map names; it has {', '.join(columns[:40])}")
    planner = _Planner(lazy=lazy, schema=schema, where=where, found=found, chosen=chosen)
    planner.require()
    planner.plan_times()
    for name in ("src", "dst"):
        planner.plan_address(name)
    planner.plan_sizes(packet_bytes)
    planner.plan_rest()
    return planner.finish()


def typed_csv_columns(columns: list[str], chosen: tuple[Alias, ...] = ()) -> dict[str, pl.DataType]:
    """Which columns of a CSV hold whole numbers, so that its parser can type them at once."""
    whole = {"bytes", "packets", "qp", "sampling_rate", "src_port", "dst_port", "reverse_bytes", "reverse_packets"}
    return {
        column: pl.Int64()
        for column, alias in find_aliases(columns, chosen).values()
        if alias.gives in whole or alias.unit == "ns"
    }


@dataclass(slots=True, kw_only=True)
class _Planner:
    """Builds a plan column by column."""

    lazy: pl.LazyFrame
    schema: pl.Schema
    where: str
    found: dict[str, tuple[str, Alias]]
    chosen: tuple[Alias, ...] = ()
    expressions: dict[str, pl.Expr] = field(default_factory=dict)
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    extra: dict[str, pl.Expr] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    rate: pl.Expr = field(default_factory=lambda: pl.lit(1, pl.Int64))

    def require(self) -> None:
        if not self.found:
            self._refuse_list()
        for name in ("start_ns", "src", "dst"):
            if name not in self.found:
                raise BadRowError(f"{self.where}: {describe_missing(name, self.schema)}")
        if "bytes" not in self.found and "packets" not in self.found and not set(H3C_PACKETS) <= set(self.schema):
            raise BadRowError(f"{self.where}: {describe_missing('bytes', self.schema)}")

    def _refuse_list(self) -> None:
        """Raise an error that says how to unpack one JSON object that holds all records in a list."""
        for column, value in next(self.lazy.head(1).collect().iter_rows(named=True), {}).items():
            if isinstance(value, list) or str(value).startswith("[{"):
                file = self.where.rpartition("/")[2]
                raise BadRowError(
                    f"{self.where}: one object with a list '{column}'; write its entries one per line: "
                    f"jq -c '.{column}[]' {file}"
                )

    def plan_times(self) -> None:
        start = self._time("start_ns")
        received = next((c for c in self.schema if c.lower().startswith(("time_received", "timereceived"))), None)
        column = self.found["start_ns"][0]
        if received is not None and received != column and column.lower().startswith(("time_flow", "timeflow")):
            # goflow2 writes 0 for an unknown start, and always gives the time at which the record arrived.
            alias = find_aliases([received]).get("start_ns")
            if alias is not None:
                arrived = self._time_of(received, alias[1], "start")
                start = pl.when(start > 0).then(start).otherwise(arrived)
        self._put("start_ns", start, column)
        if "end_ns" in self.found:
            end = self._time("end_ns")
            if (column, self.found["end_ns"][0]) == ("first", "last"):
                # nfcapd swaps start and end for exporters that send the end first (softflowd's IPFIX).
                start, end = pl.min_horizontal(start, end), pl.max_horizontal(start, end)
                self._put("start_ns", start, column)
            # Tools write 0 for an unknown end.
            may_be_absent = received is not None or self.found["end_ns"][1].unit == "auto"
            self._put("end_ns", pl.when(end > 0).then(end) if may_be_absent else end, self.found["end_ns"][0])
        elif "duration" in self.found:
            self._put("end_ns", self.expressions["start_ns"] + self._time("duration"), self.found["duration"][0])
        else:
            self.expressions["end_ns"], self.sources["end_ns"] = pl.lit(None, pl.Int64), ()
            self.notes.append("no end time: end_ns is null")

    def plan_address(self, name: str) -> None:
        column = self.found[name][0]
        twin = next((b for a, b in TWINS.items() if a.lower() == column.lower()), None)
        other = next((c for c in self.schema if twin is not None and c.lower() == twin.lower()), None)
        made = self._address(column)
        self._put(name, made if other is None else pl.coalesce(made, self._address(other)), column)

    def plan_sizes(self, packet_bytes: int) -> None:
        """Bytes and packets: counted, or estimated one from the other, scaled up by the sampling rate."""
        if "sampling_rate" in self.found:
            column = self.found["sampling_rate"][0]
            # Exporters write 0 where they do not know the rate.
            self.rate = pl.max_horizontal(self._whole(column).fill_null(1), pl.lit(1, pl.Int64))
            self._put("sampling_rate", self.rate, column)
            self.notes.append(f"bytes and packets multiplied by '{column}'")
        if "packets" in self.found:
            column = self.found["packets"][0]
            self._put("packets", self._whole(column) * self.rate, column)
        elif set(H3C_PACKETS) <= set(self.schema):
            parts = [self._whole(c) for c in H3C_PACKETS]
            self.expressions["packets"] = pl.sum_horizontal(parts, ignore_nulls=False) * self.rate
            self.sources["packets"] = H3C_PACKETS
        if "bytes" in self.found:
            column = self.found["bytes"][0]
            self._put("bytes", self._whole(column) * self.rate, column)
        else:
            self.expressions["bytes"] = self.expressions["packets"] * packet_bytes
            self.sources["bytes"] = self.sources["packets"]
            self.notes.append(f"no bytes: estimated as packets x {packet_bytes}")
        for name in ("reverse_bytes", "reverse_packets"):
            if name in self.found and "reverse_bytes" in self.found:
                self.extra[f"_{name}"] = self._whole(self.found[name][0]) * self.rate

    def plan_rest(self) -> None:
        for name in ("src_port", "dst_port", "qp"):
            if name in self.found:
                column = self.found[name][0]
                self._put(name, _parsed(column, self.schema, FLOWS.columns[name]), column)
        if "path" in self.found:
            column = self.found["path"][0]
            is_list = isinstance(self.schema[column], (pl.List, pl.Array))
            words = pl.col(column).cast(pl.List(pl.String)).list.join(">") if is_list else pl.col(column)
            self._put("path", words.cast(pl.String), column)
        if "exporter" in self.found:
            self.plan_address("exporter")
        kind = next((c for c in KIND_COLUMNS if c in self.schema), None)
        if kind is not None:
            text = pl.col(kind).cast(pl.String)
            self.extra[SAMPLE] = (text.str.contains("SFLOW", literal=True) | (text == "1")).fill_null(False)

    def finish(self) -> FlowPlan:
        status = next((c for c in STATUS_COLUMNS if c in self.schema), None)
        order = [c for c in FLOWS.columns if c in self.expressions]
        return FlowPlan(
            expressions={c: self.expressions[c] for c in order},
            sources=self.sources,
            notes=tuple(self.notes),
            extra=self.extra,
            is_flow=None if status is None else (pl.col(status) == "OK").fill_null(True),
            named_units=self._find_named_units(),
        )

    def _find_named_units(self) -> dict[str, tuple[str, str]]:
        """Times whose unit is known only from the name of their column."""
        times = ("start_ns", "end_ns") if "end_ns" in self.found else ("start_ns", "duration")
        return {
            name: (column, alias.unit)
            for name, (column, alias) in self.found.items()
            if name in times
            and alias.unit in NS_PER
            and alias not in self.chosen
            and not self.schema[column].is_temporal()
        }

    def _put(self, name: str, expression: pl.Expr, column: str) -> None:
        self.expressions[name], self.sources[name] = expression, (column,)

    def _time(self, name: str) -> pl.Expr:
        column, alias = self.found[name]
        return self._time_of(column, alias, name.removesuffix("_ns"))

    def _time_of(self, column: str, alias: Alias, called: str) -> pl.Expr:
        unit = alias.unit
        if unit == "auto":
            unit = infer_unit(self.lazy, column, self.schema[column], self.where, called)
        return to_ns(column, self.schema[column], unit)

    def _whole(self, column: str) -> pl.Expr:
        return _parsed(column, self.schema, pl.Int64())

    def _address(self, column: str) -> pl.Expr:
        value, dtype = pl.col(column), self.schema[column]
        if dtype == pl.Binary:
            return value.map_batches(_binary_addresses, return_dtype=pl.String)
        if dtype.is_integer() and self._holds_ipv4_numbers(column):
            self.notes.append(f"'{column}' holds IPv4 addresses as numbers; they are written out")
            return value.map_batches(numbers_to_text, return_dtype=pl.String)
        return value.cast(pl.String)

    def _holds_ipv4_numbers(self, column: str) -> bool:
        """Whether whole numbers are IPv4 addresses (ClickHouse's Parquet): none is small enough for a LID or a rank."""
        low, high = self.lazy.select(pl.col(column).min().alias("a"), pl.col(column).max().alias("b")).collect().row(0)
        if low is None or high < _LEAST_IPV4:
            return False
        if low < _LEAST_IPV4 or high >= 1 << 32:
            raise BadRowError(
                f"{self.where}: '{column}' holds numbers from {low} to {high}, neither all IPv4 addresses nor all "
                f"small identifiers; export addresses as text (ClickHouse: toString({column}))"
            )
        return True


def _binary_addresses(values: pl.Series) -> pl.Series:
    unique = values.unique().drop_nulls()
    text = pl.Series([binary_to_text(b) for b in unique], dtype=pl.String)
    named = pl.DataFrame({"b": unique, "t": text})
    return values.to_frame("b").join(named, on="b", how="left", maintain_order="left")["t"]


def explain_row(plan: FlowPlan, row: dict[str, object], raw: dict[str, object]) -> str:
    """What is wrong with one row, in words, given its FLOWS values and the file's original ones."""
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


def _present(column: str, schema: pl.Schema) -> pl.Expr:
    """Whether a value is there; tools write some absent times as a zero or as a date of zeros."""
    value = pl.col(column)
    if schema[column] != pl.String:
        return value.is_not_null()
    return (value.is_not_null() & ~value.str.contains(_ABSENT)).fill_null(False)


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _expected(name: str) -> str:
    if name in ("start_ns", "end_ns"):
        return "a time (a date, or a number with a decimal point)"
    if name in ("src", "dst", "exporter"):
        return "an address"
    return describe(FLOWS.columns[name])


def _parsed(column: str, schema: pl.Schema, dtype: pl.DataType | type[pl.DataType]) -> pl.Expr:
    value = pl.col(column)
    if schema[column] == pl.String and dtype != pl.String:
        value = value.str.strip_chars().str.replace(r"\.0+$", "")
    if schema[column].is_float():
        value = pl.when(value == value.round()).then(value)  # 12.5 bytes is a mistake, not 12.
    return value.cast(dtype, strict=False)
