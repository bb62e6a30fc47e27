"""Transfers that waited halfway, for a window or for a neighbour of a ring, and so were cut into bursts: joined again.

The pieces give themselves away: each is of a size that its connection does not usually send, and together they are of
one that it does.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.kernel import njit

Ints = NDArray[np.int64]

_CONNECTION = ("src", "dst", "src_port", "dst_port")
_NOTICE_BYTES = 4096  # what is smaller announces or acknowledges transfers
_ALIKE = 0.02  # of a size: headers and notices that came along
_USUAL = 0.3  # of the number of the commonest size
_MOST_PIECES = 6


def join_torn(flows: pl.DataFrame, wait_ns: int) -> pl.DataFrame:
    """FLOWS with the bursts joined that are pieces of one transfer, none more than `wait_ns` after the one before."""
    large = flows.filter(pl.col("bytes") >= _NOTICE_BYTES, pl.col("qp").is_null()).sort(*_CONNECTION, "start_ns")
    if large.is_empty():
        return flows
    connection = large.select(pl.struct(_CONNECTION).rle_id()).to_series().to_numpy().astype(np.int64)
    start, end, size = (large[c].to_numpy() for c in ("start_ns", "end_ns", "bytes"))
    begin = np.append(np.flatnonzero(np.diff(connection, prepend=-1)), len(connection))
    whole = _number_transfers(start, end, size, begin, wait_ns)
    first = pl.all().exclude("end_ns", "bytes", "packets").first()
    joined = large.group_by(pl.Series("whole", whole), maintain_order=True).agg(
        first, pl.col("end_ns").max(), pl.col("bytes", "packets").sum()
    )
    rest = flows.filter((pl.col("bytes") < _NOTICE_BYTES) | pl.col("qp").is_not_null())
    return pl.concat([rest, joined.select(flows.columns)]).sort("end_ns")


@njit(cache=True, nogil=True)
def _number_transfers(start: Ints, end: Ints, size: Ints, begin: Ints, wait_ns: int) -> Ints:
    """The transfer that each burst belongs to; the bursts of connection c are begin[c]:begin[c + 1]."""
    whole = np.arange(len(size))
    for c in range(len(begin) - 1):
        own = size[begin[c] : begin[c + 1]]
        usual = _find_usual(own)
        i = 0
        while i < len(own):
            total, k = own[i], i
            while not _is_among(total, usual) and not _is_among(own[i], usual):
                k += 1
                at = begin[c] + k
                if (
                    k == len(own)
                    or k - i == _MOST_PIECES
                    or _is_among(own[k], usual)
                    or start[at] - end[at - 1] > wait_ns
                ):
                    k = i
                    break
                total += own[k]
            whole[begin[c] + i : begin[c] + k + 1] = begin[c] + i
            i = k + 1
    return whole


@njit(cache=True, nogil=True)
def _find_usual(sizes: Ints) -> Ints:
    """Sizes that are sent again and again."""
    ordered = np.sort(sizes)
    middle = np.zeros(len(ordered), np.int64)
    count = np.zeros(len(ordered), np.int64)
    found = 0
    low = 0
    for i in range(1, len(ordered) + 1):
        if i == len(ordered) or ordered[i] > (1 + _ALIKE) * ordered[low]:
            middle[found], count[found] = ordered[(low + i) // 2], i - low
            found += 1
            low = i
    usual: Ints = middle[:found][count[:found] >= max(3.0, _USUAL * count.max())]
    return usual


@njit(cache=True, nogil=True)
def _is_among(size: int, usual: Ints) -> bool:
    return bool(np.any(np.abs(usual - size) <= _ALIKE * usual))
