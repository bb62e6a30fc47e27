"""Collectives: which streams carry the same collective, and which of their messages belong to one call."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.kernel import kernel
from prism.observe import levels
from prism.observe.jobs.grouping import connect
from prism.observe.traffic.numbering import group_by_number, number_keys

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
    """For each row a number shared by rows that belong together: a pair, or the hops of one group's collectives.

    Tokens leave by all NICs of a host (by endpoint its `host`, where known), and an exchange is over with the last.
    """
    kind = rows["kind"].rank("dense").to_numpy().astype(np.int64)
    pair, src, dst = (rows[c].to_numpy().astype(np.int64) for c in ("pair", "src", "dst"))
    if host is not None:
        routed = (rows["kind"] == "ep").to_numpy()
        src, dst = np.where(routed, host[src], src), np.where(routed, host[dst], dst)
    alone = rows["kind"].is_in(POINT_TO_POINT).to_numpy()
    tied = rows["kind"].is_in(["dp", "ep", "tp", "embedding"]).to_numpy()
    most = int(max(src.max(initial=0), dst.max(initial=0))) + 1
    kinds = int(kind.max(initial=0)) + 1
    ends = kind * most + src, kind * most + dst
    group = connect(kinds * most, ends[0][tied], ends[1][tied])[ends[0]]
    number: Ints = number_keys(np.where(alone, -1 - kind - kinds * pair, group))[0]
    return number


def place_calls(messages: pl.DataFrame, streams: pl.DataFrame, row: Ints, num_steps: int) -> pl.DataFrame:
    """The messages with their `place` and `num` by the calls that they are of, where records are lost.

    `row` is the stream of each message, by its row among the streams. If a record is missing, the same position in two
    streams belongs to different calls. Hops of one call are under way at the same time, and those of
    the next call begin when they are over.
    """
    regular = ((streams["role"] != "rare") & ~streams["kind"].is_in([*POINT_TO_POINT, "unknown"])).to_numpy()
    like = number_sizes(streams["bytes"].to_numpy().astype(np.float64))
    group = np.unique(number_units(streams) * (int(like.max(initial=0)) + 1) + like, return_inverse=True)[1]
    cells = np.where(regular, group, -1) * num_steps
    place, num, start, end = (messages[c].to_numpy() for c in ("place", "num", "start_ns", "end_ns"))
    torn, cell = _list_torn(cells, row, messages["step"].to_numpy(), num, num_steps)
    if not len(torn):
        return messages
    order = _order_by_cell(cell, start[torn])
    torn, cell = torn[order], cell[order]
    place, num = place.copy(), num.copy()
    place[torn], num[torn] = _place_by_overlap(cell, row[torn], start[torn], end[torn], streams.height)
    return messages.with_columns(pl.Series("place", place), pl.Series("num", num))


@kernel
def _list_torn(cells: Ints, row: Ints, step: Ints, num: Ints, num_steps: int) -> tuple[Ints, Ints]:
    """Messages of groups and steps in which a stream has fewer than the fullest of its group in any step; their cells.

    `cells` are the first cell of each stream's group, below zero where it is none of a collective.
    """
    count = max(cells.max() // num_steps + 1, 0) if len(cells) and num_steps else 0
    full, fewest = np.zeros(count, np.int64), np.full(count * num_steps, 2**62, np.int64)
    for i in range(len(row)):
        first = cells[row[i]]
        if first >= 0 and step[i] >= 0:
            full[first // num_steps] = max(full[first // num_steps], num[i])
            fewest[first + step[i]] = min(fewest[first + step[i]], num[i])
    torn, cell, found = np.empty(len(row), np.int64), np.empty(len(row), np.int64), 0
    for i in range(len(row)):
        first = cells[row[i]]
        if first >= 0 and step[i] >= 0 and fewest[first + step[i]] < full[first // num_steps]:
            torn[found], cell[found] = i, first + step[i]
            found += 1
    return torn[:found].copy(), cell[:found].copy()


@kernel
def _order_by_cell(cell: Ints, start: Ints) -> Ints:
    """The order of messages by cell and then by start."""
    order, begin = group_by_number(cell, cell.max() + 1)
    for k in range(len(begin) - 1):
        own = order[begin[k] : begin[k + 1]]
        if len(own) > 1:
            order[begin[k] : begin[k + 1]] = own[np.argsort(start[own], kind="mergesort")]
    return np.asarray(order)


@kernel
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
