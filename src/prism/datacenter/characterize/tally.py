"""Counts and sums of a batch of jobs that can be added up: the tally of two halves is the tally of the whole.

Lengths of time are kept as whole milliseconds with how many jobs had each, so percentiles stay exact. When these
tables grow past `MAX_VALUES` rows, lengths are rounded to ten significant bits (0.1 % at most), which again adds up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from prism.datacenter.characterize.vocabulary import FAILED_STATES, INFRASTRUCTURE, LIVE_STATES
from prism.records.jobs import JOB_STATES

BIN_S = 900  # quarter hours: every UTC offset in use is a multiple
BIN_NS = BIN_S * 1_000_000_000
DAY_NS = 86_400 * 1_000_000_000
MAX_VALUES = 1_000_000
SIGNIFICANT_BITS = 10
_MS_BITS = 42  # 139 years

_STATE = pl.Enum(JOB_STATES)
# Categories are compared as numbers, so merging many tallies stays cheap.
_TYPE = pl.Categorical()
_GROUP: Mapping[str, pl.DataType | type[pl.DataType]] = {"type": _TYPE, "state": _STATE, "bucket": pl.Int64}
_KEYS: Mapping[str, Mapping[str, pl.DataType | type[pl.DataType]]] = {
    "cells": {"type": _TYPE, "state": _STATE, "gpus": pl.Float64},
    "durations": {**_GROUP, "ms": pl.Int64},
    "queues": {**_GROUP, "ms": pl.Int64},
    "bins": {"bin": pl.Int64},
    "users": {"user": pl.String},
    "days": {"day": pl.Int64, "state": _STATE},
    "user_days": {"day": pl.Int64, "user": pl.String},
    "reason_days": {"day": pl.Int64, "state": _STATE, "reason": pl.String},
    "reasons": {"state": _STATE, "reason": pl.String, "ms": pl.Int64},
    "restarts": {"reason": pl.String, "ms": pl.Int64},
    "on_nodes": {"day": pl.Int64, "bucket": pl.Int64, "node_list": pl.String},
}
_SUMS: Mapping[str, tuple[str, ...]] = {
    "cells": ("jobs", "timed", "queued", "duration_s", "queue_s", "gpu_time_s", "timed_gpus"),
    "durations": ("jobs",),
    "queues": ("jobs",),
    "bins": (
        "submitted", "submitted_gpu_jobs", "failed", "waiting_in", "waiting_in_s", "waiting_out", "waiting_out_s",
        "busy_in", "busy_in_s", "busy_out", "busy_out_s",
    ),
    "users": ("jobs", "gpu_jobs", "gpu_time_s", "queued", "queue_s", "waiting_gpu_s"),
    "days": ("jobs", "gpu_time_s", "queued", "queue_s"),
    "user_days": ("jobs", "gpu_time_s", "queued", "queue_s", "waiting_gpu_s"),
    "reason_days": ("jobs", "gpu_time_s"),
    "reasons": ("jobs", "gpus", "gpu_time_s"),
    "restarts": ("jobs",),
    "on_nodes": ("jobs", "held_s", "failures", "gpu_time_s", "broken", "broken_s"),
}  # fmt: skip
_COUNTS = ("jobs", "timed", "queued", "submitted", "submitted_gpu_jobs", "failed", "gpu_jobs", "failures", "broken")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Everything the study needs to know of the jobs seen so far."""

    cells: pl.DataFrame  # per type, state and GPU count
    durations: pl.DataFrame  # per type, state, size bucket and length
    queues: pl.DataFrame
    bins: pl.DataFrame  # per quarter hour (UTC): arrivals, failures, GPUs entering and leaving queue and cluster
    users: pl.DataFrame
    days: pl.DataFrame  # GPU jobs per day (UTC) of their end, else of their submission, and state
    user_days: pl.DataFrame
    reason_days: pl.DataFrame
    reasons: pl.DataFrame  # failed jobs per reason and time to failure
    restarts: pl.DataFrame
    on_nodes: pl.DataFrame  # GPU jobs per day, size and node list: all, failed, and failed by the infrastructure
    rounded: bool = False


def empty_tally() -> Tally:
    """The tally of no jobs."""
    return _build({})


