"""Gradient overlap: whether gradients are sent while the backward pass still runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from prism.observe import levels
from prism.observe.traffic.period import Floats, Times

_LAYERS = levels.MIN_STATISTICS  # bursts of a step: as many layers, or more
_BUCKETS = levels.RATIO_DOUBLE  # bursts of a step: two buckets of gradients, one of parameters; some may be lost
_SEVERAL = levels.RATIO_LONGER  # messages of gradients in a step
_ALONE = levels.SHARE_MAJORITY  # share of them with nothing sent just before
_AS_MUCH = (
    levels.SHARE_HALF - levels.SIZE_DIFFERENCE
)  # of the bytes of gradients: those of parameters in half precision
CLEAR_GAP = 0.25  # of a period
BURSTS_APART = levels.ONE_PER_MILLE  # of a period: silence that sets bursts apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """What a job sends of kind dp, by one pair: its largest messages are gradients, in higher precision than the rest.

    Gradients that leave `early` overlap with compute; the parameters that follow the update then overlap with the next
    step's.
    """

    size: int  # class of the largest messages
    gathered: bool  # whether others carry as much as parameters do; a last bucket of gradients is smaller, too
    early: bool
    mixed: bool = False  # whether others come between two gradients of a step


def study_gradients(
    start: Times, end: Times, row: Times, streams: pl.DataFrame, num_steps: float, period_ns: float
) -> Gradients | None:
    """How a job's gradients leave, by the pair with the largest ones; `row` is the stream of each message."""
    kind, size = streams["kind"].to_numpy(), size_up(streams["bytes"].to_numpy())
    often = np.flatnonzero((kind == "dp") & (np.bincount(row, minlength=len(kind)) >= 0.5 * num_steps))
    if not len(often):
        return None
    largest = int(often[np.argmax(size[often])])
    ends = [streams[c].to_numpy() for c in ("src", "dst")]
    pair = (kind == "dp") & (ends[0] == ends[0][largest]) & (ends[1] == ends[1][largest])
    own = np.flatnonzero(pair[row])
    fresh = np.ones(len(own), np.bool_)
    fresh[1:] = start[own[1:]] - np.maximum.accumulate(end[own])[:-1] > BURSTS_APART * period_ns
    gradients = size[row[own]] == size[largest]
    load = streams["bytes"].to_numpy()[row[own]]
    by_bucket = fresh.sum() >= _BUCKETS * num_steps and gradients.sum() >= _SEVERAL * num_steps
    by_bucket = by_bucket and fresh[gradients].mean() >= _ALONE
    before = np.cumsum(gradients) - 1
    apart = np.diff(start[own][gradients], append=2**62) > CLEAR_GAP * period_ns  # of each and the next one
    inside = ~gradients & (before >= 0) & ~apart[before]
    return Gradients(
        size=int(size[largest]),
        gathered=bool(load[~gradients].sum() >= _AS_MUCH * load[gradients].sum()),
        early=bool(fresh.sum() >= _LAYERS * num_steps or by_bucket),
        mixed=bool(load[inside].sum() > levels.SHARE_SMALL * load[~gradients].sum()),
    )


def count_before(marks: Times, start: Times, row: Times, streams: pl.DataFrame, size: int) -> int:
    """How many messages of kind dp usually come between a mark and the next gradients: parameters.

    A job that starts has these already.
    """
    of_kind = (streams["kind"] == "dp").to_numpy()
    gradients = np.flatnonzero((of_kind & (size_up(streams["bytes"].to_numpy()) == size))[row])
    at = np.searchsorted(start, marks)
    after = np.searchsorted(gradients, at)
    known = after < len(gradients)
    total = np.concatenate([[0], np.cumsum(of_kind[row])])
    return int(np.median(total[gradients[after[known]]] - total[at[known]])) if known.any() else 0


def size_up(size: Floats) -> Times:
    """A number that messages of about one size share."""
    return np.asarray(np.round(np.log(np.maximum(size, 1.0)) / 0.05), np.int64)
