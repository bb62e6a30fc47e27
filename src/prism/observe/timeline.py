"""The timeline: what each rank sent and received, and what it computed in between, as SPANS."""

from __future__ import annotations

import polars as pl

from prism.observe.diagnose import Diagnosis, JobDiagnosis, open_case
from prism.records.spans import SPANS

_SHORTEST_COMPUTE_NS = 20_000  # shorter pauses between messages are not worth a span


def build_timeline(diagnosis: Diagnosis) -> pl.DataFrame:
    """SPANS of every job; a rank is the position of its endpoint in the job's list."""
    parts = [_spans_of(diagnosis, job) for job in diagnosis.jobs]
    return pl.concat(parts) if parts else SPANS.empty()


def _spans_of(diagnosis: Diagnosis, job: JobDiagnosis) -> pl.DataFrame:
    case = open_case(diagnosis.traffic, job, 0)
    ranks = pl.DataFrame({"endpoint": job.observed.endpoints}).with_row_index("rank").with_columns(
        pl.col("endpoint").cast(pl.UInt32), pl.col("rank").cast(pl.Int32)
    )  # fmt: skip
    busy = _communication(case.messages, ranks)
    spans = pl.concat([busy, _compute(busy), _steps(job)])
    numbered = _number_steps(spans, job.steps)
    return SPANS.conform(numbered.with_columns(job=pl.lit(job.id)), job.id).sort("rank", "lane", "start_ns")


def _communication(messages: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """One span per rank for messages of one kind that overlap: channels and directions of one transfer."""
    sides = [
        messages.join(ranks, left_on=side, right_on="endpoint").select(
            "rank", "kind", "start_ns", "end_ns", "bytes", pl.lit(verb).alias("verb")
        )
        for side, verb in (("src", "send"), ("dst", "receive"))
    ]
    ordered = pl.concat(sides).sort("rank", "kind", "start_ns")
    reach = pl.col("end_ns").cum_max().shift(1).over("rank", "kind")
    fresh = (pl.col("start_ns") >= reach).fill_null(True)
    return (
        ordered.with_columns(fresh.cum_sum().over("rank", "kind").alias("span"))
        .group_by("rank", "kind", "span", maintain_order=True)
        .agg(
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            pl.col("bytes").sum(),
            _verb().alias("verb"),
        )
        .select("rank", pl.col("kind").alias("lane"), "kind", (pl.col("kind") + " " + pl.col("verb")).alias("name"),
                "start_ns", "end_ns", "bytes")
    )  # fmt: skip


def _verb() -> pl.Expr:
    both = pl.col("verb").n_unique() > 1
    return pl.when(both).then(pl.lit("exchange")).otherwise(pl.col("verb").first()).first()


def _compute(busy: pl.DataFrame) -> pl.DataFrame:
    """What lies between a rank's messages."""
    ordered = busy.sort("rank", "start_ns")
    reach = pl.col("end_ns").cum_max().shift(1).over("rank")
    gaps = ordered.with_columns(reach.alias("from_ns")).filter(
        pl.col("start_ns") - pl.col("from_ns") > _SHORTEST_COMPUTE_NS
    )
    return gaps.select(
        "rank",
        pl.lit("compute").alias("lane"),
        pl.lit("compute").alias("kind"),
        pl.lit("compute").alias("name"),
        pl.col("from_ns").alias("start_ns"),
        pl.col("start_ns").alias("end_ns"),
        pl.lit(None, pl.Int64).alias("bytes"),
    )


def _steps(job: JobDiagnosis) -> pl.DataFrame:
    return job.steps.select(
        pl.lit(0, pl.Int32).alias("rank"),
        pl.lit("steps").alias("lane"),
        pl.lit("step").alias("kind"),
        ("step " + pl.col("index").cast(pl.String)).alias("name"),
        "start_ns",
        "end_ns",
        pl.lit(None, pl.Int64).alias("bytes"),
    )


def _number_steps(spans: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    cut = steps.select(pl.col("start_ns").alias("step_ns"), pl.col("index").alias("step")).sort("step_ns")
    return spans.sort("start_ns").join_asof(cut, left_on="start_ns", right_on="step_ns").drop("step_ns")
