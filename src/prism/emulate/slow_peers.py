"""Virtual ranks that get slow: their compute in the graph takes longer from a step on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from prism.emulate.inside.plan import FaultPlan
from prism.records.ops import OPS
from prism.simulate.graph import Graph

FIRST_LIVE_STEP = 1
"""The graph's step 0 is the live program's step 1: its step 0 also starts the program up and is not held."""


def slow_down(graph: Graph, faults: Sequence[FaultPlan]) -> Graph:
    """The graph with every slow rank in a class of its own, its compute `factor` times as long from its step."""
    for fault in faults:
        if fault.kind == "slow":
            graph = _slow_down_one(graph, fault)
    return graph


def _slow_down_one(graph: Graph, fault: FaultPlan) -> Graph:
    fresh = int(graph.ops["class"].max() or 0) + 1  # type: ignore[arg-type]
    works = pl.col("kind").cast(pl.String).is_in(["compute", "host"])
    late = pl.col("step").fill_null(0) >= fault.step - FIRST_LIVE_STEP
    longer = (pl.col("duration_ns") * fault.factor).round().cast(pl.Int64)
    own = graph.ops.filter(pl.col("class") == graph.ranks["class"][fault.rank]).with_columns(
        pl.lit(fresh, pl.Int32).alias("class"),
        pl.when(works & late).then(longer).otherwise(pl.col("duration_ns")).alias("duration_ns"),
    )
    moved = pl.when(pl.col("rank") == fault.rank).then(pl.lit(fresh, pl.Int32)).otherwise(pl.col("class"))
    ops = OPS.conform(pl.concat([graph.ops, own]), graph.name).sort("class", "seq")
    return replace(graph, ops=ops, ranks=graph.ranks.with_columns(moved.alias("class")))
