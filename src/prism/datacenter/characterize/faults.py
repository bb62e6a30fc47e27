"""Node faults: when machines were down, how long repair took, and which of them keep failing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from prism.datacenter.characterize.distribution import Distribution, describe_counts
from prism.datacenter.characterize.fields import parse_moments
from prism.errors import BadFileError, BadRowError

FAULTS = pl.Schema(
    {
        "node": pl.String,
        "start_h": pl.Float64,  # hours since the trace's own zero
        "end_h": pl.Float64,  # null: not repaired within the trace
        "class": pl.String,
    }
)
_MONTH_H = 30 * 24
_RELATIVE_H = 20 * 365 * 24  # smaller values, before 1990 as Unix time, are hours since observation began


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultStudy:
    """Statistics of a fleet's fault history."""

    faults: int
    nodes: int
    nodes_known: bool  # False: only nodes that failed are known, so rates per node are upper bounds
    nodes_hit: int
    span_hours: float
    hours_between_faults: Distribution
    node_mtbf_hours: float
    repair_hours: Distribution
    unrepaired: int
    down_pct: float  # of node-time
    repeat_nodes: int
    repeat_fault_pct: float  # of faults, on nodes that failed more than once
    top_tenth_fault_pct: float  # of faults, on the worst tenth of the nodes that failed
    classes: pl.DataFrame  # class, faults, repair_median_h, down_h
    months: pl.DataFrame  # month (30 days each), faults
    offenders: pl.DataFrame  # node, faults, down_h


def read_faults(path: Path) -> pl.DataFrame:
    """FAULTS from InfiniteHBD's events (JSON) or from a CSV of node, start and end."""
    try:
        head = path.read_bytes()[:64].lstrip()
    except OSError as error:
        raise BadFileError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    return _read_events(path) if head[:1] == b"[" else _read_table(path)


