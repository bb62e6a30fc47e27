"""Expected over observed: how a predicted timeline is aligned with an observed one, and its picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.serve.shapes.timeline import SpanRow
from prism.serve.timeline.index import SpanIndex
from prism.serve.timeline.picture import WindowQuery, draw_pixels, list_spans

_MOST_STEPS = 64  # visible steps; with more, a step is too narrow to compare


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """A prediction laid on an observation.

    Aligned by the clock where both were made from the same seconds; else by step, each predicted step in turn laid
    at the start of an observed one.
    """

    index: SpanIndex
    rank_of: Mapping[int, int] = field(default_factory=dict)  # predicted rank of each observed one
    aligned: Literal["clock", "step"] = "clock"
    shifts: tuple[tuple[int, int, int], ...] = ()  # observed start and end, and what to subtract for predicted time

    def parts_of(self, start_ns: int, end_ns: int) -> list[tuple[int, int, int]]:
        """The stretches of a window and their shifts."""
        if self.aligned == "clock":
            return [(start_ns, end_ns, 0)]
        return [(max(a, start_ns), min(b, end_ns), shift) for a, b, shift in self.shifts if a < end_ns and b > start_ns]

    def draw(self, ranks: NDArray[np.int64], query: WindowQuery) -> NDArray[np.uint8] | None:
        """The same rows of the prediction; None where too many steps are in sight."""
        parts = self.parts_of(query.start_ns, query.end_ns)
        if len(parts) > _MOST_STEPS:
            return None
        predicted = np.array([self.rank_of.get(int(rank), -1) for rank in ranks], dtype=np.int64)
        first, last = self.index.rows_of_ranks(predicted)
        out = np.zeros((len(ranks), query.width), dtype=np.uint8)
        scale = query.width / max(1, query.end_ns - query.start_ns)
        for start, end, shift in parts:
            left = round((start - query.start_ns) * scale)
            right = min(query.width, max(left + 1, round((end - query.start_ns) * scale)))
            if right > left:
                part = WindowQuery(start_ns=start - shift, end_ns=end - shift, width=right - left, hidden=query.hidden)
                out[:, left:right] = draw_pixels(self.index, first, last, part)
        return out

    def list_spans(self, rank: int, start_ns: int, end_ns: int, *, origin_ns: int, most: int) -> list[SpanRow]:
        """Predicted spans of an observed rank in a short window, at observed times."""
        out: list[SpanRow] = []
        for start, end, shift in self.parts_of(start_ns, end_ns)[:_MOST_STEPS]:
            predicted = self.rank_of.get(rank, -1)
            found, _ = list_spans(
                self.index, predicted, None, start - shift, end - shift, origin_ns=origin_ns - shift, most=most
            )
            out += found
        return out[:most]


def align_steps(observed: pl.DataFrame, predicted: pl.DataFrame) -> tuple[tuple[int, int, int], ...]:
    """Lay predicted steps in turn on observed ones: each from its own start, for as long as the longer of both lasts.

    Tables are STEPS. The last predicted steps are taken where there are several: the first one warms up.
    """
    if not len(observed) or not len(predicted):
        return ()
    usable = predicted.tail(max(1, len(predicted) - 1))
    starts, ends = usable["start_ns"].to_list(), usable["end_ns"].to_list()
    out = []
    for i, (start, end) in enumerate(observed.select("start_ns", "end_ns").iter_rows()):
        j = i % len(starts)
        out.append((start, max(end, start + min(ends[j] - starts[j], end - start)), start - starts[j]))
    return tuple(out)
