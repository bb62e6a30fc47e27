"""SPANS of one job, arranged for windows: sorted by row and start, with the arrays of a binary search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.errors import BadFileError
from prism.records.spans import SPAN_KINDS
from prism.serve.sources.diagnosed import STEPS

STEPS_LANE = "steps"
PHASE_KINDS = ("load", "infer", "score", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanIndex:
    """Spans of one job. A row is a lane of a rank; the rows of a rank are next to each other."""

    kinds: tuple[str, ...]
    window_ns: tuple[int, int]  # from the first start to the last end
    ranks: NDArray[np.int64]  # in order
    rank: NDArray[np.int64]  # of each row
    lane: tuple[str, ...]  # of each row
    label: tuple[str, ...]  # of each rank
    offset: NDArray[np.int64]  # the spans of row i are offset[i] to offset[i + 1]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    reach: NDArray[np.int64]  # the latest end so far in the row, which is sorted even if spans of the row overlap
    kind: NDArray[np.uint8]
    kinds_present: tuple[int, ...]
    names: tuple[str, ...]
    name: NDArray[np.uint32]  # of each span, as its place in `names`
    step: NDArray[np.int32]  # of each span; -1: none
    num_bytes_of: NDArray[np.int64]  # -1: not known
    groups: tuple[str, ...]
    group: NDArray[np.int32]  # of each span, as its place in `groups`; -1: none
    steps: pl.DataFrame  # STEPS, from the lane of that name

    @property
    def num_spans(self) -> int:
        """Spans without those of the steps lane."""
        return len(self.start)

    @property
    def num_bytes(self) -> int:
        """Memory it holds."""
        arrays = (self.offset, self.start, self.end, self.reach, self.kind, self.rank, self.name)
        return sum(array.nbytes for array in (*arrays, self.step, self.num_bytes_of, self.group))

    def rows_of_ranks(self, ranks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First row of each rank and the one after its last; -1 where a rank has none."""
        first = np.searchsorted(self.rank, ranks, side="left")
        last = np.searchsorted(self.rank, ranks, side="right")
        return np.where(first == last, -1, first), np.where(first == last, -1, last)


def build_index(spans: pl.DataFrame) -> SpanIndex:
    """Index the SPANS of one job; spans that end before they start are refused."""
    if (spans["end_ns"] < spans["start_ns"]).any():
        raise BadFileError("the timeline holds spans that end before they start; write it again")
    is_step = spans["lane"] == STEPS_LANE
    steps = spans.filter(is_step).filter(pl.col("kind") == "step")
    # A prediction has the steps of every rank; those of the first rank represent all.
    steps = steps.filter(pl.col("rank") == pl.col("rank").min()).sort("start_ns")
    numbered = steps.with_row_index("row").select(pl.coalesce("step", "row").alias("index"), "start_ns", "end_ns")
    return _index(
        spans.filter(~is_step),
        kinds=SPAN_KINDS,
        steps=numbered.cast(STEPS),
        label=lambda rank: f"rank {rank}",
    )


def index_phases(phases: pl.DataFrame) -> SpanIndex:
    """Index the phases of trials: a rank is a worker, in order of node and worker."""
    place = pl.concat_str(pl.col("node").fill_null("?"), pl.lit(" / "), pl.col("worker").fill_null("?"))
    named = phases.with_columns(place.alias("place"))
    labels = named["place"].unique().sort().to_list()
    known = pl.col("phase").is_in(PHASE_KINDS)
    failed = pl.when(pl.col("state") == "failed").then(pl.lit(" (failed)")).otherwise(pl.lit(""))
    spans = named.select(
        pl.col("place").replace_strict(labels, list(range(len(labels))), return_dtype=pl.Int32).alias("rank")
        if labels
        else pl.lit(0, pl.Int32).alias("rank"),
        pl.lit("trials").alias("lane"),
        pl.when(known).then("phase").otherwise(pl.lit("other")).cast(pl.Enum(PHASE_KINDS)).alias("kind"),
        pl.concat_str("phase", pl.lit(" "), pl.coalesce("dataset", "checkpoint"), failed).alias("name"),
        pl.col("step").cast(pl.Int32),
        "start_ns",
        pl.max_horizontal("start_ns", "end_ns").alias("end_ns"),
        pl.lit(None, pl.Int64).alias("bytes"),
        pl.col("checkpoint").alias("group"),
    )
    return _index(spans, kinds=PHASE_KINDS, steps=pl.DataFrame(schema=STEPS), label=lambda rank: labels[rank])


def _index(spans: pl.DataFrame, *, kinds: tuple[str, ...], steps: pl.DataFrame, label: Any) -> SpanIndex:
    ordered = _sort(spans)
    runs = ordered.select(pl.struct("rank", "lane").rle().alias("run")).unnest("run") if len(ordered) else None
    lengths = runs["len"].cast(pl.Int64).to_numpy() if runs is not None else np.zeros(0, dtype=np.int64)
    rows = runs["value"].struct.unnest() if runs is not None else pl.DataFrame({"rank": [], "lane": []})
    offset = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    end = ordered["end_ns"].to_numpy(writable=True)  # compiled loops are specific to the memory layout, too
    row_of_span = np.repeat(np.arange(len(lengths)), lengths)
    reach = (
        pl.DataFrame({"row": row_of_span, "end": end})
        .select(pl.col("end").cum_max().over("row"))["end"]
        .to_numpy(writable=True)
        if len(end)
        else end
    )
    rank = rows["rank"].cast(pl.Int64).to_numpy()
    names = ordered["name"].unique().sort().to_list()
    groups = ordered["group"].drop_nulls().unique().sort().to_list()
    start = ordered["start_ns"].to_numpy(writable=True)
    return SpanIndex(
        kinds=kinds,
        window_ns=(int(start.min()), int(end.max())) if len(start) else (0, 0),
        ranks=np.unique(rank),
        rank=rank,
        lane=tuple(rows["lane"].to_list()),
        label=tuple(label(int(r)) for r in np.unique(rank)),
        offset=offset,
        start=start,
        end=end,
        reach=reach,
        kind=ordered["kind"].to_physical().cast(pl.UInt8).to_numpy(writable=True),
        kinds_present=tuple(ordered["kind"].to_physical().unique().sort().to_list()),
        names=tuple(names),
        name=ordered["name"].cast(pl.Enum(names)).to_physical().cast(pl.UInt32).to_numpy(),
        step=ordered["step"].fill_null(-1).cast(pl.Int32).to_numpy(),
        num_bytes_of=ordered["bytes"].fill_null(-1).to_numpy(),
        groups=tuple(groups),
        group=ordered["group"].cast(pl.Enum(groups)).to_physical().cast(pl.Int32).fill_null(-1).to_numpy(),
        steps=steps,
    )


def _sort(spans: pl.DataFrame) -> pl.DataFrame:
    """Sort by rank, lane and start; files that Prism writes mostly are sorted."""
    keys = ["rank", "lane", "start_ns"]
    before, after = spans.head(max(0, len(spans) - 1)), spans.tail(max(0, len(spans) - 1))
    rank_same, lane_same = before["rank"] == after["rank"], before["lane"] == after["lane"]
    in_order = (before["rank"] < after["rank"]) | (
        rank_same & ((before["lane"] < after["lane"]) | (lane_same & (before["start_ns"] <= after["start_ns"])))
    )
    return spans if in_order.all() else spans.sort(keys)
