"""Torn transfers: a hop of a collective that waits for a late rank is cut in two by an exporter's idle timeout.

The sender fills the buffers of its transport and waits; the rest follows once the late rank has arrived. The two
records add up to the size of the hops that did not wait, and the second ends with one that
began after the first: that tells them from two messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.traffic.numbering import group_by_number, nearest
from prism.observe.traffic.records import EXACT_SIZE, list_frequent_sizes

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TornConfig:
    """Which records may be parts of one transfer."""

    together_ns: int = levels.MILLISECOND_NS  # by which hops of one collective may end apart
    agreeing: float = levels.SHARE_MAJORITY  # share of the pairs of records that end with a whole hop


@dataclass(frozen=True, slots=True, kw_only=True)
class Torn:
    """Rows that begin a torn transfer, and the rows that end it."""

    head: Ints
    tail: Ints


def find_torn(connection: Ints, start: Ints, end: Ints, size: Ints, config: TornConfig | None = None) -> Torn:
    """Records that are the two parts of one transfer; those of a connection are in order of start."""
    config = config or TornConfig()
    none = Torn(head=np.zeros(0, np.int64), tail=np.zeros(0, np.int64))
    sizes, _ = list_frequent_sizes(size)
    whole = _list_sums(sizes, EXACT_SIZE)
    if not len(sizes) or (whole < 0).all():
        return none
    number = _number_sizes(size, sizes, EXACT_SIZE)
    order, begin = group_by_number(connection, int(connection.max(initial=-1)) + 1)
    head, tail = _list_candidates(order, begin, number, whole)
    if not len(head):
        return none
    kept = np.zeros(len(head), np.bool_)
    kinds = number[head] * len(sizes) + number[tail]
    for kind in np.unique(kinds).tolist():
        own = np.flatnonzero(kinds == kind)
        hops = np.flatnonzero(number == whole[kind // len(sizes), kind % len(sizes)])
        kept[own] = _go_with(head[own], tail[own], hops, start, end, config.together_ns) >= config.agreeing
    return Torn(head=head[kept], tail=tail[kept])


def _go_with(heads: Ints, tails: Ints, hops: Ints, start: Ints, end: Ints, apart_ns: int) -> float:
    """The share of records that end with a hop that was not cut and began after the head: it waited for less long."""
    hops = hops[np.argsort(end[hops], kind="stable")]
    met = np.zeros(len(tails), np.bool_)
    at = np.searchsorted(end[hops], end[tails])
    for shift in (-1, 0):
        near = hops[np.clip(at + shift, 0, len(hops) - 1)]
        met |= (np.abs(end[near] - end[tails]) <= apart_ns) & (start[near] > end[heads])
    return float(met.mean())


def _list_sums(sizes: Ints, tolerance: float) -> Ints:
    """For every two sizes the one that they add up to, -1 for none.

    Two of about one size are two messages. A few bytes are a message of their own: a transfer that waits has filled the
    buffers of its transport.
    """
    total = sizes[:, None] + sizes[None, :]
    at = np.clip(np.searchsorted(sizes, total), 0, max(len(sizes) - 1, 0))
    best = np.full(total.shape, -1, np.int64)
    for shift in (0, -1):
        near = np.clip(at + shift, 0, max(len(sizes) - 1, 0))
        close = np.abs(sizes[near] - total) <= tolerance * total
        best = np.where(close & (best < 0), near, best)
    best[np.abs(sizes[:, None] - sizes[None, :]) <= levels.SIZE_DIFFERENCE * sizes[:, None]] = -1
    best[sizes < levels.SMALL_MESSAGE_BYTES] = -1
    return best


def _number_sizes(size: Ints, sizes: Ints, tolerance: float) -> Ints:
    """The number of the frequent size of each record, -1 for others."""
    near = nearest(sizes, size)
    return np.where(np.abs(sizes[near] - size) <= tolerance * size, near, -1)


@numba.njit(cache=True, nogil=True)
def _list_candidates(order: Ints, begin: Ints, number: Ints, whole: Ints) -> tuple[Ints, Ints]:
    """Records that follow each other on a connection and add up to a frequent size; each is in one pair at most."""
    head, tail = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    num = 0
    for g in range(len(begin) - 1):
        i = begin[g]
        while i + 1 < begin[g + 1]:
            a, b = order[i], order[i + 1]
            if number[a] >= 0 and number[b] >= 0 and whole[number[a], number[b]] >= 0:
                head[num], tail[num] = a, b
                num += 1
                i += 2
            else:
                i += 1
    return head[:num].copy(), tail[:num].copy()
