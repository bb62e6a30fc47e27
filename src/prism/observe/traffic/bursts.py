"""Bursts: records of varying sizes between two silences that together always carry the same number of bytes.

An exporter whose idle timeout is about as long as the pauses inside a transfer cuts the same transfer at another place
each time. Single records then show nothing, but their sums do.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.traffic.numbering import group_by_number
from prism.observe.traffic.records import EXACT_SIZE

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_LEAST_BURSTS = levels.MIN_STATISTICS
_LONGER = levels.RATIO_LONGER  # times as long as any silence inside a burst is the one after it
_NEARLY = (
    levels.SHARE_NEARLY_ALL
)  # of the shortest silence between bursts: those of another connection may be a little shorter
_EQUAL = levels.SHARE_LARGE  # share of the bursts that carry the same
_REGULAR = (
    levels.SHARE_LARGE - levels.SHARE_SMALL
)  # of bursts with as many records, where records show more than bursts
_MOST_BREAKS = levels.MIN_STATISTICS  # places between shorter and longer silences that are tried


def find_bursts(connection: Ints, start: Ints, end: Ints, size: Ints) -> Ints:
    """For each record the first one of its burst: itself, except in connections whose records are cut at random.

    Records of a connection are in order of start. Connections whose bursts carry the same are judged together, because
    hops of one collective are cut by the same exporter.
    """
    first = np.arange(len(start))
    if not len(start):
        return first
    order, begin = group_by_number(connection, int(connection.max()) + 1)
    silence, load, regular = _judge_connections(order, begin, start, end, size, np.zeros(0, np.int64))
    if (regular < _REGULAR).any():
        # What sets bursts of one connection apart does so for others of the same job.
        known = np.unique(np.quantile(silence[silence > 0], np.linspace(0, 1, _MOST_BREAKS), method="nearest"))
        silence, load, regular = _judge_connections(order, begin, start, end, size, known.astype(np.int64))
    found = np.flatnonzero(silence > 0)
    found = found[np.argsort(load[found], kind="stable")]
    if not len(found):
        return first
    fresh = np.diff(load[found], prepend=load[found[0]]) > EXACT_SIZE * load[found]
    kind = np.cumsum(fresh)
    usual = np.bincount(kind, regular[found]) / np.bincount(kind)
    joined = np.zeros(len(begin) - 1, np.int64)
    chosen = found[usual[kind] < _REGULAR]
    joined[chosen] = silence[chosen]
    heads: Ints = _join(first, order, begin, start, end, joined)
    return heads


@numba.njit(cache=True, nogil=True)
def _judge_connections(
    order: Ints, begin: Ints, start: Ints, end: Ints, size: Ints, known: Ints
) -> tuple[Ints, Floats, Floats]:
    """By connection the shortest silence between bursts, what a burst carries, and how regular its records are.

    The silence is one that is far longer than the next shorter one, or one of those `known`: that which makes most
    bursts equal, or 0 where none does.
    """
    num = len(begin) - 1
    silence, load, regular = np.zeros(num, np.int64), np.zeros(num), np.ones(num)
    for g in range(num):
        rows = order[begin[g] : begin[g + 1]]
        if len(rows) <= _LEAST_BURSTS:
            continue
        gaps = np.empty(len(rows) - 1, np.int64)
        reach = end[rows[0]]
        for i in range(1, len(rows)):
            gaps[i - 1] = start[rows[i]] - reach
            reach = max(reach, end[rows[i]])
        ordered = np.sort(np.maximum(gaps, levels.CLOCK_TOLERANCE_NS))
        ratio = ordered[1:] / ordered[:-1]
        ratio[max(0, len(ordered) - _LEAST_BURSTS + 1) :] = 0.0  # So few silences set too few bursts apart.
        widest = np.argsort(-ratio)[:_MOST_BREAKS]
        edges = (_NEARLY * ordered[1:][widest[ratio[widest] >= _LONGER]]).astype(np.int64)
        tried = np.sort(np.concatenate((edges, known)))
        most = _EQUAL
        for limit in tried:
            if np.sum(gaps >= limit) + 1 < _LEAST_BURSTS:
                break
            sums, counts = _sum_bursts(size[rows], gaps, limit)
            usual = np.median(sums)
            equal = np.mean(np.abs(sums - usual) <= EXACT_SIZE * usual)
            if equal > most:
                most = equal
                silence[g], load[g] = limit, usual
                regular[g] = np.mean(counts == np.median(counts))
    return silence, load, regular


@numba.njit(cache=True, nogil=True)
def _sum_bursts(size: Ints, gaps: Ints, silence: int) -> tuple[Ints, Ints]:
    """The bytes and the records of each burst."""
    num = 1 + np.sum(gaps >= silence)
    sums, counts = np.zeros(num, np.int64), np.zeros(num, np.int64)
    at = 0
    for i in range(len(size)):
        if i and gaps[i - 1] >= silence:
            at += 1
        sums[at] += size[i]
        counts[at] += 1
    return sums, counts


@numba.njit(cache=True, nogil=True)
def _join(first: Ints, order: Ints, begin: Ints, start: Ints, end: Ints, silence: Ints) -> Ints:
    """The first record of each burst, where the connection has a `silence` that sets bursts apart."""
    for g in range(len(begin) - 1):
        if silence[g] == 0 or begin[g] == begin[g + 1]:
            continue
        head = order[begin[g]]
        reach = end[head]
        for i in order[begin[g] + 1 : begin[g + 1]]:
            if start[i] - reach >= silence[g]:
                head = i
            first[i] = head
            reach = max(reach, end[i])
    return first
