"""Work: how long each rank of a pipeline computes, read where nothing else can hold it up.

In steady state a slow rank and its neighbours look alike, because a send waits for its receiver. But the first
micro-batch of a step finds every rank idle, and so does the last one on its way back: what passes between a message in
and the message out is compute alone.
"""

from __future__ import annotations

import polars as pl

from prism.observe.layout import StageMap

WORK = pl.Schema({"endpoint": pl.UInt32, "stage": pl.Int32, "step": pl.Int32, "phase": pl.String, "work_ns": pl.Int64})


def measure_work(messages: pl.DataFrame, voices: pl.DataFrame, stages: StageMap, steps: pl.DataFrame) -> pl.DataFrame:
    """WORK of every rank and step: first forward, the turn at the last stage, last backward."""
    if not stages.chains or steps.is_empty():
        return pl.DataFrame(schema=WORK)
    last = max(stages.stage.values())
    table = pl.DataFrame(
        {"e": list(stages.stage), "s": list(stages.stage.values())}, schema={"e": pl.UInt32, "s": pl.Int32}
    )
    pipe = voices.filter(pl.col("kind") == "pp").select("pair", "size_class", "src", "dst")
    sent = (
        messages.join(pipe, on=["pair", "size_class"])
        .join(table.rename({"e": "src", "s": "from_stage"}), on="src")
        .join(table.rename({"e": "dst", "s": "to_stage"}), on="dst")
        .sort("start_ns")
        .join_asof(steps.select("index", pl.col("start_ns").alias("step_ns"), pl.col("end_ns").alias("until_ns")),
                   left_on="start_ns", right_on="step_ns")
        .drop_nulls("step_ns")
        .filter(pl.col("start_ns") < pl.col("until_ns"))
    )  # fmt: skip
    hop = pl.col("to_stage") - pl.col("from_stage")
    forward = sent.filter(hop == 1)
    back = sent.filter(hop == -1)
    first_in = _edge_of(forward, "dst", "first")
    first_out = _edge_of(forward, "src", "first")
    back_first_out = _edge_of(back, "src", "first")
    back_last_in = _edge_of(back, "dst", "last")
    back_last_out = _edge_of(back, "src", "last")
    begin = first_out.join(steps.select(step="index", at="start_ns"), on="step").select(
        "endpoint", "step", "phase_out", pl.col("at").alias("ready")
    )
    begin = begin.join(table.filter(pl.col("s") == 0).rename({"e": "endpoint"}), on="endpoint").drop("s")
    turned = back_first_out.join(table.filter(pl.col("s") == last).rename({"e": "endpoint"}), on="endpoint").drop("s")
    parts = [
        begin.with_columns(phase=pl.lit("forward")),
        _between(first_in, first_out, "forward"),
        _between(first_in, turned, "turn"),
        _between(back_last_in, back_last_out, "backward"),
    ]  # fmt: skip
    work = pl.concat([p.select("endpoint", "step", "phase", "phase_out", "ready") for p in parts])
    return (
        work.with_columns(work_ns=pl.col("phase_out") - pl.col("ready"))
        .filter(pl.col("work_ns") > 0)
        .join(table.rename({"e": "endpoint", "s": "stage"}), on="endpoint")
        .select(pl.col(c).cast(t) for c, t in WORK.items())
    )


def _edge_of(messages: pl.DataFrame, side: str, which: str) -> pl.DataFrame:
    """The first or last message of each endpoint and step on one side: when it arrived, or when it left."""
    column = "end_ns" if side == "dst" else "start_ns"
    pick = pl.col(column).min() if which == "first" else pl.col(column).max()
    name = "ready" if side == "dst" else "phase_out"
    return messages.group_by(pl.col(side).alias("endpoint"), pl.col("index").alias("step")).agg(pick.alias(name))


def _between(arrived: pl.DataFrame, left: pl.DataFrame, phase: str) -> pl.DataFrame:
    return arrived.join(left, on=["endpoint", "step"]).with_columns(phase=pl.lit(phase))
