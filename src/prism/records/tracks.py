"""The slices that a trace viewer draws, and their tracks: one per lane, or more if slices of a lane cross."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.errors import BadRowError
from prism.records.findings import FINDINGS
from prism.records.spans import SPANS

LANE = ("job", "rank", "lane")
NOTES = ("step", "bytes", "group", "culprit", "lost_gpu_seconds", "score", "evidence")
"""The columns of a slice that a viewer shows when it is selected, where they are not null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackLayout:
    """The tracks in the order they are shown, and for every slice the row of that table it belongs to."""

    tracks: pl.DataFrame  # job, rank, lane, overflow
    track_of_slice: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """The begins and ends of slices in order of time."""

    first_ns: int
    slice_row: NDArray[np.int64]
    is_begin: NDArray[np.bool_]
    delta_ns: NDArray[np.int64]  # since the event before


def gather_slices(spans: pl.DataFrame, findings: pl.DataFrame | None) -> pl.DataFrame:
    """Spans, then findings, as one table; a finding's lane is the job's own, so its rank is null."""
    spans = SPANS.conform(spans, "spans")
    check_times(spans, "spans")
    slices = spans.with_columns(category=pl.col("kind").cast(pl.String)).drop("kind")
    if findings is None:
        return slices
    findings = FINDINGS.conform(findings, "findings")
    check_times(findings, "findings")
    found = findings.select(
        "job",
        "start_ns",
        "end_ns",
        "lost_gpu_seconds",
        "score",
        "evidence",
        lane=pl.lit("findings"),
        category=pl.lit("finding"),
        name=pl.format("{} {}", "kind", "culprit"),
        culprit=pl.format("{} {}", "culprit_type", "culprit"),
    )
    return pl.concat([slices, found], how="diagonal")


def lay_out_tracks(slices: pl.DataFrame) -> TrackLayout:
    """Give every lane a track, in the order findings, ranks, steps, other lanes.

    Viewers draw the slices of one track as a stack: a slice must end before or with the one it starts in.
    One that crosses another of its lane goes to an overflow track of that lane.
    """
    lanes = slices.select(LANE).unique().sort("job", "rank", pl.col("lane") != "steps", "lane")
    lanes = lanes.with_row_index("lane_row")
    placed = slices.select(*LANE, "start_ns", "end_ns")
    placed = placed.join(lanes, on=LANE, how="left", nulls_equal=True, maintain_order="left").drop(LANE)
    placed = placed.with_columns(overflow=_place_crossing(placed))
    used = placed.select("lane_row", "overflow").unique().sort("lane_row", "overflow").with_row_index("track")
    numbered = placed.join(used, on=["lane_row", "overflow"], how="left", maintain_order="left")
    tracks = used.join(lanes, on="lane_row", how="left", maintain_order="left").select(*LANE, "overflow")
    return TrackLayout(tracks=tracks, track_of_slice=numbered["track"].cast(pl.Int64).to_numpy())


def check_times(table: pl.DataFrame, name: str) -> None:
    """Refuse what no viewer can show: times before 0 and ends before starts."""
    if (early := table["start_ns"] < 0).any():
        row = early.arg_max() or 0
        raise BadRowError(
            f"{name} row {row + 1}: 'start_ns' is {table['start_ns'][row]}, but a trace cannot show time before 0; "
            "add an offset to every start_ns and end_ns"
        )
    if (backwards := table["end_ns"] < table["start_ns"]).any():
        row = backwards.arg_max() or 0
        raise BadRowError(
            f"{name} row {row + 1}: 'end_ns' is {table['end_ns'][row]}, before its start_ns "
            f"{table['start_ns'][row]}; fix or drop the row"
        )


def order_events(start: NDArray[np.int64], end: NDArray[np.int64]) -> Events:
    """All begins and ends by time such that slices that nest in time nest in this order, and touching ones do not.

    At one moment: first what ends, then what begins, the longest first, then slices without length as pairs.
    """
    begin_order = np.lexsort((-end, start))
    empty = (start == end)[begin_order]
    lasting = begin_order[~empty]
    end_order = lasting[np.argsort(end[lasting], kind="stable")]
    begins = np.repeat(begin_order, 1 + empty)
    is_begin = np.ones(len(begins), dtype=np.bool_)
    is_begin[1:] = begins[1:] != begins[:-1]
    times = np.concatenate([end[end_order], start[begins]])
    in_time = np.argsort(times, kind="stable")  # both halves are sorted, so this only merges them
    times = times[in_time]
    return Events(
        first_ns=int(times[0]) if len(times) else 0,
        slice_row=np.concatenate([end_order, begins])[in_time],
        is_begin=np.concatenate([np.zeros(len(end_order), dtype=np.bool_), is_begin])[in_time],
        delta_ns=np.diff(times, prepend=times[:1]),
    )


def _place_crossing(placed: pl.DataFrame) -> pl.Series:
    """For every slice its overflow track, counted from 0, the lane's own."""
    ordered = placed.with_row_index("row").sort("lane_row", "start_ns", "end_ns", descending=[False, False, True])
    busy_until = pl.col("end_ns").cum_max().shift(1).over("lane_row")
    shared = ordered.filter((pl.col("start_ns") < busy_until).any().over("lane_row"))
    overflow = np.zeros(len(placed), dtype=np.int64)
    if len(shared):
        levels = _compile()(*(shared[c].cast(pl.Int64).to_numpy() for c in ("lane_row", "start_ns", "end_ns")))
        overflow[shared["row"].to_numpy()] = levels
    return pl.Series(overflow)


@cache
def _compile() -> Callable[..., NDArray[np.int64]]:
    import numba  # Imported only if slices of a lane overlap: the import takes longer than writing a small trace.

    return cast("Callable[..., NDArray[np.int64]]", numba.njit(cache=True)(_stack_slices))


def _stack_slices(lane: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Put each slice, outer before inner, on the first level where it lies inside the slice still open there."""
    level_of = np.empty(len(start), dtype=np.int64)
    around = np.empty(len(start), dtype=np.int64)  # the slice that a slice lies in; -1: none
    innermost = np.empty(len(start), dtype=np.int64)  # of the slices open on a level
    num_levels = 0
    for row in range(len(start)):
        if row == 0 or lane[row] != lane[row - 1]:
            num_levels = 0
        level = 0
        while level < num_levels:
            outer = innermost[level]
            while outer >= 0 and end[outer] <= start[row]:
                outer = around[outer]
            innermost[level] = outer
            if outer < 0 or end[row] <= end[outer]:
                break
            level += 1
        if level == num_levels:
            innermost[level] = -1
            num_levels += 1
        around[row] = innermost[level]
        innermost[level] = row
        level_of[row] = level
    return level_of
