"""A solution as SPANS: what each rank did, stream by stream, with the waiting before transfers set apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from prism.errors import BadConfigError
from prism.records.spans import SPANS
from prism.simulate.graph import label_groups
from prism.simulate.solving.kernel import END, RANK_NOTES, READY, START
from prism.simulate.solving.solver import Solution


def write_spans(solution: Solution, ranks: Sequence[int] | None = None) -> pl.DataFrame:
    """SPANS of the given ranks, or of all; a transfer runs from the arrival of its last member."""
    graph, wiring = solution.graph, solution.wiring
    if not len(solution.state.times):
        raise BadConfigError("the times of single ops were not kept; solve with note_ops=True")
    wanted = np.arange(graph.num_ranks) if ranks is None else np.asarray(ranks, np.int64)
    ops = _describe_ops(solution)
    times = _list_times(solution, np.unique(wiring.cell[wanted]))
    table = pl.DataFrame({"rank": wanted, "solved": wiring.cell[wanted]}).join(times, on="solved").join(ops, on="row")
    kinds = graph.groups.join(label_groups(graph).select("group", "label"), on="group")
    groups = kinds.select(pl.col("rank").cast(pl.Int64), "slot", pl.col("kind").cast(pl.String).alias("pair"), "label")
    table = table.join(groups, on=["rank", "slot"], how="left")
    kind = pl.when(pl.col("slot").is_not_null()).then(pl.coalesce("pair", pl.lit("unknown"))).otherwise("kind")
    main = table.with_columns(kind.alias("kind"), pl.col("ready").alias("from"), pl.col("end").alias("to"))
    waits = table.filter(pl.col("ready") > pl.col("start")).with_columns(
        pl.lit("wait").alias("kind"), pl.col("start").alias("from"), pl.col("ready").alias("to")
    )
    both = pl.concat([main, waits]).select(
        pl.lit(graph.name).alias("job"), "rank", "lane", "kind", "name", "step",
        pl.col("from").alias("start_ns"), pl.col("to").alias("end_ns"),
        pl.when(pl.col("kind") != "wait").then("bytes").alias("bytes"), pl.col("label").alias("group"),
    )  # fmt: skip
    return SPANS.conform(pl.concat([both, _list_steps(solution, wanted)]), "spans").sort("rank", "lane", "start_ns")


def _describe_ops(solution: Solution) -> pl.DataFrame:
    lane = pl.concat_str(pl.lit("stream "), pl.col("stream").cast(pl.String)).alias("lane")
    size = pl.coalesce(pl.col("bytes"), pl.col("sizes").list.sum()).alias("bytes")
    row = pl.col("row").cast(pl.Int64)
    timed = solution.graph.ops.with_row_index("row").filter(~pl.col("kind").is_in(["record", "wait", "alloc", "free"]))
    return timed.select(row, lane, pl.col("kind").cast(pl.String), "name", "step", "slot", size)


def _list_times(solution: Solution, solved: np.ndarray) -> pl.DataFrame:
    """One row per op of each solved rank that is wanted."""
    state, program = solution.state, solution.program
    counts = np.diff(state.ranks[:, RANK_NOTES])[solved]
    rank = np.repeat(solved, counts)
    offset = np.arange(len(rank)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = program.code.class_op_start[solution.wiring.wires.rank_class[rank]]
    at = state.ranks[rank, RANK_NOTES] + offset
    times = {name: state.times[at, column] for name, column in (("start", START), ("ready", READY), ("end", END))}
    return pl.DataFrame({"solved": rank, "row": program.row[first + offset], **times})


def _list_steps(solution: Solution, ranks: np.ndarray) -> pl.DataFrame:
    ends = np.maximum.accumulate(solution.step_end_ns)
    steps = pl.DataFrame(
        {"step": solution.program.steps.astype(np.int32), "start_ns": np.r_[0, ends][:-1], "end_ns": ends}
    )
    return pl.DataFrame({"rank": ranks}).join(steps, how="cross").select(
        pl.lit(solution.graph.name).alias("job"), "rank", pl.lit("steps").alias("lane"), pl.lit("step").alias("kind"),
        pl.concat_str(pl.lit("step "), pl.col("step").cast(pl.String)).alias("name"), "step", "start_ns", "end_ns",
        pl.lit(None, pl.Int64).alias("bytes"), pl.lit(None, pl.String).alias("group"),
    )  # fmt: skip
