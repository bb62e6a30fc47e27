"""Torn transfers: a hop of a collective that waits for a late rank is cut by an exporter's idle timeout.

The sender fills the buffers of its transport and waits; the rest follows once the late rank has arrived, or first some
of it where another rank arrives before. The records add up to the size of the hops that did not wait, and the last one
ends with a hop that began after the first: that tells them from several messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.traffic.numbering import group_by_number, nearest, number_keys
from prism.observe.traffic.records import EXACT_SIZE, list_frequent_sizes

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TornConfig:
    """Which records may be parts of one transfer."""

    together_ns: int = levels.MILLISECOND_NS  # by which hops of one collective may end apart
    agreeing: float = levels.SHARE_MAJORITY  # share of such runs of records that end with a whole hop
    most_parts: int = levels.MIN_STATISTICS  # of one transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Torn:
    """Of each record that goes on with a torn transfer its row, the row of the first part, and whether it ends it."""

    part: Ints
    head: Ints
    ends: NDArray[np.bool_]


def find_torn(connection: Ints, start: Ints, end: Ints, size: Ints, config: TornConfig | None = None) -> Torn:
    """Records that are parts of one transfer; those of a connection are in order of start."""
    config = config or TornConfig()
    sizes, _ = list_frequent_sizes(size)
    sizes = sizes[sizes >= levels.SMALL_MESSAGE_BYTES]
    order, begin = group_by_number(connection, int(connection.max(initial=-1)) + 1)
    first, last, whole = _list_runs(order, begin, size, sizes, config.most_parts)
    if not len(first):
        return Torn(part=first, head=first, ends=np.zeros(0, np.bool_))
    number = _number_sizes(size, sizes, EXACT_SIZE)
    met = np.zeros(len(first), np.bool_)
    for w in np.unique(whole).tolist():
        own, hops = np.flatnonzero(whole == w), np.flatnonzero(number == w)
        met[own] = _go_with(order[first[own]], order[last[own]], hops, start, end, config.together_ns)
    # Runs of one whole, of as many parts and of the same first and last size are alike: all of them are torn, or none.
    ends = [number[order[at]] + 1 for at in (first, last)]
    kind, _ = number_keys(
        ((whole * (len(sizes) + 1) + ends[0]) * (len(sizes) + 1) + ends[1]) * config.most_parts + last - first
    )
    share = np.bincount(kind, met) / np.bincount(kind)
    agreeing = (share >= config.agreeing)[kind]
    return _list_parts(order, first[agreeing], last[agreeing])


def _go_with(heads: Ints, tails: Ints, hops: Ints, start: Ints, end: Ints, apart_ns: int) -> NDArray[np.bool_]:
    """Which records end with a hop that was not cut and began after the head: it waited for less long."""
    hops = hops[np.argsort(end[hops], kind="stable")]
    met = np.zeros(len(tails), np.bool_)
    if not len(hops):
        return met
    at = np.searchsorted(end[hops], end[tails])
    for shift in (-1, 0):
        near = hops[np.clip(at + shift, 0, len(hops) - 1)]
        met |= (np.abs(end[near] - end[tails]) <= apart_ns) & (start[near] > end[heads])
    return met


def _number_sizes(size: Ints, sizes: Ints, tolerance: float) -> Ints:
    """The number of the frequent size of each record, -1 for others."""
    near = nearest(sizes, size)
    return np.where(np.abs(sizes[near] - size) <= tolerance * size, near, -1)


def _list_parts(order: Ints, first: Ints, last: Ints) -> Torn:
    """The parts of runs of records, each in one run at most: the one that ends first, of these the longest."""
    kept = _part_runs(first, last)
    first, last = first[kept], last[kept]
    num = last - first
    run = np.repeat(np.arange(len(num)), num)
    at = first[run] + 1 + np.arange(len(run)) - np.repeat(np.cumsum(num) - num, num)
    return Torn(part=order[at], head=order[first[run]], ends=at == last[run])


@numba.njit(cache=True, nogil=True)
def _part_runs(first: Ints, last: Ints) -> NDArray[np.bool_]:
    kept = np.zeros(len(first), np.bool_)
    taken = -1
    for i in range(len(first)):  # in order of their ends, the longest first
        if first[i] > taken:
            kept[i] = True
            taken = last[i]
    return kept


@numba.njit(cache=True, nogil=True)
def _list_runs(order: Ints, begin: Ints, size: Ints, sizes: Ints, most_parts: int) -> tuple[Ints, Ints, Ints]:
    """Records that follow each other on a connection and add up to a frequent size: first, last, number of the size.

    Messages of about one size are several. A few bytes are a message of their own: a transfer that waits has filled the
    buffers of its transport.
    """
    room, num = 1024, 0
    found = np.empty((3, room), np.int64)
    largest = sizes[-1] if len(sizes) else 0
    for g in range(len(begin) - 1):
        for j in range(begin[g] + 1, begin[g + 1]):
            total = least = most = size[order[j]]
            until = max(begin[g], j - most_parts + 1)
            longest = num
            for i in range(j - 1, until - 1, -1):
                own = size[order[i]]
                total, least, most = total + own, min(least, own), max(most, own)
                if total > (1 + EXACT_SIZE) * largest or least < levels.SMALL_MESSAGE_BYTES:
                    break
                if most - least <= levels.SIZE_DIFFERENCE * most:
                    continue
                near = np.searchsorted(sizes, total)
                if near == len(sizes) or (near > 0 and total - sizes[near - 1] < sizes[near] - total):
                    near -= 1
                if abs(sizes[near] - total) <= EXACT_SIZE * total:
                    if num == room:
                        found = np.concatenate((found, np.empty((3, room), np.int64)), axis=1)
                        room *= 2
                    found[0, num], found[1, num], found[2, num] = i, j, near
                    num += 1
            found[:, longest:num] = found[:, longest:num][:, ::-1].copy()
    return found[0, :num].copy(), found[1, :num].copy(), found[2, :num].copy()
