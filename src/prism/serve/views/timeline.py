"""The timeline of a job or an evaluation as documents: a window, the spans under the pointer, time by kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from prism.serve.shapes.jobs import StepRow
from prism.serve.shapes.timeline import (
    BreakdownDocument,
    ExpectedPicture,
    Picture,
    SpanRow,
    SpansDocument,
    TimelineDocument,
)
from prism.serve.timeline import WindowQuery, draw_window, list_spans, measure_ranks
from prism.serve.timeline.picture import encode_pixels
from prism.serve.timelines import Timeline, Timelines

_MOST_STEPS = 500
_MOST_HOVERED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRequest:
    """A window as it is asked for; times count from the origin, None is the whole timeline."""

    key: str
    from_ns: int | None = None
    to_ns: int | None = None
    width: int = 1200
    first_row: int = 0
    num_rows: int = 64
    by: Literal["rank", "lane"] = "rank"
    hidden: frozenset[str] = frozenset()
    expected: str | None = None


def describe_timeline(timelines: Timelines, asked: WindowRequest) -> TimelineDocument:
    """A window of a timeline, and what was expected in it."""
    found = timelines.find(asked.key)
    index, origin = found.index, found.origin_ns
    start, end = _window_of(found, asked.from_ns, asked.to_ns)
    query = WindowQuery(
        start_ns=start,
        end_ns=end,
        width=asked.width,
        first_row=asked.first_row,
        num_rows=asked.num_rows,
        by=asked.by,
        hidden=asked.hidden,
    )
    picture = draw_window(index, query, origin)
    first, last = found.range_ns
    return TimelineDocument(
        key=asked.key,
        origin_ns=str(origin),
        first_ns=first - origin,
        last_ns=last - origin,
        from_ns=start - origin,
        to_ns=end - origin,
        kinds=index.kinds,
        kinds_present=tuple(index.kinds[code] for code in index.kinds_present),
        total_spans=index.num_spans,
        steps=_list_steps(found.steps, start, end, origin),
        picture=picture,
        expected=_draw_expected(timelines, found, asked, query, picture) if asked.by == "rank" else None,
    )


def describe_spans(timelines: Timelines, asked: WindowRequest, rank: int, lane: str | None) -> SpansDocument:
    """What lies under the pointer."""
    found = timelines.find(asked.key)
    start, end = _window_of(found, asked.from_ns, asked.to_ns)
    observed, count = list_spans(found.index, rank, lane, start, end, origin_ns=found.origin_ns, most=_MOST_HOVERED)
    expected: list[SpanRow] = []
    if asked.expected:
        overlay = timelines.overlay(found, asked.expected)
        expected = overlay.list_spans(rank, start, end, origin_ns=found.origin_ns, most=_MOST_HOVERED)
    return SpansDocument(observed=tuple(observed), num_observed=count, expected=tuple(expected))


def describe_breakdown(timelines: Timelines, key: str, from_ns: int | None, to_ns: int | None) -> BreakdownDocument:
    """Where the time of each rank went."""
    found = timelines.find(key)
    measured = measure_ranks(found.index, *_window_of(found, from_ns, to_ns))
    kinds = [name for name in measured.columns if name not in ("rank", "step", "microbatch")]
    return BreakdownDocument(
        kinds=tuple(kinds),
        ranks=tuple(measured["rank"].to_list()),
        seconds=tuple(tuple((measured[kind] / 1e9).to_list()) for kind in kinds),
    )


def _window_of(found: Timeline, from_ns: int | None, to_ns: int | None) -> tuple[int, int]:
    first, last = found.range_ns
    start = first if from_ns is None else from_ns + found.origin_ns
    end = last if to_ns is None else to_ns + found.origin_ns
    return start, max(end, start + 1)


def _list_steps(steps: pl.DataFrame, start: int, end: int, origin: int) -> tuple[StepRow, ...]:
    # Not a filter of the frame: starting Polars' threads takes longer than the rest of a window.
    index, starts, ends = (steps[name].to_numpy() for name in ("index", "start_ns", "end_ns"))
    inside = np.flatnonzero((starts < end) & (ends > start))
    if len(inside) > _MOST_STEPS:
        return ()
    columns = (index[inside].tolist(), starts[inside].tolist(), ends[inside].tolist())
    return tuple(StepRow(index=i, from_ns=a - origin, to_ns=b - origin) for i, a, b in zip(*columns, strict=True))


def _draw_expected(
    timelines: Timelines, found: Timeline, asked: WindowRequest, query: WindowQuery, picture: Picture
) -> ExpectedPicture | None:
    if not asked.expected:
        return None
    overlay = timelines.overlay(found, asked.expected)
    pixels = overlay.draw(np.array(picture.ranks, dtype=np.int64), query)
    return ExpectedPicture(aligned=overlay.aligned, pixels="" if pixels is None else encode_pixels(pixels))
