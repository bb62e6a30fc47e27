"""How much of a cluster its jobs held in every quarter hour, and how much was idle while jobs waited."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from prism.datacenter.characterize.tally import BIN_NS, BIN_S, DAY_NS, Tally

MAX_BINS = 20 * 365 * 96  # times that span more than twenty years are not one cluster's history


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """GPUs held, idle and waited for; GPU-hours over the trace's span."""

    gpus: float  # the cluster's size
    gpus_known: bool  # False: the size is the most that jobs ever held at once
    span_hours: float
    allocated_pct: float
    idle_pct: float
    peak_gpus: float
    waiting_gpu_hours: float  # requested by queued jobs
    idle_while_waiting_gpu_hours: float  # free GPUs that could have run them: fragmentation, policy or placement
    idle_while_waiting_pct: float  # of the idle GPU-hours
    part_node_gpu_time_pct: float  # GPU time of jobs that do not fill whole nodes, which is what fragments them
    over_capacity_pct: float  # of the time, jobs held more GPUs than the stated size of the cluster


def follow_allocation(tally: Tally) -> pl.DataFrame:
    """Mean GPUs busy and waited for in every quarter hour of the trace: bin, busy_gpus, waiting_gpus.

    Empty if the trace does not show it: no times, or no times of the jobs that ran.
    """
    empty = pl.DataFrame(schema={"bin": pl.Int64, "busy_gpus": pl.Float64, "waiting_gpus": pl.Float64})
    if tally.bins.is_empty():
        return empty
    if not tally.bins["busy_in"].sum() and tally.cells["gpu_time_s"].sum() > 0:
        return empty
    first, last = tally.bins.select(pl.col("bin").min(), pl.col("bin").max().alias("last")).row(0)
    if last - first > MAX_BINS:
        return empty
    every = pl.DataFrame({"bin": pl.int_range(first, last + 1, eager=True)})
    bins = every.join(tally.bins, on="bin", how="left").fill_null(0).sort("bin")

    def mean_inside(name_in: str, name_out: str) -> pl.Expr:
        carried = (pl.col(name_in) - pl.col(name_out)).cum_sum().shift(1, fill_value=0.0)
        held_s = carried * BIN_S + pl.col(f"{name_in}_s") - pl.col(f"{name_out}_s")
        # Sums of fractions may be slightly below zero.
        return (held_s / BIN_S).clip(lower_bound=0)

    return bins.select(
        "bin",
        busy_gpus=mean_inside("busy_in", "busy_out"),
        waiting_gpus=mean_inside("waiting_in", "waiting_out"),
    )


def average_days(tally: Tally) -> pl.DataFrame:
    """Mean GPUs busy and waited for on every day (UTC) of the trace: date, busy_gpus, waiting_gpus."""
    date = (pl.col("bin") // (DAY_NS // BIN_NS)).cast(pl.Int32).cast(pl.Date).alias("date")
    days = follow_allocation(tally).group_by(date).agg(pl.col("busy_gpus", "waiting_gpus").mean())
    return days.sort("date")


def measure_capacity(tally: Tally, *, gpus: float | None, gpus_per_node: int) -> Capacity | None:
    """The cluster's use over the trace; None if the trace has no times."""
    flow = follow_allocation(tally)
    if flow.is_empty():
        return None
    busy, waiting = flow["busy_gpus"], flow["waiting_gpus"]
    peak = float(busy.max() or 0.0)  # type: ignore[arg-type]
    size = gpus if gpus is not None else peak
    if size <= 0:
        return None
    hours = flow.height * BIN_S / 3600
    idle = (size - busy).clip(lower_bound=0)
    idle_hours = float(idle.sum()) * BIN_S / 3600
    blocked = float(pl.select(pl.min_horizontal(idle, waiting)).to_series().sum()) * BIN_S / 3600
    gpu_time = float(tally.cells["gpu_time_s"].sum())
    partial = float(tally.cells.filter(pl.col("gpus") % gpus_per_node != 0)["gpu_time_s"].sum())
    return Capacity(
        gpus=size,
        gpus_known=gpus is not None,
        span_hours=hours,
        allocated_pct=100 * float(busy.sum()) / (size * flow.height),
        idle_pct=100 * idle_hours / (size * hours),
        peak_gpus=peak,
        waiting_gpu_hours=float(waiting.sum()) * BIN_S / 3600,
        idle_while_waiting_gpu_hours=blocked,
        idle_while_waiting_pct=100 * blocked / idle_hours if idle_hours > 0 else 0.0,
        part_node_gpu_time_pct=100 * partial / gpu_time if gpu_time > 0 else 0.0,
        over_capacity_pct=100 * int((busy > size * 1.001).sum()) / flow.height,
    )
