"""Nodes that fail more often than their work explains: one test, for job traces and for histories of faults."""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl

BLAMED = pl.Schema({"node": pl.String, "failures": pl.Int64, "expected": pl.Float64, "chance": pl.Float64})


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameConfig:
    """When a node is named."""

    level: float = 0.05  # the chance of naming anybody where all nodes are alike
    least_failures: int = 3


def blame_nodes(on_nodes: pl.DataFrame, work: pl.DataFrame, config: BlameConfig | None = None) -> pl.DataFrame:
    """BLAMED: nodes whose failures neither their jobs nor their GPU-hours explain, worst first.

    `work` has a row for each stratum of jobs that are alike (say, of one size): stratum, jobs, hours, failures, every
    job counted once. `on_nodes` has the same for each node; a job of many nodes counts on each of them.
    If nodes are alike, each failure of a stratum falls on a node with the probability of the node's share of the work,
    so its failures are binomial. Some failures come per job (at its start) and others per hour: a node is named only if
    both shares are too small to explain its count. `chance` is corrected for the number of nodes.
    """
    config = config or BlameConfig()
    total = int(work["failures"].sum())
    num_nodes = on_nodes["node"].n_unique()
    if total == 0 or num_nodes < 2:
        return pl.DataFrame(schema=BLAMED)
    joined = on_nodes.join(work, on="stratum", suffix="_all")

    def expected(measure: str) -> pl.Expr:
        share = pl.when(pl.col(f"{measure}_all") > 0).then(pl.col(measure) / pl.col(f"{measure}_all"))
        return (pl.col("failures_all") * share).sum()

    counts = joined.group_by("node").agg(
        pl.col("failures").sum(), expected=pl.max_horizontal(expected("jobs"), expected("hours"))
    )
    suspects = counts.filter((pl.col("failures") >= config.least_failures) & (pl.col("failures") > pl.col("expected")))
    rows = [
        (node, failures, mean, min(1.0, num_nodes * find_tail(failures, total, mean / total)))
        for node, failures, mean in suspects.iter_rows()
    ]
    named = pl.DataFrame([row for row in rows if row[3] <= config.level], schema=BLAMED, orient="row")
    return named.sort("chance", "node")


def find_tail(count: int, total: int, share: float) -> float:
    """The probability of at least `count` of `total` failures on a node with this share of the work."""
    share = min(share, 1.0)
    if share in (0.0, 1.0):
        return share if count > 0 else 1.0

    def term(k: int) -> float:
        ways = math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1)
        return math.exp(ways + k * math.log(share) + (total - k) * math.log1p(-share))

    return min(1.0, math.fsum(term(k) for k in range(count, total + 1)))
