"""The weekly trend of a cluster's use, and the changes since last week."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from prism.datacenter.characterize.capacity import follow_allocation
from prism.datacenter.characterize.failures import NOT_RECORDED, list_node_failures
from prism.datacenter.characterize.tally import BIN_NS, BIN_S, DAY_NS, Tally
from prism.datacenter.characterize.vocabulary import FAILED_STATES

SHOWN_WEEKS = 12
_WEEK_DAYS = 7
_BINS_PER_DAY = DAY_NS // BIN_NS

CHANGES = pl.Schema(
    {
        "of": pl.String,
        "name": pl.String,
        "unit": pl.String,
        "before": pl.Float64,
        "now": pl.Float64,
        "change": pl.Float64,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weeks:
    """Weeks counted back from the export: the last one ends on its day (UTC)."""

    trend: pl.DataFrame  # week (its first day), GPU-hours held, jobs ended, failed, lost, queueing; oldest first
    changes: pl.DataFrame  # the last week against the one before: measures, then failures, nodes and users that moved


def follow_weeks(tally: Tally, until_ns: int | None) -> Weeks | None:
    """The trend of the last weeks; None if the trace has no times."""
    flow = follow_allocation(tally)
    if until_ns is None or flow.is_empty():
        return None
    last_day = until_ns // DAY_NS
    trend = _list_weeks(tally, flow, last_day)
    return Weeks(trend=trend, changes=_compare(tally, trend, last_day))


def _ago(day: pl.Expr, last_day: int) -> pl.Expr:
    """Weeks back from the last one, which is 0; days after the export count with it."""
    return ((last_day - day) // _WEEK_DAYS).clip(lower_bound=0).alias("ago")


def _list_weeks(tally: Tally, flow: pl.DataFrame, last_day: int) -> pl.DataFrame:
    failed = pl.col("state").is_in(FAILED_STATES)
    held = flow.group_by(_ago(pl.col("bin") // _BINS_PER_DAY, last_day)).agg(
        gpu_hours=pl.col("busy_gpus").sum() * BIN_S / 3600,
        waiting_gpu_hours=pl.col("waiting_gpus").sum() * BIN_S / 3600,
        hours=pl.len() * BIN_S / 3600,
    )
    ended = tally.days.group_by(_ago(pl.col("day"), last_day)).agg(
        jobs=pl.col("jobs").sum(),
        failed_jobs=pl.col("jobs").filter(failed).sum(),
        lost_gpu_hours=pl.col("gpu_time_s").filter(failed).sum() / 3600,
        queued=pl.col("queued").sum(),
        queue_s=pl.col("queue_s").sum(),
    )
    weeks = held.join(ended, on="ago", how="left").filter(pl.col("ago") < SHOWN_WEEKS).sort("ago", descending=True)
    first = (last_day - _WEEK_DAYS * (pl.col("ago") + 1) + 1).cast(pl.Int32).cast(pl.Date)
    return weeks.with_columns(pl.col("jobs", "failed_jobs", "lost_gpu_hours").fill_null(0)).select(
        week=first,
        days=pl.col("hours") / 24,
        gpu_hours=pl.col("gpu_hours"),
        mean_gpus=pl.col("gpu_hours") / pl.col("hours"),
        jobs=pl.col("jobs"),
        failed_jobs=pl.col("failed_jobs"),
        lost_gpu_hours=pl.col("lost_gpu_hours"),
        mean_queue_s=pl.when(pl.col("queued") > 0).then(pl.col("queue_s") / pl.col("queued")),
        waiting_gpu_hours=pl.col("waiting_gpu_hours"),
    )


def _compare(tally: Tally, trend: pl.DataFrame, last_day: int) -> pl.DataFrame:
    """The last week compared with the one before; empty if there is no whole week before."""
    if trend.height < 2 or trend["days"][-2] < _WEEK_DAYS - 1:
        return pl.DataFrame(schema=CHANGES)
    before, now = trend.row(-2, named=True), trend.row(-1, named=True)
    measures = [
        ("cluster", "GPU-hours held", "GPU-hours", "gpu_hours"),
        ("cluster", "GPU jobs ended", "jobs", "jobs"),
        ("cluster", "GPU jobs failed", "jobs", "failed_jobs"),
        ("cluster", "lost to failed jobs", "GPU-hours", "lost_gpu_hours"),
        ("cluster", "mean queueing", "s", "mean_queue_s"),
    ]
    rows = [
        (
            of,
            name,
            unit,
            before[key],
            now[key],
            None if before[key] is None or now[key] is None else now[key] - before[key],
        )
        for of, name, unit, key in measures
    ]
    reason = pl.col("reason").str.strip_chars().replace("", None)
    named = pl.coalesce(reason, pl.format(f"{{}} {NOT_RECORDED}", pl.col("state").cast(pl.String))).alias("name")
    return pl.concat(
        [
            pl.DataFrame(rows, schema=CHANGES, orient="row"),
            _movers(tally.reason_days.with_columns(named), "failure", "gpu_time_s", last_day),
            _movers(_by_node(tally.on_nodes), "node", "gpu_time_s", last_day),
            _movers(tally.user_days.with_columns(name=pl.col("user")), "user's waiting", "waiting_gpu_s", last_day),
            _movers(tally.user_days.with_columns(name=pl.col("user")), "user's ended jobs", "gpu_time_s", last_day),
        ]
    )


def _by_node(on_nodes: pl.DataFrame) -> pl.DataFrame:
    parts = [
        list_node_failures(part).select(
            pl.lit(part["day"][0], pl.Int64).alias("day"), pl.col("node").alias("name"), "gpu_time_s"
        )
        for part in on_nodes.drop_nulls("day").partition_by("day")
    ]
    empty = pl.DataFrame(schema={"day": pl.Int64, "name": pl.String, "gpu_time_s": pl.Float64})
    return pl.concat([empty, *parts])


def _movers(days: pl.DataFrame, of: str, measure: str, last_day: int, top: int = 3) -> pl.DataFrame:
    """The few names whose GPU-hours changed most from the week before to the last one."""
    ago = days.with_columns(_ago(pl.col("day"), last_day)).filter(pl.col("ago") < 2)
    hours = pl.col(measure) / 3600
    moved = ago.group_by("name").agg(
        before=hours.filter(pl.col("ago") == 1).sum(), now=hours.filter(pl.col("ago") == 0).sum()
    )
    moved = moved.with_columns(change=pl.col("now") - pl.col("before")).filter(pl.col("change").abs() >= 0.1)
    moved = moved.sort(pl.col("change").abs(), "name", descending=[True, False]).head(top)
    return moved.select(pl.lit(of).alias("of"), "name", pl.lit("GPU-hours").alias("unit"), "before", "now", "change")
