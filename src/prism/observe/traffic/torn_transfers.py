"""Torn transfers: a hop of a collective that waits for a late rank is cut in two by an exporter's idle timeout.

The sender fills the buffers of its transport and waits; the rest follows once the late rank has arrived. The two
records add up to the size of the hops that did not wait, and the second ends with one that
began after the first: that tells them from two messages. Where each hop was cut elsewhere, the two records of each add
up to one size all the same, which two messages do not, and all go on at one moment.
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

_SPLITS = 1000  # parts of a size by which one cut is told from another
_CUT_APART = levels.MIN_COMPARED  # places at which transfers of one size were cut


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
    order, begin = group_by_number(connection, int(connection.max(initial=-1)) + 1)
    head, tail = _find_cut_alike(order, begin, start, end, size, config)
    if not len(head):
        head, tail = _find_cut_apart(order, connection, start, end, size)
    return Torn(head=head, tail=tail)


def _find_cut_alike(
    order: Ints, begin: Ints, start: Ints, end: Ints, size: Ints, config: TornConfig
) -> tuple[Ints, Ints]:
    """Records of two frequent sizes that add up to a third, and end with hops of that size."""
    sizes, _ = list_frequent_sizes(size)
    whole = _list_sums(sizes, EXACT_SIZE)
    number = _number_sizes(size, sizes, EXACT_SIZE) if (whole >= 0).any() else np.full(len(size), -1)
    head, tail = _list_candidates(order, begin, number, whole)
    kept = np.zeros(len(head), np.bool_)
    kinds = number[head] * len(sizes) + number[tail]
    for kind in np.unique(kinds).tolist():
        own = np.flatnonzero(kinds == kind)
        hops = np.flatnonzero(number == whole[kind // len(sizes), kind % len(sizes)])
        kept[own] = _go_with(head[own], tail[own], hops, start, end, config.together_ns) >= config.agreeing
    return head[kept], tail[kept]


def _find_cut_apart(order: Ints, connection: Ints, start: Ints, end: Ints, size: Ints) -> tuple[Ints, Ints]:
    """Records that follow each other and add up to one size on many connections, cut elsewhere on each of them."""
    head, tail = order[:-1], order[1:]
    follow = (connection[head] == connection[tail]) & (end[head] < start[tail])
    head, tail = head[follow], tail[follow]
    total = (size[head] + size[tail]).astype(np.float64)
    key = np.round(np.log(total) / EXACT_SIZE).astype(np.int64)
    cut, found = number_keys(key)
    # Two messages that take turns are of the same two sizes on all connections.
    _, owner = number_keys(cut * _SPLITS + np.floor(_SPLITS * size[head] / total).astype(np.int64))
    many = np.bincount(owner // _SPLITS, minlength=len(found)) >= _CUT_APART
    often = np.bincount(cut, minlength=len(found)) >= levels.THREE_PER_MILLE * len(size)
    kept = (many & often)[cut]
    head, tail, cut = head[kept], tail[kept], cut[kept]
    if not len(head):
        return head, tail
    # The heads of a collective end one by one, its tails begin together: that tells a tail from the next head.
    mates = _count_near(start[tail], (levels.ONE_PERCENT * (start[tail] - end[head])).astype(np.int64))
    rival = np.zeros(len(size), np.int64)
    for side in (head, tail):
        np.maximum.at(rival, side, mates)
    best = (mates >= rival[head]) & (mates >= rival[tail]) & (mates >= _CUT_APART)
    head, tail = head[best], tail[best]
    _, first = np.unique(tail, return_index=True)
    head, tail = head[first], tail[first]
    alone = ~np.isin(head, tail)
    return head[alone], tail[alone]


def _count_near(moments: Ints, apart: Ints) -> Ints:
    """How many moments are as near to each one."""
    ordered = np.sort(moments)
    near = np.searchsorted(ordered, moments + apart, "right") - np.searchsorted(ordered, moments - apart, "left")
    return near.astype(np.int64)


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
    """For every two sizes the one that they add up to, -1 for none; a size is no part of twice itself."""
    total = sizes[:, None] + sizes[None, :]
    at = np.clip(np.searchsorted(sizes, total), 0, max(len(sizes) - 1, 0))
    best = np.full(total.shape, -1, np.int64)
    for shift in (0, -1):
        near = np.clip(at + shift, 0, max(len(sizes) - 1, 0))
        close = np.abs(sizes[near] - total) <= tolerance * total
        best = np.where(close & (best < 0), near, best)
    best[np.abs(sizes[:, None] - sizes[None, :]) <= tolerance * sizes[:, None]] = -1
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
