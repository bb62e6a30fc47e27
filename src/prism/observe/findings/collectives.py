"""Collectives: which streams carry the same one, and which of their messages are one call."""

from __future__ import annotations

import numba
import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe import levels

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

POINT_TO_POINT = ("pp", "cp")
"""Kinds whose messages run at their own pace; those of collectives end together."""

_LIKE = levels.SHARE_NEGLIGIBLE  # sizes that differ by less, as a share, are alike
_SKEW = levels.SHARE_SMALL  # of a message: hops of one call end within this much of each other


def number_sizes(sizes: Floats) -> Ints:
    """By stream a number that those with messages of nearly equal size share, over all pairs."""
    order = np.argsort(sizes, kind="stable")
    like = np.empty(len(sizes), np.int64)
    like[order] = np.cumsum(np.diff(np.log(sizes[order] + 1), prepend=np.inf) > _LIKE)
    return like


def number_units(rows: pl.DataFrame, host: Ints | None = None) -> Ints:
    """For each row a number shared by what hangs together: a pair alone, or the hops of one group's collectives.

    Tokens leave by all NICs of a host (by endpoint its `host`, where known), and an exchange is over with the last.
    """
    parent: dict[tuple[str, int], tuple[str, int]] = {}

    def root(x: tuple[str, int]) -> tuple[str, int]:
        while parent.setdefault(x, x) != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    keys: list[tuple[str, int]] = []
    for pair, src, dst, kind in rows.select("pair", "src", "dst", "kind").iter_rows():
        if kind in POINT_TO_POINT:
            keys.append((f"{kind} alone", pair))
            continue
        if kind == "ep" and host is not None:
            src, dst = int(host[src]), int(host[dst])
        a, b = root((kind, src)), root((kind, dst))
        parent[max(a, b)] = min(a, b)
        keys.append((kind, src))
    roots = [root(k) if k[0] in ("dp", "ep", "tp", "embedding") else k for k in keys]
    number = {r: i for i, r in enumerate(dict.fromkeys(roots))}
    return np.array([number[r] for r in roots], np.int64)


def place_calls(messages: pl.DataFrame, streams: pl.DataFrame, row: Ints, num_steps: int) -> pl.DataFrame:
    """The messages with their `place` and `num` by the calls that they are of, where records are lost.

    `row` is the stream of each message, by its row among the streams. A place that is counted in one stream is that of
    another call in the next one once a record is missing. Hops of one call are under way at the same time, and those of
    the next call begin when they are over.
    """
    regular = ((streams["role"] != "rare") & ~streams["kind"].is_in([*POINT_TO_POINT, "unknown"])).to_numpy()
    step = messages["step"].to_numpy().astype(np.int64)
    own = np.flatnonzero(regular[row] & (step >= 0))
    if not len(own):
        return messages
    like = number_sizes(streams["bytes"].to_numpy().astype(np.float64))
    group = np.unique(number_units(streams) * (int(like.max()) + 1) + like, return_inverse=True)[1].astype(np.int64)
    place, num, start, end = (messages[c].to_numpy().astype(np.int64) for c in ("place", "num", "start_ns", "end_ns"))
    cell = group[row[own]] * num_steps + step[own]
    full = np.zeros(int(group.max()) + 1, np.int64)
    np.maximum.at(full, group[row[own]], num[own])
    fewest = np.full(len(full) * num_steps, np.iinfo(np.int64).max)
    np.minimum.at(fewest, cell, num[own])
    torn = own[fewest[cell] < full[group[row[own]]]]
    if not len(torn):
        return messages
    cell = group[row[torn]] * num_steps + step[torn]
    order = np.lexsort((start[torn], cell))
    torn, cell = torn[order], cell[order]
    place[torn], num[torn] = _place_by_overlap(cell, row[torn], start[torn], end[torn], streams.height)
    return messages.with_columns(pl.Series("place", place.astype(np.int32)), pl.Series("num", num.astype(np.int32)))


@numba.njit(cache=True, nogil=True)
def _place_by_overlap(cell: Ints, row: Ints, start: Ints, end: Ints, num_rows: int) -> tuple[Ints, Ints]:
    """The call of each message in its cell, and how many the cell has; messages in the order of cells and starts."""
    place, num = np.zeros(len(cell), np.int64), np.zeros(len(cell), np.int64)
    seen = np.full(num_rows, -1, np.int64)  # the call that a stream was last seen in, counted over all cells
    call = first_call = first = 0
    over = np.int64(2**62)  # when the first of the call's messages ends
    for i in range(len(cell)):
        if i and cell[i] != cell[i - 1]:
            num[first:i] = call - first_call + 1
            call, first, over = call + 1, i, np.int64(2**62)
            first_call = call
        elif start[i] + _SKEW * (end[i] - start[i]) >= over or seen[row[i]] == call:
            call, over = call + 1, np.int64(2**62)
        seen[row[i]] = call
        over = min(over, end[i])
        place[i] = call - first_call
    num[first:] = call - first_call + 1
    return place, num
