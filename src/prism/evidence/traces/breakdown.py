"""Where one rank's time went: compute, communication that compute hides or not, copies, and idleness by cause."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from prism.evidence.traces.intervals import Intervals
from prism.evidence.traces.kineto import Profile

BREAKDOWN = pl.Schema(
    {
        "rank": pl.Int32,
        "step": pl.Int32,  # null: all of the trace
        "span_ns": pl.Int64,
        "compute_ns": pl.Int64,
        "communication_ns": pl.Int64,
        "exposed_ns": pl.Int64,  # communication while nothing computes
        "overlapped_ns": pl.Int64,
        "copies_ns": pl.Int64,  # copies and fills while nothing computes or communicates
        "idle_ns": pl.Int64,
        "idle_host_ns": pl.Int64,  # the host launched the next kernel too late
        "idle_launch_ns": pl.Int64,  # the usual gap between two kernels
        "idle_other_ns": pl.Int64,  # launched in time, yet not begun; or the trace does not say when it was launched
    }
)
IDLE_BY_STREAM = pl.Schema({"rank": pl.Int32, "lane": pl.String, "cause": pl.String, "idle_ns": pl.Int64})
BUBBLES = pl.Schema({"rank": pl.Int32, "step": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64, "cause": pl.String})


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakdownConfig:
    """What counts as a usual gap and as a bubble."""

    launch_gap_ns: int = 30_000  # HTA's default for the gap between two kernels that were both launched in time
    bubble_share: float = 0.01  # of the span that a stretch without compute must reach to be listed
    most_bubbles: int = 20


def split_rank(profile: Profile, config: BreakdownConfig | None = None) -> pl.DataFrame:
    """BREAKDOWN of one rank: a row for the whole trace, then one for every step."""
    config = config or BreakdownConfig()
    compute, communication, busy = _cover(profile)
    gaps, causes = _find_causes(profile.work, busy, config)
    begin = np.concatenate([[busy.start[0]], profile.steps["start_ns"].to_numpy()])
    stop = np.concatenate([[busy.end[-1]], profile.steps["end_ns"].to_numpy()])
    span = stop - begin
    computing, communicating, working = (part.within(begin, stop) for part in (compute, communication, busy))
    either = compute.join(communication).within(begin, stop)
    idle_of = {
        cause: Intervals(gaps.start[causes == cause], gaps.end[causes == cause]).within(begin, stop)
        for cause in ("host", "launch")
    }
    idle = span - working
    columns = {
        "rank": np.full(len(span), profile.rank),
        "step": [None, *profile.steps["step"].to_list()],
        "span_ns": span,
        "compute_ns": computing,
        "communication_ns": communicating,
        "exposed_ns": either - computing,
        "overlapped_ns": computing + communicating - either,
        "copies_ns": working - either,
        "idle_ns": idle,
        "idle_host_ns": idle_of["host"],
        "idle_launch_ns": idle_of["launch"],
        "idle_other_ns": idle - idle_of["host"] - idle_of["launch"],
    }
    return pl.DataFrame(columns, schema=BREAKDOWN, strict=False)


def split_idle_by_stream(profile: Profile, config: BreakdownConfig | None = None) -> pl.DataFrame:
    """IDLE_BY_STREAM: the gap before every kernel of a stream, by what made it wait; CPU threads have no streams."""
    config = config or BreakdownConfig()
    if not profile.on_gpu:
        return pl.DataFrame(schema=IDLE_BY_STREAM)
    gap = pl.col("start_ns") - pl.col("end_ns").shift(1).over("lane")
    late = pl.col("launch_ns") > pl.col("end_ns").shift(1).over("lane")
    cause = pl.when(late).then(pl.lit("host")).when(gap < config.launch_gap_ns).then(pl.lit("launch"))
    return (
        profile.work.sort("lane", "start_ns", maintain_order=True)
        .select("lane", idle_ns=gap, cause=cause.otherwise(pl.lit("other")))
        .group_by("lane", "cause")
        .agg(pl.col("idle_ns").sum())
        .sort("lane", "cause")
        .select(pl.lit(profile.rank, pl.Int32).alias("rank"), *list(IDLE_BY_STREAM)[1:])
    )


def find_bubbles(profile: Profile, config: BreakdownConfig | None = None) -> pl.DataFrame:
    """BUBBLES: the longest stretches in which nothing computes, and what the rank did or waited for meanwhile."""
    config = config or BreakdownConfig()
    compute, communication, busy = _cover(profile)
    gaps = compute.gaps()
    length = gaps.end - gaps.start
    span = busy.end[-1] - busy.start[0]
    chosen = np.argsort(-length, kind="stable")[: config.most_bubbles]
    chosen = np.sort(chosen[length[chosen] >= config.bubble_share * span])
    if not len(chosen):
        return pl.DataFrame(schema=BUBBLES)
    start, end = gaps.start[chosen], gaps.end[chosen]
    in_collective = communication.within(start, end) > (end - start) // 2
    idle, causes = _find_causes(profile.work, busy, config)
    held = Intervals(idle.start[causes == "host"], idle.end[causes == "host"]).within(start, end) > (end - start) // 2
    cause = np.where(in_collective, "communication", np.where(held, "host", "unknown"))
    step = _step_at(profile.steps, start)
    rank = np.full(len(start), profile.rank)
    return pl.DataFrame(
        {"rank": rank, "step": step, "start_ns": start, "end_ns": end, "cause": cause.tolist()},
        schema=BUBBLES,
        strict=False,
    )


def _cover(profile: Profile) -> tuple[Intervals, Intervals, Intervals]:
    """When the rank computes, when it communicates, and when it does anything."""
    work = profile.work
    parts = [work.filter(pl.col("what") == what) for what in ("compute", "communication")]
    compute, communication = (Intervals.union(p["start_ns"].to_numpy(), p["end_ns"].to_numpy()) for p in parts)
    return compute, communication, Intervals.union(work["start_ns"].to_numpy(), work["end_ns"].to_numpy())


def _find_causes(
    work: pl.DataFrame, busy: Intervals, config: BreakdownConfig
) -> tuple[Intervals, np.ndarray[tuple[int], np.dtype[np.str_]]]:
    """Why nothing ran in each gap: the launch time of the kernel that ends it shows that."""
    gaps = busy.gaps()
    ends = pl.DataFrame({"start_ns": gaps.end})
    launched = work.group_by("start_ns").agg(pl.col("launch_ns").min())
    launch = ends.join(launched, on="start_ns", how="left", maintain_order="left")["launch_ns"].to_numpy()
    usual = (gaps.end - gaps.start) < config.launch_gap_ns
    host = np.nan_to_num(launch.astype(np.float64), nan=-1.0) > gaps.start
    return gaps, np.where(host, "host", np.where(usual, "launch", "other"))


def _step_at(steps: pl.DataFrame, moments: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[int | None]:
    starts, ends, names = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy(), steps["step"].to_list()
    last = np.searchsorted(starts, moments, side="right") - 1
    return [names[i] if i >= 0 and moment < ends[i] else None for i, moment in zip(last, moments, strict=True)]
