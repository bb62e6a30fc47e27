"""Exchanges: what the two ends of a connection send to each other at the same time."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.traffic.table import Traffic

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

_ANSWERED = levels.SHARE_HALF  # of a stream's messages
_AT_ONCE = levels.SHARE_HALF  # of the bytes: 0.27 in pipelines at most, 0.69 in sums of two ranks at least
_SHORT = levels.SHARE_QUICK  # of the time from one exchange to the next: shorter silences are part of one
_LEAST = levels.SMALL_MESSAGE_BYTES  # smaller records are acknowledgements


def with_exchanges(traffic: Traffic, streams: pl.DataFrame) -> pl.DataFrame:
    """Streams whose messages are `together` with answers at least as often as their connection's bytes are exchanged.

    Two ranks that sum gradients send to each other at once, but where one waits for a core records end far apart, and
    so do the messages in them. Stages send in turns, however soon they answer. Only ports name both ways.
    """
    if "src_port" not in traffic.streams.columns:
        return streams
    asked = streams.filter(pl.col("answered") >= _ANSWERED)
    ways = asked.select("unit", "src", "dst", "src_port", "dst_port").unique("unit", maintain_order=True)
    found: dict[tuple[int, ...], list[int]] = {}
    for stream, *way in streams.select("stream", *ways.columns[1:]).iter_rows():
        found.setdefault(tuple(way), []).append(stream)
    shares = []
    for _, src, dst, port, other in ways.iter_rows():
        there, back = (found.get(way, []) for way in ((src, dst, port, other), (dst, src, other, port)))
        shares.append(share_exchanged(np.array(there, np.int64), np.array(back, np.int64), traffic))
    exchanged = pl.DataFrame({"unit": ways["unit"], "exchanged": pl.Series(shares, dtype=pl.Float64)})
    return streams.join(exchanged, on="unit", how="left", maintain_order="left").with_columns(
        pl.max_horizontal("together", "exchanged").alias("together")
    ).drop("exchanged")  # fmt: skip


def share_exchanged(there: Ints, back: Ints, traffic: Traffic) -> float:
    """The share of the bytes of two ways' streams that is exchanged; 0 where they mostly send in turns."""
    rows = [traffic.rows_of_streams(streams) for streams in (there, back)]
    row, onward = np.concatenate(rows), np.repeat([True, False], [len(own) for own in rows])
    large = traffic.columns["bytes"][row] >= _LEAST
    row, onward = row[large], onward[large]
    order = np.argsort(traffic.columns["start_ns"][row], kind="stable")
    start, end, size = (traffic.columns[c][row[order]] for c in ("start_ns", "end_ns", "bytes"))
    if not len(start):
        return 0.0
    rests = np.maximum(start[1:] - np.maximum.accumulate(end)[:-1], 0)
    if _sum_even(rests > 0, size, onward[order]) < _AT_ONCE:
        return 0.0
    short = _SHORT * float(start[-1] - start[0]) / max(int((rests > 0).sum()), 1)
    return _sum_even(rests > short, size, onward[order])


def _sum_even(apart: Flags, size: Ints, onward: Flags) -> float:
    """The share of the bytes that come back in the same part, where parts begin `apart` from what was before."""
    part = np.append(0, np.cumsum(apart))
    there, back = (np.bincount(part, size * way) for way in (onward, ~onward))
    return float(2 * np.minimum(there, back).sum() / max(size.sum(), 1))
