"""Check what a graph says about itself, before any time is computed: values, members, and calls that must meet."""

from __future__ import annotations

import polars as pl

from prism.errors import GraphError
from prism.records.ops import COLLECTIVES, POINT_TO_POINT
from prism.simulate.graph import Graph
from prism.simulate.matching import check_collectives, check_messages

_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_LONGEST_NS = 10**15  # eleven days: more than any op, and 9,000 of them still fit in 64 bits
_LARGEST_BYTES = 2**50


def check_structure(graph: Graph) -> None:
    """Raise GraphError at the first thing that contradicts itself or could never meet."""
    _check_ranks(graph)
    _check_groups(graph)
    _check_values(graph)
    _check_slots(graph)
    _check_events(graph)
    _check_batches(graph)
    check_collectives(graph)
    check_messages(graph)


def _check_ranks(graph: Graph) -> None:
    if graph.ranks.is_empty():
        raise GraphError(f"graph '{graph.name}' has no ranks")
    expected = pl.Series("rank", range(graph.num_ranks), pl.Int32)
    odd = graph.ranks.filter(graph.ranks["rank"] != expected)
    if odd.height:
        raise GraphError(f"ranks are not numbered 0 to {graph.num_ranks - 1}: rank {odd['rank'][0]} is out of place")
    known = graph.ops["class"].unique()
    lost = graph.ranks.filter(~pl.col("class").is_in(known.implode()))
    if lost.height:
        raise GraphError(f"rank {lost['rank'][0]} runs class {lost['class'][0]}, which has no ops")


def _check_groups(graph: Graph) -> None:
    groups = graph.groups
    absent = groups.filter((pl.col("rank") < 0) | (pl.col("rank") >= graph.num_ranks))
    if absent.height:
        row = absent.row(0, named=True)
        raise GraphError(
            f"group {row['group']} ({row['slot']}) names rank {row['rank']}, "
            f"but the ranks are 0 to {graph.num_ranks - 1}"
        )
    place = pl.int_range(pl.len()).over("group")
    odd = groups.filter(pl.col("position") != place)
    if odd.height:
        row = odd.row(0, named=True)
        raise GraphError(
            f"group {row['group']} ({row['slot']}): positions must count 0, 1, 2, ...; rank {row['rank']}"
            f" has {row['position']}"
        )
    for key, message in ((["group", "rank"], "is twice in group"), (["rank", "slot"], "has two groups in slot")):
        double = groups.filter(pl.struct(key).is_duplicated())
        if double.height:
            row = double.row(0, named=True)
            raise GraphError(f"rank {row['rank']} {message} {row['group' if 'group' in key else 'slot']}")


def _check_values(graph: Graph) -> None:
    kind, comm = pl.col("kind").cast(pl.String), [*COLLECTIVES, *POINT_TO_POINT]
    timed = kind.is_in(["compute", "host"])
    size = pl.coalesce(pl.col("bytes"), pl.col("sizes").list.sum())
    rules = [
        (pl.struct("class", "seq").is_duplicated(), "has the same seq as another op of its class"),
        (timed & pl.col("duration_ns").is_null(), "has no duration_ns"),
        (pl.col("duration_ns") < 0, "has a negative duration_ns"),
        (pl.col("duration_ns") > _LONGEST_NS, "has a duration_ns of more than eleven days"),
        (kind.is_in(comm) & pl.col("slot").is_null(), "names no slot"),
        (kind.is_in(comm) & (kind != "barrier") & size.is_null(), "has no bytes"),
        (size < 0, "has negative bytes"),
        (pl.col("sizes").list.min() < 0, "has a negative size"),
        (size > _LARGEST_BYTES, "moves more than a pebibyte"),
        (kind.is_in(["record", "wait"]) & pl.col("event").is_null(), "names no event"),
        (
            kind.is_in(POINT_TO_POINT) & pl.col("peer").is_null() & pl.col("shift").is_null(),
            "names neither peer nor shift",
        ),
        (pl.col("peer").is_not_null() & pl.col("shift").is_not_null(), "names both peer and shift"),
        (kind.is_in(_ROOTED) & pl.col("peer").is_null(), "names no root (peer)"),
        (pl.col("batch").is_not_null() & ~kind.is_in(comm), "is in a batch but does not communicate"),
    ]
    for bad, message in rules:
        found = graph.ops.filter(bad)
        if found.height:
            raise GraphError(f"{describe_op(found.row(0, named=True))} {message}")


