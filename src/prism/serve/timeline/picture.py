"""A window of a timeline as a picture: exact spans if few are visible, else one byte per pixel."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.serve.shapes.timeline import Picture, SpanColumns, SpanRow
from prism.serve.timeline.index import SpanIndex
from prism.serve.timeline.raster import MAX_KINDS, Window, compile_kernels

# Compute, waiting and host work fill whole rows and must not hide the communication in the same pixel.
_WEIGHTS = {"compute": 0.4, "wait": 0.15, "host": 0.3, "microbatch": 0.0, "step": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowQuery:
    """The visible part: times in nanoseconds, and rows from the first visible one on."""

    start_ns: int
    end_ns: int
    width: int = 1200
    first_row: int = 0
    num_rows: int = 64
    by: Literal["rank", "lane"] = "rank"
    hidden: frozenset[str] = frozenset()
    most_spans: int = 2_000  # more are drawn as pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRows:
    """The visible rows; each consists of the index rows `first` to `last`."""

    labels: tuple[str, ...]
    ranks: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    num_rows: int


def choose_rows(index: SpanIndex, query: WindowQuery) -> ShownRows:
    """The rows that a query asks for."""
    if query.by == "rank":
        ranks = index.ranks
        chosen = slice(query.first_row, query.first_row + query.num_rows)
        first, last = index.rows_of_ranks(ranks[chosen])
        return ShownRows(labels=index.label[chosen], ranks=ranks[chosen], first=first, last=last, num_rows=len(ranks))
    rows = np.arange(query.first_row, min(query.first_row + query.num_rows, len(index.rank)), dtype=np.int64)
    label_of = dict(zip(index.ranks.tolist(), index.label, strict=True))
    labels = tuple(f"{label_of[int(index.rank[row])]}  {index.lane[row]}" for row in rows)
    return ShownRows(labels=labels, ranks=index.rank[rows], first=rows, last=rows + 1, num_rows=len(index.rank))


def draw_window(index: SpanIndex, query: WindowQuery, origin_ns: int = 0) -> Picture:
    """Draw the visible part."""
    shown = choose_rows(index, query)
    num_spans = compile_kernels().count(open_window(index, shown.first, shown.last, query))
    few = num_spans <= query.most_spans
    pixels = "" if few else encode_pixels(draw_pixels(index, shown.first, shown.last, query))
    return Picture(
        labels=shown.labels,
        ranks=tuple(shown.ranks.tolist()),
        num_rows=shown.num_rows,
        num_spans=int(num_spans),
        width=query.width,
        pixels=pixels,
        spans=_gather(index, shown, query, origin_ns, num_spans) if few else SpanColumns(),
    )


def open_window(index: SpanIndex, first: NDArray[np.int64], last: NDArray[np.int64], query: WindowQuery) -> Window:
    """The arguments of the loops over spans for a query."""
    return _window(index, first, last, query.start_ns, max(query.end_ns, query.start_ns + 1))


def _window(index: SpanIndex, first: NDArray[np.int64], last: NDArray[np.int64], t0: int, t1: int) -> Window:
    return Window(index.start, index.end, index.reach, index.kind, index.offset, first, last, t0, t1)


def draw_pixels(
    index: SpanIndex, first: NDArray[np.int64], last: NDArray[np.int64], query: WindowQuery
) -> NDArray[np.uint8]:
    """The window as an array of visible rows by pixels."""
    out = np.zeros((len(first), query.width), dtype=np.uint8)
    weights = weigh_kinds(index, query.hidden)
    scratch = np.empty((max(1, int(np.count_nonzero(weights))), query.width + 2), dtype=np.float32)
    compile_kernels().draw(open_window(index, first, last, query), weights, out, scratch)
    return out


def weigh_kinds(index: SpanIndex, hidden: frozenset[str]) -> NDArray[np.float64]:
    """How much a nanosecond of each kind counts for the colour of a pixel."""
    weights = np.zeros(MAX_KINDS)
    for code in index.kinds_present:
        kind = index.kinds[code]
        weights[code] = 0.0 if kind in hidden else _WEIGHTS.get(kind, 1.0)
    return weights


def encode_pixels(pixels: NDArray[np.uint8]) -> str:
    """Bytes as text that JSON can hold."""
    return base64.b64encode(pixels.tobytes()).decode("ascii")


def list_spans(
    index: SpanIndex, rank: int, lane: str | None, start_ns: int, end_ns: int, *, origin_ns: int = 0, most: int = 20
) -> tuple[list[SpanRow], int]:
    """The spans of a rank that a short window touches, longest first, and how many there are."""
    rows = [row for row in np.flatnonzero(index.rank == rank).tolist() if lane is None or index.lane[row] == lane]
    touched = np.concatenate([_touched(index, row, start_ns, end_ns) for row in rows]) if rows else np.zeros(0, int)
    order = np.argsort(index.start[touched] - index.end[touched], kind="stable")[:most]
    return list(_describe(index, touched[order], origin_ns)), len(touched)


def measure_ranks(index: SpanIndex, start_ns: int, end_ns: int) -> pl.DataFrame:
    """Nanoseconds of each kind in a window, one row a rank and a column a kind that is there."""
    first, last = index.rows_of_ranks(index.ranks)
    out = np.zeros((len(first), MAX_KINDS))
    compile_kernels().measure(_window(index, first, last, start_ns, end_ns), out)
    found = [code for code in range(len(index.kinds)) if out[:, code].any()]
    return pl.DataFrame({"rank": index.ranks, **{index.kinds[code]: out[:, code] for code in found}})


def _gather(index: SpanIndex, shown: ShownRows, query: WindowQuery, origin_ns: int, most: int) -> SpanColumns:
    found = np.empty((most, 2), dtype=np.int64)
    count = compile_kernels().collect(open_window(index, shown.first, shown.last, query), found)
    span, row = found[:count, 0], found[:count, 1]
    hidden = np.array([kind in query.hidden for kind in index.kinds])
    kept = ~hidden[index.kind[span]]
    span, row = span[kept], row[kept]
    names, name = np.unique(index.name[span], return_inverse=True)
    return SpanColumns(
        names=tuple(index.names[code] for code in names.tolist()),
        row=tuple(row.tolist()),
        kind=tuple(index.kind[span].tolist()),
        name=tuple(name.tolist()),
        from_ns=tuple((index.start[span] - origin_ns).tolist()),
        to_ns=tuple((index.end[span] - origin_ns).tolist()),
    )


def _touched(index: SpanIndex, row: int, start_ns: int, end_ns: int) -> NDArray[np.int64]:
    low, high = int(index.offset[row]), int(index.offset[row + 1])
    first = low + int(np.searchsorted(index.reach[low:high], start_ns, side="right"))
    last = low + int(np.searchsorted(index.start[low:high], max(end_ns, start_ns + 1)))
    near = np.arange(first, max(first, last))
    return near[index.end[near] > start_ns]


def _describe(index: SpanIndex, spans: NDArray[np.int64], origin_ns: int) -> Sequence[SpanRow]:
    row_of = np.searchsorted(index.offset, spans, side="right") - 1
    return [
        SpanRow(
            kind=index.kinds[index.kind[span]],
            name=index.names[index.name[span]],
            lane=index.lane[row],
            from_ns=int(index.start[span]) - origin_ns,
            to_ns=int(index.end[span]) - origin_ns,
            step=None if index.step[span] < 0 else int(index.step[span]),
            bytes=None if index.num_bytes_of[span] < 0 else int(index.num_bytes_of[span]),
            group=None if index.group[span] < 0 else index.groups[index.group[span]],
        )
        for span, row in zip(spans.tolist(), row_of.tolist(), strict=True)
    ]
