"""Durations: how long the messages of each stream took in each step without waiting, and which are comparable."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.findings.case import Calls, Case, Floats, Ints
from prism.observe.findings.collectives import POINT_TO_POINT, number_sizes, number_units
from prism.observe.traffic.medians import median_groups, quantile_groups
from prism.observe.traffic.numbering import begin_together, number_again, number_calls, number_keys

_USUAL = levels.SHARE_QUICK  # of similar pairs this share is surely not slow
_UNHINDERED = levels.SHARE_SMALL  # share of a pair's messages of a step that surely do not wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """What the messages of each stream took in each step, less waiting; `streams` are numbered by their row."""

    streams: pl.DataFrame  # pair src dst kind like_size
    stream: Ints
    step: Ints
    num: Ints
    took: Floats
    mean: Floats
    longest: Floats  # hop of the same collective, on average
    whole: Floats  # with waiting

    def take(self, kept: NDArray[np.bool_]) -> Cells:
        """Some of them."""
        names = ("stream", "step", "num", "took", "mean", "longest", "whole")
        return replace(self, **{name: getattr(self, name)[kept] for name in names})


def measure_durations(case: Case) -> tuple[Cells, pl.DataFrame]:
    """Durations less waiting by stream and step, and the pace of each message.

    A transfer that paused after its first bytes waited for a rank: a slow link slows it, but does not stop it.
    """
    calls, steps = case.calls, case.steps.height
    if "begun" in case.messages.columns:
        calls = calls.take(case.messages["begun"].to_numpy()[calls.message] == 0)
    size = case.messages["bytes"].to_numpy()[calls.message]
    stream, found = number_again(calls.row, len(calls.src))
    streams = case.streams.select("pair", "src", "dst", "kind")[found].with_columns(
        pl.Series("like_size", number_sizes(median_groups(size.astype(np.float64), stream, len(found))))
    )
    number, found = number_again(stream * steps + calls.step, len(found) * steps)
    # A point-to-point message waits if its receiver is busy; of several in a step, some do not wait.
    each, longest = _leave_waiting_out(calls, case.messages["num"].to_numpy()[calls.message], stream, streams)
    between_two = streams["kind"].is_in(POINT_TO_POINT).to_numpy()[found // steps]
    count = np.bincount(number, minlength=len(found))
    whole = (calls.end - calls.start).astype(np.float64)
    mean, most, whole = (np.bincount(number, values, len(found)) / count for values in (each, longest, whole))
    quick = quantile_groups(each, number, len(found), _UNHINDERED) if between_two.any() else mean
    paces = streams.select("pair", pl.col("kind").cast(pl.Categorical))[stream].with_columns(
        stream=pl.Series(stream.astype(np.uint32)),
        step=pl.Series(calls.step.astype(np.int32)),
        begin_ns=pl.Series(calls.end - each.astype(np.int64)),
        end_ns=pl.Series(calls.end),
        pace=pl.Series(each / size),
    )
    cells = Cells(
        streams=streams, stream=found // steps, step=found % steps, num=count,
        # A link that flaps slows some of a step's collectives, which a median would not show.
        took=np.where(between_two, quick, mean), mean=mean, longest=most, whole=np.where(between_two, quick, whole),
    )  # fmt: skip
    return cells.take(cells.took > max(0, 10 * case.resolution_ns)), paces


def compare_with_peers(cells: Cells) -> tuple[Floats, Floats, Ints]:
    """By cell the usual duration of similar messages in the same step, without and with waiting, and the pairs."""
    kind = cells.streams["kind"].rank("dense").to_numpy().astype(np.int64)
    like, pair = (cells.streams[c].to_numpy().astype(np.int64) for c in ("like_size", "pair"))
    alike = (kind * (like.max() + 1) + like)[cells.stream] * (cells.step.max() + 1) + cells.step
    peer, found = number_keys(alike)
    usual, usual_whole = (quantile_groups(v, peer, len(found), _USUAL)[peer] for v in (cells.took, cells.whole))
    _, different = number_keys(peer * (pair.max() + 1) + pair[cells.stream])
    return usual, usual_whole, np.bincount(different // (pair.max() + 1))[peer]


def list_rows(cells: Cells, host: Ints | None = None) -> tuple[pl.DataFrame, Ints]:
    """pair src dst kind unit of everything in the cells, and the row of each stream; `host` is by endpoint."""
    present = np.flatnonzero(np.bincount(cells.stream, minlength=cells.streams.height))
    kind = cells.streams["kind"].rank("dense").to_numpy().astype(np.int64)
    key = (cells.streams["pair"].to_numpy().astype(np.int64) * (int(kind.max()) + 1) + kind)[present]
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    rows = cells.streams.select("pair", "src", "dst", "kind")[present[first]]
    row = np.zeros(cells.streams.height, np.int64)
    row[present] = number
    return rows.with_columns(pl.Series("unit", number_units(rows, host))), row


def _leave_waiting_out(calls: Calls, num: Ints, stream: Ints, streams: pl.DataFrame) -> tuple[Floats, Floats]:
    """What each message took, and the longest hop of its collective; `stream` is the row of each among the streams.

    Hops of a collective that start apart wait for a late rank, so they count from the last start. `num` is how many
    messages the stream of each has in its step.
    """
    apart = streams["kind"].is_in(POINT_TO_POINT).to_numpy()
    kind = streams["kind"].rank("dense").to_numpy().astype(np.int64)
    # Tokens are routed unequally: messages of one exchange are of many sizes.
    like = np.where((streams["kind"] == "ep").to_numpy(), 0, streams["like_size"].to_numpy())
    begin, final = calls.start.copy(), calls.end.copy()
    # A group uses several connections that share no NIC: what is under way at the same time is assumed to be one.
    for group in (number_units(streams), kind):
        sized = np.unique(group * (int(like.max(initial=0)) + 1) + like, return_inverse=True)[1].astype(np.int64)
        sized[apart] = -1
        call, count = number_calls(sized, stream, calls.step, calls.place, num)
        begin_together(call, count, calls.start, calls.end, begin, final)
    return (calls.end - begin).astype(np.float64), (final - begin).astype(np.float64)