def _check_slots(graph: Graph) -> None:
    """Every slot an op names is filled for every rank of its class, and its peer exists there."""
    used = graph.ops.filter(pl.col("slot").is_not_null())
    sized = graph.groups.with_columns(pl.len().over("group").alias("size"))
    filled = graph.ranks.join(sized.select("rank", "slot", "size", "position", "group"), on="rank")
    need = used.select("class", "slot").unique().join(graph.ranks.select("class", "rank"), on="class")
    empty = need.join(filled, on=["rank", "slot"], how="anti").sort("rank")
    if empty.height:
        row = empty.row(0, named=True)
        op = used.filter((pl.col("class") == row["class"]) & (pl.col("slot") == row["slot"])).row(0, named=True)
        raise GraphError(f"{describe_op(op)} uses slot '{row['slot']}', but rank {row['rank']} is in no such group")
    span = filled.group_by("class", "slot").agg(
        pl.col("size").min().alias("least"),
        pl.col("size").max().alias("most"),
        pl.col("position").min().alias("low"),
        pl.col("position").max().alias("high"),
    )
    wide = used.join(span, on=["class", "slot"], maintain_order="left")
    p2p = pl.col("kind").cast(pl.String).is_in(POINT_TO_POINT)
    alone = (pl.col("peer") == pl.col("low")) & (pl.col("low") == pl.col("high"))
    rules = [
        ((pl.col("peer") < 0) | (pl.col("peer") >= pl.col("least")), "names position {peer} of a group of {least}"),
        (p2p & alone, "names its own position {peer} as the other side"),
        (
            pl.col("shift").is_not_null() & (pl.col("least") != pl.col("most")),
            "uses shift in groups of {least} and {most}",
        ),
        ((pl.col("shift") % pl.col("least")) == 0, "has a shift of {shift}, which is itself in a group of {least}"),
        (pl.col("sizes").list.len() != pl.col("least"), "gives sizes that do not match its group of {least}"),
    ]
    for bad, message in rules:
        found = wide.filter(bad)
        if found.height:
            row = found.row(0, named=True)
            raise GraphError(f"{describe_op(row)} {message.format(**row)}")


def _check_events(graph: Graph) -> None:
    records = (
        graph.ops.filter(pl.col("kind") == "record").group_by("class", "event").agg(pl.col("seq").min().alias("first"))
    )
    waits = graph.ops.filter(pl.col("kind") == "wait").join(
        records, on=["class", "event"], how="left", maintain_order="left"
    )
    early = waits.filter(pl.col("first").is_null() | (pl.col("first") > pl.col("seq")))
    if early.height:
        row = early.row(0, named=True)
        raise GraphError(f"{describe_op(row)} waits for event {row['event']}, which no earlier op records")


def _check_batches(graph: Graph) -> None:
    """Ops of a batch follow each other on one stream."""
    lanes = graph.ops.filter(~pl.col("kind").is_in(["alloc", "free"])).sort("class", "stream", "seq")
    starts = (pl.col("batch") != pl.col("batch").shift(1)).fill_null(True).over("class", "stream")
    runs = lanes.filter(starts & pl.col("batch").is_not_null())
    torn = runs.filter(pl.struct("class", "batch").is_duplicated())
    if torn.height:
        row = torn.row(0, named=True)
        raise GraphError(f"{describe_op(row)}: batch {row['batch']} is torn apart; keep its ops together on one stream")


def describe_op(row: dict[str, object]) -> str:
    """An op in words: its place in the program and its source line."""
    source = f" ({row['source']})" if row.get("source") else ""
    return f"class {row['class']} op {row['seq']} {row['kind']} '{row['name']}'{source}"
