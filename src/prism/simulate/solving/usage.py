"""What each rank spends its time on: computing, transferring, both at once, or neither."""

from __future__ import annotations

import numpy as np
import polars as pl

from prism.errors import BadConfigError
from prism.simulate.solving.kernel import END, RANK_NOTES, READY, START
from prism.simulate.solving.program import CODE_MASK, COLLECTIVE, COMPUTE, HOST, MARK
from prism.simulate.solving.solver import Solution

USAGE = pl.Schema(
    {
        "rank": pl.Int32,
        "total_ns": pl.Int64,  # the whole run, the same for all ranks
        "compute_ns": pl.Int64,  # some stream computes
        "communication_ns": pl.Int64,  # some transfer is under way; waiting for peers is not counted
        "overlapped_ns": pl.Int64,  # both at once
        "exposed_ns": pl.Int64,  # a transfer is under way and nothing computes
        "host_ns": pl.Int64,  # only the host is busy
        "waiting_ns": pl.Int64,  # in a communication op whose peers have not arrived, while nothing else runs
        "bubble_ns": pl.Int64,  # neither computes, transfers nor host work: waiting, and idle streams
    }
)


def measure_usage(solution: Solution, *, all_ranks: bool = False) -> pl.DataFrame:
    """USAGE of one rank per cell with its `weight` (how many ranks it stands for), or of every rank."""
    state, wiring = solution.state, solution.wiring
    if not len(state.times):
        raise BadConfigError("the times of single ops were not kept; solve with note_ops=True")
    spent = _sweep(_list_edges(solution), solution.total_ns, solution.num_cells)
    spent = spent.with_columns(
        pl.Series("weight", np.bincount(wiring.cell, minlength=solution.num_cells)),
        pl.Series("rank", wiring.representative, pl.Int32),
    )
    if not all_ranks:
        return spent.select(*USAGE, "weight")
    return spent[wiring.cell].with_columns(solution.graph.ranks["rank"]).select(*USAGE)


def sum_usage(usage: pl.DataFrame) -> pl.DataFrame:
    """Mean over all ranks, in nanoseconds and as shares of the run."""
    weight = usage["weight"] if "weight" in usage.columns else pl.Series(np.ones(usage.height))
    columns = [c for c in USAGE if c not in ("rank", "total_ns")]
    means = {c: float(np.average(usage[c].to_numpy(), weights=weight.to_numpy())) for c in columns}
    total = max(float(usage["total_ns"][0]), 1.0)
    rows = [(c.removesuffix("_ns"), value, value / total) for c, value in means.items()]
    return pl.DataFrame(rows, schema={"what": pl.String, "mean_ns": pl.Float64, "share": pl.Float64}, orient="row")


def _list_edges(solution: Solution) -> pl.DataFrame:
    """Begin and end of every activity as +1 and -1 in its column."""
    state, code = solution.state, solution.program.code
    counts = np.diff(state.ranks[:, RANK_NOTES])
    rank = np.repeat(np.arange(solution.num_cells), counts)
    first = code.class_op_start[solution.wiring.wires.rank_class[rank]]
    kind = code.ops[np.arange(len(rank)) - state.ranks[rank, RANK_NOTES] + first, 0] & CODE_MASK
    transfers = (kind >= COLLECTIVE) & (kind < MARK)
    parts = [
        ("compute", kind == COMPUTE, START, END),
        ("host", kind == HOST, START, END),
        ("transfer", transfers, READY, END),
        ("wait", transfers, START, READY),
    ]
    frames = []
    for name, mask, begin, end in parts:
        for column, step in ((begin, 1), (end, -1)):
            frame = pl.DataFrame({"rank": rank[mask], "at": state.times[mask, column]})
            frames.append(frame.with_columns(pl.lit(step, pl.Int32).alias(name)))
    return pl.concat(frames, how="diagonal").fill_null(0)


def _sweep(edges: pl.DataFrame, total_ns: int, num_ranks: int) -> pl.DataFrame:
    """Add up how long each combination of activities lasts on each rank."""
    at = edges.group_by("rank", "at").sum().sort("rank", "at")
    names = ("compute", "host", "transfer", "wait")
    open_ = at.with_columns(
        *(pl.col(n).cum_sum().over("rank") > 0 for n in names),
        (pl.col("at").shift(-1).over("rank") - pl.col("at")).fill_null(0).alias("ns"),
    )
    compute, host, transfer, wait = (pl.col(n) for n in names)
    alone = ~compute & ~transfer & ~host

    def time_of(condition: pl.Expr) -> pl.Expr:
        return pl.col("ns").filter(condition).sum()

    spent = open_.group_by("rank").agg(
        time_of(compute).alias("compute_ns"),
        time_of(transfer).alias("communication_ns"),
        time_of(compute & transfer).alias("overlapped_ns"),
        time_of(transfer & ~compute).alias("exposed_ns"),
        time_of(host & ~compute & ~transfer).alias("host_ns"),
        time_of(alone & wait).alias("waiting_ns"),
        time_of(compute | transfer | host).alias("busy_ns"),
    )
    every = pl.DataFrame({"rank": np.arange(num_ranks)})
    whole = every.join(spent, on="rank", how="left").fill_null(0).sort("rank")
    return whole.with_columns(
        pl.lit(total_ns, pl.Int64).alias("total_ns"), (total_ns - pl.col("busy_ns")).alias("bubble_ns")
    ).drop("rank")