def tally_jobs(jobs: pl.DataFrame) -> Tally:
    """The tally of one batch of JOBS with durations, queues and GPU time; at most 4,095 types."""
    jobs = jobs.with_columns(pl.col("type").cast(_TYPE))
    types = jobs["type"].unique().drop_nulls().cast(pl.String).sort()
    frame = _prepare(jobs, types).lazy()
    tables = dict(zip(("cells", "durations", "queues", "bins", "users"), _collect(frame, types), strict=True))
    days = jobs.lazy().filter(pl.col("gpus") > 0).with_columns(day=pl.coalesce("end_ns", "submit_ns") // DAY_NS)
    tables |= _tally_days(days.drop_nulls("day"), with_reasons="reason" in jobs.columns)
    failed = days.filter(pl.col("state").is_in(FAILED_STATES))
    if "reason" in jobs.columns:
        tables["reasons"] = _tally_reasons(failed)
        if "restart_s" in jobs.columns:
            tables["restarts"] = (
                failed.filter(pl.col("restart_s").is_not_null())
                .group_by("reason", ms=_milliseconds("restart_s"))
                .agg(jobs=pl.len())
                .collect()
            )
    if "node_list" in jobs.columns:
        tables["on_nodes"] = _tally_nodes(days, jobs.columns)
    return _round_if_large(_build(tables))


def merge_tallies(tallies: Iterable[Tally]) -> Tally:
    """The tally of all the jobs that these tallies counted."""
    parts = list(tallies)
    if not parts:
        return empty_tally()
    if any(part.rounded for part in parts):
        parts = [_round(part) for part in parts]
    tables = {}
    for name, keys in _KEYS.items():
        stacked = pl.concat([getattr(part, name) for part in parts])
        tables[name] = stacked.group_by(list(keys)).agg(pl.col(_SUMS[name]).sum()) if len(parts) > 1 else stacked
    return _round_if_large(replace(_build(tables), rounded=any(part.rounded for part in parts)))


def _prepare(jobs: pl.DataFrame, types: pl.Series) -> pl.DataFrame:
    """The columns that every grouping needs; groups packed into whole numbers, which group three times faster."""
    gpus = pl.col("gpus")
    exponent = gpus.log(2).ceil().clip(0, 29).cast(pl.Int64)
    kind = _number_types(jobs["type"], types).fill_null(len(types))
    state = pl.col("state").to_physical().cast(pl.Int64)
    runs = pl.col("end_ns").is_not_null() | pl.col("state").is_in(LIVE_STATES)
    # The bucket is 0 for no GPUs, else 1 + log2 of the power of two that holds the job.
    bucket = pl.when(gpus > 0).then(exponent + 1).otherwise(0)
    return jobs.with_columns(
        kind_state=pl.lit(kind) * 16 + state, runs=runs & pl.col("start_ns").is_not_null()
    ).with_columns(group=pl.col("kind_state") * 32 + bucket)


def _number_types(column: pl.Series, types: pl.Series) -> pl.Series:
    """Each job's type as its place in `types`, by way of the category's own number."""
    codes = types.cast(_TYPE).to_physical()
    places: list[int | None] = [None] * (max(codes, default=0) + 1)
    for place, code in enumerate(codes):
        places[code] = place
    return pl.Series(places, dtype=pl.Int64).gather(column.to_physical())


def _collect(frame: pl.LazyFrame, types: pl.Series) -> list[pl.DataFrame]:
    """Run the groupings together, and unpack their keys."""
    timed, queued = pl.col("duration_s").is_not_null(), pl.col("queue_s").is_not_null()
    cells = frame.group_by("kind_state", "gpus").agg(
        jobs=pl.len(),
        timed=timed.sum(),
        queued=queued.sum(),
        duration_s=pl.col("duration_s").sum(),
        queue_s=pl.col("queue_s").sum(),
        gpu_time_s=pl.col("gpu_time_s").sum(),
        timed_gpus=(pl.col("gpus") * timed).sum(),
    )
    lengths = [
        frame.drop_nulls(column)
        .group_by(packed=pl.col("group") * (1 << _MS_BITS) + _milliseconds(column))
        .agg(jobs=pl.len())
        for column in ("duration_s", "queue_s")
    ]
    users = (
        frame.drop_nulls("user")
        .group_by("user")
        .agg(jobs=pl.len(), gpu_jobs=(pl.col("gpus") > 0).sum(), gpu_time_s=pl.col("gpu_time_s").sum(), **_waits())
    )
    cell, duration, queue, *bins, user = pl.collect_all([cells, *lengths, *_bin_events(frame), users])
    packed_group = (pl.col("packed") // (1 << _MS_BITS)).alias("group")
    unpacked = [
        table.with_columns(packed_group, ms=pl.col("packed") % (1 << _MS_BITS))
        .with_columns(kind_state=pl.col("group") // 32, bucket=_bucket_size(pl.col("group") % 32))
        .drop("packed", "group")
        for table in (duration, queue)
    ]
    named = [_unpack_kind(table, types) for table in (cell, *unpacked)]
    stacked = pl.concat(bins, how="diagonal")
    summed = stacked.group_by("bin").agg(pl.col(c).sum() for c in stacked.columns if c != "bin")
    return [*named, summed, user]


def _waits() -> dict[str, pl.Expr]:
    """How long GPU jobs waited, in jobs and in GPUs."""
    waited = pl.when(pl.col("gpus") > 0).then(pl.col("queue_s"))
    return {"queued": waited.count(), "queue_s": waited.sum(), "waiting_gpu_s": (waited * pl.col("gpus")).sum()}


def _tally_days(days: pl.LazyFrame, *, with_reasons: bool) -> dict[str, pl.DataFrame]:
    """What a comparison of weeks needs."""
    sums = {"jobs": pl.len(), "gpu_time_s": pl.col("gpu_time_s").sum()}
    waits = _waits()
    failed = days.filter(pl.col("state").is_in(FAILED_STATES))
    reason = pl.col("reason") if with_reasons else pl.lit(None, pl.String).alias("reason")
    by_day, by_user, by_reason = pl.collect_all(
        [
            days.group_by("day", "state").agg(**sums, queued=waits["queued"], queue_s=waits["queue_s"]),
            days.drop_nulls("user").group_by("day", "user").agg(**sums, **waits),
            failed.group_by("day", "state", reason).agg(**sums),
        ]
    )
    return {"days": by_day, "user_days": by_user, "reason_days": by_reason}


def _bin_events(frame: pl.LazyFrame) -> list[pl.LazyFrame]:
    """Per quarter hour: GPUs that entered or left, and for how long within it they were in."""

    def entering(moment: str, name: str, counted: pl.Expr) -> list[pl.Expr]:
        left_s = BIN_S - (pl.col(moment) % BIN_NS) / 1_000_000_000
        gpus = pl.when(counted).then(pl.col("gpus")).otherwise(0.0)
        return [gpus.sum().alias(name), (gpus * left_s).sum().alias(f"{name}_s")]

    waited = pl.col("start_ns").is_not_null() & pl.col("submit_ns").is_not_null()
    waited &= pl.col("start_ns") >= pl.col("submit_ns")
    failed = pl.col("state").is_in(FAILED_STATES) & (pl.col("gpus") > 0)

    def grouped(moment: str, *columns: pl.Expr) -> pl.LazyFrame:
        return frame.drop_nulls(moment).group_by(bin=pl.col(moment) // BIN_NS).agg(columns)

    return [
        grouped(
            "submit_ns",
            pl.len().alias("submitted"),
            (pl.col("gpus") > 0).sum().alias("submitted_gpu_jobs"),
            *entering("submit_ns", "waiting_in", waited),
        ),
        grouped(
            "start_ns", *entering("start_ns", "waiting_out", waited), *entering("start_ns", "busy_in", pl.col("runs"))
        ),
        grouped("end_ns", failed.sum().alias("failed"), *entering("end_ns", "busy_out", pl.col("runs"))),
    ]


def _tally_reasons(failed: pl.LazyFrame) -> pl.DataFrame:
    return (
        failed.filter(pl.col("duration_s").is_not_null())
        .group_by("state", "reason", ms=_milliseconds("duration_s"))
        .agg(jobs=pl.len(), gpus=pl.col("gpus").sum(), gpu_time_s=pl.col("gpu_time_s").sum())
        .collect()
    )


def _tally_nodes(days: pl.LazyFrame, columns: list[str]) -> pl.DataFrame:
    """Work and failures per node list. What one user's jobs meet on the same nodes in a day is one failure."""
    reason = pl.col("reason") if "reason" in columns else pl.lit(None, pl.String)
    fault = pl.col("state").eq("node_fail").fill_null(False) | reason.is_in(INFRASTRUCTURE).fill_null(False)
    user = pl.col("user") if "user" in columns else pl.lit(None, pl.String).alias("user")
    first = pl.int_range(pl.len()).over("day", "node_list", "user", "fault") == 0
    failed, gpu_time = pl.col("state").is_in(FAILED_STATES), pl.col("gpu_time_s")
    exponent = pl.col("gpus").log(2).ceil().clip(0, 29).cast(pl.Int64)
    return (
        days.drop_nulls("node_list")
        .with_columns(user, fault=fault, bucket=_bucket_size(exponent + 1))
        .with_columns(broken=pl.col("fault") & first)
        .group_by("day", "bucket", "node_list")
        .agg(
            jobs=pl.len(),
            held_s=gpu_time.sum(),
            failures=failed.sum(),
            gpu_time_s=gpu_time.filter(failed).sum(),
            broken=pl.col("broken").sum(),
            broken_s=gpu_time.filter(pl.col("fault")).sum(),
        )
        .collect()
    )


def _milliseconds(column: str) -> pl.Expr:
    return (pl.col(column) * 1000).round().clip(0, (1 << _MS_BITS) - 1).cast(pl.Int64)


def _bucket_size(exponent: pl.Expr) -> pl.Expr:
    """GPUs of the largest job in a bucket; 0 for CPU jobs."""
    return pl.when(exponent == 0).then(0).otherwise(pl.lit(2, pl.Int64).pow(exponent - 1)).cast(pl.Int64)


def _unpack_kind(table: pl.DataFrame, types: pl.Series) -> pl.DataFrame:
    kind, state = pl.col("kind_state") // 16, pl.col("kind_state") % 16
    names = pl.concat([types.cast(_TYPE), pl.Series([None], dtype=_TYPE)])
    return table.with_columns(
        type=pl.lit(names).gather(kind) if len(types) else pl.lit(None, _TYPE),
        state=pl.lit(pl.Series(JOB_STATES, dtype=_STATE)).gather(state),
    ).drop("kind_state")


def _build(tables: Mapping[str, pl.DataFrame]) -> Tally:
    whole: dict[str, Any] = {name: _conform(name, tables.get(name, pl.DataFrame())) for name in _KEYS}
    return Tally(**whole)


def _conform(name: str, table: pl.DataFrame) -> pl.DataFrame:
    """A table with all its columns, empty or zero if nothing was counted."""
    numbers = {c: pl.Int64 if c in _COUNTS else pl.Float64 for c in _SUMS[name]}
    if table.is_empty():
        return pl.DataFrame(schema={**_KEYS[name], **numbers})
    sums = [
        pl.col(c).cast(dtype).fill_null(0) if c in table.columns else pl.lit(0, dtype).alias(c)
        for c, dtype in numbers.items()
    ]
    return table.select(*(pl.col(k).cast(dtype) for k, dtype in _KEYS[name].items()), *sums)


def _round_if_large(tally: Tally) -> Tally:
    sizes = (tally.durations.height, tally.queues.height, tally.reasons.height)
    return _round(tally) if max(sizes) > MAX_VALUES and not tally.rounded else tally


def _round(tally: Tally) -> Tally:
    """The tally with lengths of time rounded to ten significant bits."""
    exponent = pl.col("ms").clip(1).log(2).floor().cast(pl.Int64)
    unit = pl.lit(2, pl.Int64).pow((exponent - (SIGNIFICANT_BITS - 1)).clip(0)).cast(pl.Int64)
    rounded = ((pl.col("ms") + unit // 2) // unit) * unit
    tables: dict[str, Any] = {
        name: getattr(tally, name).with_columns(ms=rounded).group_by(list(_KEYS[name])).agg(pl.col(_SUMS[name]).sum())
        for name in ("durations", "queues", "reasons", "restarts")
    }
    return replace(tally, rounded=True, **tables)
