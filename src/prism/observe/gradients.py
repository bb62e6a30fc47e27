"""Gradients: whether they leave while the backward pass still runs, and how far apart ranks are once all have left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from prism.observe.period import Floats, Times

_LAYERS = 8  # bursts of a step: as many layers, or more
_BUCKETS = 2.7  # bursts of a step: two buckets of gradients, one of parameters; some may be lost
_SEVERAL = 1.5  # messages of gradients in a step
_ALONE = 0.7  # share of them that nothing comes just before
_APART = 1e-3  # of a period: silence that sets bursts apart
_MOST_APART = 0.01  # of a step
_AT_ONCE_NS = 1_000  # ends so close are one moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """What a job sends of kind dp, by one pair: its largest messages are gradients, in higher precision than the rest.

    Gradients that leave `early` overlap with compute; the parameters that follow the update then overlap with the next
    step's.
    """

    size: int  # class of the largest messages
    gathered: bool  # whether there are others: parameters
    early: bool
    rest_ns: int  # usual time from the last gradients to the first parameters


def study_gradients(
    start: Times, end: Times, row: Times, voices: pl.DataFrame, num_steps: float, period_ns: float
) -> Gradients | None:
    """How a job's gradients leave, by the pair with the largest ones; `row` is the voice of each message."""
    kind, size = voices["kind"].to_numpy(), size_up(voices["bytes"].to_numpy())
    often = np.flatnonzero((kind == "dp") & (np.bincount(row, minlength=len(kind)) >= 0.5 * num_steps))
    if not len(often):
        return None
    largest = int(often[np.argmax(size[often])])
    ends = [voices[c].to_numpy() for c in ("src", "dst")]
    pair = (kind == "dp") & (ends[0] == ends[0][largest]) & (ends[1] == ends[1][largest])
    own = np.flatnonzero(pair[row])
    fresh = np.ones(len(own), np.bool_)
    fresh[1:] = start[own[1:]] - np.maximum.accumulate(end[own])[:-1] > _APART * period_ns
    gradients = size[row[own]] == size[largest]
    by_bucket = fresh.sum() >= _BUCKETS * num_steps and gradients.sum() >= _SEVERAL * num_steps
    by_bucket = by_bucket and fresh[gradients].mean() >= _ALONE
    turns = np.flatnonzero(gradients[:-1] & ~gradients[1:])
    return Gradients(
        size=int(size[largest]),
        gathered=not gradients.all(),
        early=bool(fresh.sum() >= _LAYERS * num_steps or by_bucket),
        rest_ns=int(np.median(start[own[turns + 1]] - end[own[turns]])) if len(turns) else 0,
    )


def count_before(marks: Times, start: Times, row: Times, voices: pl.DataFrame, size: int) -> int:
    """How many messages of kind dp usually come between a mark and the next gradients: parameters.

    A job that starts has these already.
    """
    of_kind = (voices["kind"] == "dp").to_numpy()
    gradients = np.flatnonzero((of_kind & (size_up(voices["bytes"].to_numpy()) == size))[row])
    at = np.searchsorted(start, marks)
    after = np.searchsorted(gradients, at)
    known = after < len(gradients)
    total = np.concatenate([[0], np.cumsum(of_kind[row])])
    return int(np.median(total[gradients[after[known]]] - total[at[known]])) if known.any() else 0


def size_up(size: Floats) -> Times:
    """A number that messages of about one size share."""
    return np.asarray(np.round(np.log(np.maximum(size, 1.0)) / 0.05), np.int64)


def measure_apart(marks: Times, start: Times, end: Times, row: Times, voices: pl.DataFrame) -> int:
    """How long before the last rank the first one has its parameters, usually, where these strike the marks.

    Nothing where the last that a rank sends is not smaller than the most that it does, or where ranks are so far apart
    that they do not gather at the same time.
    """
    of_kind = (voices["kind"] == "dp").to_numpy()
    size, src = size_up(voices["bytes"].to_numpy()), voices["src"].to_numpy()
    most = np.zeros(int(src.max(initial=0)) + 1, np.int64)
    np.maximum.at(most, src[of_kind], size[of_kind])
    parameters = of_kind & (size < most[src])
    nodes = np.unique(np.concatenate([voices[c].to_numpy()[of_kind] for c in ("src", "dst")]))
    last = np.full((2, len(marks) + 1, len(nodes)), -1, np.int64)
    for i, chosen in enumerate((of_kind, parameters)):
        own = np.flatnonzero(chosen[row])
        interval = np.searchsorted(marks, start[own])
        for side in ("src", "dst"):
            node = np.searchsorted(nodes, voices[side].to_numpy())[row[own]]
            np.maximum.at(last[i], (interval, node), end[own])
    ends = last[0, :-1]
    struck = np.all((ends >= 0) & (ends == last[1, :-1]), axis=1) & (np.abs(ends.max(axis=1) - marks) <= _AT_ONCE_NS)
    apart = int(np.median(np.ptp(ends[struck], axis=1))) if struck.sum() >= 0.5 * len(marks) else 0
    return apart if apart <= _MOST_APART * float(np.median(np.diff(marks))) else 0
