"""From parsed columns to JOBS: lengths are computed from times if both are known; running jobs are separate."""

from __future__ import annotations

import polars as pl

from prism.datacenter.characterize.columns import ColumnMap
from prism.datacenter.characterize.fields import NS
from prism.datacenter.characterize.vocabulary import LIVE_STATES
from prism.records.jobs import JOB_STATES

SYNTHETIC_PREFIX = "synthetic-"
"""How every job id of a generated trace begins."""

_SETTLED = frozenset(
    ["job", "user", "type", "state", "gpus", "submit", "start", "end", "duration", "queue", "gpu_time", "restart"]
)  # fields that JOBS has under these or other names; any other is carried along as text


def settle_jobs(parsed: pl.DataFrame, columns: ColumnMap) -> tuple[pl.DataFrame, dict[str, int]]:
    """JOBS, with every length computed from times if both are known, and the counts made on the way."""
    has = set(parsed.columns)
    texts = [name for name in parsed.columns if name not in _SETTLED]
    given = {
        name: pl.col(name) if name in has else pl.lit(None, pl.Float64) for name in ("duration", "queue", "gpu_time")
    }
    moment = {name: pl.col(name) if name in has else pl.lit(None, pl.Int64) for name in ("submit", "start", "end")}
    text = {
        name: pl.col(name) if name in has else pl.lit(None, dtype)
        for name, dtype in (("job", pl.String()), ("user", pl.String()), ("type", pl.Categorical()))
    }
    start = pl.coalesce(moment["start"], moment["submit"] + (given["queue"] * NS).cast(pl.Int64))
    if columns.whole_window:
        start = start.fill_null(0)
    known = parsed.select(
        *(expression.alias(name) for name, expression in text.items()),
        _name_states(has, columns.whole_window),
        pl.col("gpus").fill_null(0.0),
        moment["submit"].alias("submit_ns"),
        start.alias("start_ns"),
        moment["end"].alias("end_ns"),
        *(expression.alias(f"given_{name}") for name, expression in given.items()),
        *(pl.col(name) for name in texts),
        *([pl.col("restart").alias("restart_s")] if "restart" in has else []),
    )
    live = pl.col("state").is_in(LIVE_STATES)
    if columns.format != "slurm":
        live &= pl.col("end_ns").is_null()  # Slurm gives running jobs the end of their time limit.
    ran = _seconds_between("start_ns", "end_ns")
    running = live & (pl.col("state") == "running")
    gpu_time = (pl.col("gpus") * pl.coalesce("duration_s", "held_s"), pl.col("given_gpu_time"))
    jobs = known.with_columns(
        pl.when(~live).then(pl.coalesce(ran, pl.col("given_duration"))).alias("duration_s"),
        pl.coalesce(_seconds_between("submit_ns", "start_ns").clip(lower_bound=0), "given_queue").alias("queue_s"),
        pl.when(~live).then(pl.col("end_ns")).alias("end_ns"),
        # The run time so far of a running job, if the table has it; otherwise it is computed up to the export.
        pl.when(running).then(pl.col("given_duration")).alias("held_s"),
        (running & pl.col("given_duration").is_null() & pl.col("start_ns").is_not_null()).alias("open"),
    ).with_columns(
        pl.coalesce(*(reversed(gpu_time) if columns.gpu_time_counts else gpu_time)).alias("gpu_time_s"),
        pl.coalesce("end_ns", pl.col("start_ns") + (pl.coalesce("duration_s", "held_s") * NS).cast(pl.Int64)).alias(
            "end_ns"
        ),
    )
    met = _observe(jobs, parsed["gpus"].null_count())
    met["no_state"] = 0 if "state" in has else jobs.height
    return jobs.drop("given_duration", "given_queue", "given_gpu_time", "held_s"), met


def _name_states(has: set[str], whole_window: bool) -> pl.Expr:
    """States as given; without any, a job that started and has no end is running, and the rest is unknown."""
    unknown = pl.lit("unknown", pl.Enum(JOB_STATES))
    if "state" in has:
        return pl.col("state").fill_null(unknown)
    if "end" not in has:
        return unknown.alias("state")
    began = (
        pl.lit(value=True) if whole_window else pl.col("start").is_not_null() if "start" in has else pl.lit(value=False)
    )
    return (
        pl.when(pl.col("end").is_null() & began)
        .then(pl.lit("running", pl.Enum(JOB_STATES)))
        .otherwise(unknown)
        .alias("state")
    )


def close_running(jobs: pl.DataFrame, until_ns: int) -> pl.DataFrame:
    """Jobs that were running at the export, with what they had used until then; they still have no duration."""
    end = pl.max_horizontal(pl.lit(until_ns, pl.Int64), pl.col("start_ns"))
    held = _seconds_between("start_ns", "end_ns")
    return jobs.with_columns(end_ns=end).with_columns(gpu_time_s=pl.col("gpus") * held)


def _seconds_between(first: str, last: str) -> pl.Expr:
    """Seconds between two moments, exact for whole seconds (a division by a billion would leave rounding errors)."""
    ns = pl.col(last) - pl.col(first)
    return (ns // NS).cast(pl.Float64) + (ns % NS) * 1e-9


def _observe(jobs: pl.DataFrame, missing_gpus: int) -> dict[str, int]:
    """Count known problems of traces."""
    live = pl.col("state").is_in(LIVE_STATES)
    given, ran = pl.col("given_duration"), pl.col("duration_s")
    turnaround = _seconds_between("submit_ns", "end_ns")
    waited = (pl.col("queue_s") > 1) & given.is_not_null() & ran.is_not_null()
    counted = jobs.select(
        zero_gpus=(pl.col("gpus") == 0).sum(),
        running=((pl.col("state") == "running") & ran.is_null()).sum(),
        pending=(pl.col("state") == "pending").sum(),
        never_started=(~live & pl.col("start_ns").is_null() & ran.is_null()).sum(),
        no_times=(~live & pl.col("start_ns").is_not_null() & ran.is_null()).sum(),
        early_starts=(pl.col("start_ns") < pl.col("submit_ns")).sum(),
        waited=waited.sum(),
        duration_from_submit=(waited & ((given - turnaround).abs() <= 1) & ((given - ran).abs() > 1)).sum(),
        duration_differs=((given - ran).abs() > 1).sum(),
        gpu_time_given=pl.col("given_gpu_time").is_not_null().sum(),
        # One second of rounding on every GPU is no contradiction.
        gpu_time_differs=(
            (pl.col("given_gpu_time") - pl.col("gpu_time_s")).abs() > 0.01 * pl.col("gpu_time_s") + pl.col("gpus")
        ).sum(),
        synthetic=pl.col("job").head(1).str.starts_with(SYNTHETIC_PREFIX).sum(),
    )
    return {
        "missing_gpus": missing_gpus,
        "checked": jobs.height,
        **{name: int(value or 0) for name, value in counted.row(0, named=True).items()},
    }