def study_faults(faults: pl.DataFrame, nodes: int | None) -> FaultStudy:
    """Describe a fault history; `nodes` is the size of the fleet, with those that never failed."""
    if faults.is_empty():
        raise BadFileError("the fault file holds no faults; leave it out")
    hit = faults["node"].n_unique()
    if nodes is not None and nodes < hit:
        raise BadRowError(f"the fault file names {hit} nodes, more than the {nodes} of the fleet; raise --nodes")
    first, last = _observed(faults)
    span = max(last - first, 1e-9)
    closed = faults.with_columns(pl.col("end_h").fill_null(last), repair_h=pl.col("end_h") - pl.col("start_h"))
    gaps = faults.sort("start_h").select(gap=pl.col("start_h").diff()).drop_nulls().with_columns(one=pl.lit(1))
    per_node = closed.group_by("node").agg(faults=pl.len(), down_h=(pl.col("end_h") - pl.col("start_h")).sum())
    per_node = per_node.sort("faults", "down_h", "node", descending=[True, True, False])
    repeated = per_node.filter(pl.col("faults") > 1)
    fleet = nodes if nodes is not None else hit
    return FaultStudy(
        faults=faults.height,
        nodes=fleet,
        nodes_known=nodes is not None,
        nodes_hit=hit,
        span_hours=span,
        hours_between_faults=describe_counts(gaps, "gap", "one"),
        node_mtbf_hours=fleet * span / faults.height,
        repair_hours=describe_counts(closed.drop_nulls("repair_h").with_columns(one=pl.lit(1)), "repair_h", "one"),
        unrepaired=faults["end_h"].null_count(),
        down_pct=100 * _down_hours(closed) / (fleet * span),
        repeat_nodes=repeated.height,
        repeat_fault_pct=100 * float(repeated["faults"].sum()) / faults.height,
        top_tenth_fault_pct=100 * float(per_node.head(max(1, round(hit / 10)))["faults"].sum()) / faults.height,
        classes=closed.group_by("class")
        .agg(
            faults=pl.len(),
            repair_median_h=pl.col("repair_h").median(),
            down_h=(pl.col("end_h") - pl.col("start_h")).sum(),
        )
        .sort("faults", "class", descending=[True, False]),
        months=faults.group_by(month=((pl.col("start_h") - first) // _MONTH_H).cast(pl.Int64) + 1)
        .agg(faults=pl.len())
        .sort("month"),
        offenders=per_node.head(20),
    )


def _observed(faults: pl.DataFrame) -> tuple[float, float]:
    """First and last hour of the history; if times are relative, observation began at zero."""
    first, last = faults.select(pl.col("start_h").min(), pl.max_horizontal("start_h", "end_h").max().alias("last")).row(
        0
    )
    return (0.0 if 0 <= first < _RELATIVE_H else float(first)), float(last)


def _down_hours(closed: pl.DataFrame) -> float:
    """Node-hours down, where faults of one node that overlap count once."""
    ordered = closed.sort("node", "start_h")
    before = pl.col("end_h").cum_max().shift(1).over("node")
    fresh = pl.max_horizontal("start_h", before)
    return float(ordered.select((pl.col("end_h") - fresh).clip(lower_bound=0).sum()).item())


def _read_events(path: Path) -> pl.DataFrame:
    """InfiniteHBD's fault_start and fault_end events, in days, paired per node and description."""
    try:
        events = json.loads(path.read_bytes())
        rows = [
            (
                str(e["node_id"]),
                float(e["event_time"]) * 24,
                str(e["event_type"]),
                str(e["fault_type"]["Class"]),
                str(e["fault_type"]["Desc"]),
            )
            for e in events
        ]
    except (ValueError, RecursionError) as error:
        raise BadFileError(f"{path}: not JSON that can be read ({error}); export it again") from None
    except (KeyError, TypeError):
        raise BadFileError(
            f"{path}: events need node_id, event_time, event_type and fault_type; check the file"
        ) from None
    table = pl.DataFrame(rows, schema=["node", "hour", "event", "class", "what"], orient="row")
    unknown = table.filter(~pl.col("event").is_in(["fault_start", "fault_end"]))
    if unknown.height:
        raise BadRowError(f"{path}: event_type is {unknown['event'][0]!r}, expected fault_start or fault_end")
    order = pl.int_range(pl.len()).over("node", "class", "what")
    starts = table.filter(pl.col("event") == "fault_start").with_columns(turn=order)
    ends = table.filter(pl.col("event") == "fault_end").with_columns(turn=order)
    paired = starts.join(ends, on=["node", "class", "what", "turn"], how="left", suffix="_end")
    return paired.select("node", start_h="hour", end_h="hour_end").with_columns(paired["class"]).select(FAULTS.names())


def _read_table(path: Path) -> pl.DataFrame:
    """A CSV of faults: node, start, end and, where known, class."""
    try:
        table = pl.read_csv(path, infer_schema=False)
    except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        raise BadFileError(
            f"{path}: not a table of faults ({str(error).splitlines()[0][:120]}); give CSV or JSON"
        ) from None
    names = {name.strip().lower(): name for name in table.columns}
    found = {
        wanted: next((names[n] for n in known if n in names), None)
        for wanted, known in (
            ("node", ("node", "node_id", "host", "hostname")),
            ("start", ("start", "start_time", "fault_start", "begin")),
            ("end", ("end", "end_time", "fault_end", "repaired")),
            ("class", ("class", "fault_class", "type", "reason")),
        )
    }
    if found["node"] is None or found["start"] is None:
        raise BadFileError(
            f"{path}: needs columns 'node' and 'start' (and 'end', 'class'); it has {', '.join(table.columns)}"
        )
    columns = {"node": table[found["node"]]}
    for wanted in ("start", "end"):
        name = found[wanted]
        text = table[name] if name else pl.Series([None] * table.height, dtype=pl.String)
        hours = parse_moments(text, None).ns / 3.6e12
        if (hours.is_null() & text.is_not_null()).any():
            row = int((hours.is_null() & text.is_not_null()).arg_max() or 0)
            raise BadRowError(f"{path} line {row + 2}: '{name}' is {text[row]!r}, expected a time")
        if wanted == "start" and hours.null_count():
            raise BadRowError(
                f"{path} line {int(hours.is_null().arg_max() or 0) + 2}: '{name}' is empty, expected a time"
            )
        columns[f"{wanted}_h"] = hours
    given = table[found["class"]] if found["class"] else pl.Series([None] * table.height, dtype=pl.String)
    faults = pl.DataFrame({**columns, "class": given.fill_null("unknown")}).cast(FAULTS)
    backwards = (faults["end_h"] < faults["start_h"]).fill_null(value=False)
    if backwards.any():
        raise BadRowError(
            f"{path} line {int(backwards.arg_max() or 0) + 2}: the fault ends before it starts; fix the row"
        )
    return faults
