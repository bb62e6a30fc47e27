"""Phase 3: steps from data-parallel bursts, and each endpoint's timeline."""

from __future__ import annotations

import polars as pl

from prism.observe.steps.cutting import STEPS
from prism.records.spans import SPANS


def find_step_ends(messages: pl.DataFrame) -> pl.DataFrame:
    """STEPS of one job: a step ends with the last flow of its data-parallel burst.

    `messages` are the job's, with kind and segment. Pairs that were cut into the usual number of segments count; where
    no pair is data parallel, all do.
    """
    dp = messages.filter(pl.col("kind") == "dp")
    bursts = (
        (messages if dp.is_empty() else dp)
        .group_by("pair", "segment")
        .agg(pl.col("end_ns").max())
        .with_columns(
            pl.col("segment").rank("dense").over("pair").alias("nth"), pl.len().over("pair").alias("segments")
        )
    )
    if bursts.is_empty():
        return pl.DataFrame(schema=STEPS)
    usual = bursts.unique("pair")["segments"].mode().max()
    ends = bursts.filter(pl.col("segments") == usual).group_by("nth").agg(pl.col("end_ns").max()).sort("end_ns")
    steps = ends.select(pl.col("end_ns").shift(1).alias("start_ns"), "end_ns").drop_nulls()
    return (
        steps.filter(pl.col("end_ns") > pl.col("start_ns"))
        .with_row_index("index")
        .select(pl.col(c).cast(t) for c, t in STEPS.items())
    )


def draw_timeline(job: str, messages: pl.DataFrame, members: list[int], steps: pl.DataFrame) -> pl.DataFrame:
    """SPANS of one job: what each endpoint sent and received, compute between, and the steps."""
    ranks = pl.DataFrame({"endpoint": members}, schema={"endpoint": pl.UInt32}).with_row_index("rank")
    busy = pl.concat(
        [
            messages.join(ranks, left_on=side, right_on="endpoint").select(
                pl.col("rank").cast(pl.Int32), pl.col("kind").alias("lane"), "kind",
                (pl.col("kind") + f" {verb}").alias("name"), "start_ns", "end_ns", "bytes",
            )
            for side, verb in (("src", "send"), ("dst", "receive"))
        ]
    ).sort("rank", "start_ns")  # fmt: skip
    compute = (
        busy.with_columns(pl.col("end_ns").cum_max().shift(1).over("rank").alias("from_ns"))
        .filter(pl.col("start_ns") > pl.col("from_ns"))
        .select("rank", *(pl.lit("compute").alias(c) for c in ("lane", "kind", "name")),
                pl.col("from_ns").alias("start_ns"), pl.col("start_ns").alias("end_ns"),
                pl.lit(None, pl.Int64).alias("bytes"))
    )  # fmt: skip
    bars = steps.select(
        pl.lit(0, pl.Int32).alias("rank"), pl.lit("steps").alias("lane"), pl.lit("step").alias("kind"),
        ("step " + pl.col("index").cast(pl.String)).alias("name"), "start_ns", "end_ns",
        pl.lit(None, pl.Int64).alias("bytes"),
    )  # fmt: skip
    numbered = (
        pl.concat([busy, compute, bars])
        .sort("start_ns")
        .join_asof(steps.select(step="index", at="start_ns"), left_on="start_ns", right_on="at")
        .with_columns(job=pl.lit(job))
    )
    return SPANS.conform(numbered, job).sort("rank", "lane", "start_ns")
