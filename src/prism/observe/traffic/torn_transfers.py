"""Torn transfers: an exporter's idle timeout splits a hop of a collective that waits.

If a rank is late, the sender fills the buffers of its transport and waits; the rest follows once the late rank has
arrived, or some of it earlier if another rank arrives before. The records add up to the size of the hops that did not
wait, and the last one ends with a hop that began after the first.

If one hop is slow, the others wait for every piece that it passes on. Their records add up to its size, and last
from when it begins until it ends. Either distinguishes the parts of one transfer from several messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prism.kernel import kernel
from prism.observe import levels
from prism.observe.traffic.numbering import group_by_number, nearest
from prism.observe.traffic.records import EXACT_SIZE, list_frequent_sizes

Ints = NDArray[np.int64]

_WAITED, _SLOWED, _APART = 0, 1, 2  # how parts go with a whole hop: for a late rank, beside a slow one, or not at all
_FEW, _SMALL, _UNLIKE = levels.MIN_SAMPLES, levels.SMALL_MESSAGE_BYTES, levels.SIZE_DIFFERENCE  # for compiled passes


@dataclass(frozen=True, slots=True, kw_only=True)
class TornConfig:
    """Which records may be parts of one transfer."""

    # Share of all records: of a ring only the hop of the rank that comes last is whole, one of a thousand hops.
    frequent: float = 5e-4
    together_ns: int = levels.MILLISECOND_NS  # by which hops of one collective may end apart
    beside: float = levels.SHARE_SMALL  # of a slow hop: by which those that wait for it may begin or end apart
    agreeing: float = levels.SHARE_MAJORITY  # share of such runs of records that end with a whole hop
    some: float = levels.SHARE_MINOR  # share that is enough where the same parts in the other order hardly ever do
    seldom: float = levels.RATIO_FAR  # times more seldom
    most_parts: int = 64  # of one transfer: pieces of a ring over so many ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Torn:
    """For each record that continues a torn transfer: its row, the row of the first part, and whether it ends it.

    `slowed` are those of transfers that a slow hop held up again and again, and no late rank.
    """

    part: Ints
    head: Ints
    ends: NDArray[np.bool_]
    slowed: NDArray[np.bool_]


def find_torn(connection: Ints, start: Ints, end: Ints, size: Ints, config: TornConfig | None = None) -> Torn:
    """Records that are parts of one transfer; those of a connection are in order of start."""
    config = config or TornConfig()
    sizes, _ = list_frequent_sizes(size, config.frequent)
    sizes = sizes[sizes >= levels.SMALL_MESSAGE_BYTES]
    sizes = sizes[:0] if _count_packets(sizes) else sizes
    order, begin = group_by_number(connection, int(connection.max(initial=-1)) + 1)
    number = _number_sizes(size, sizes, EXACT_SIZE) if len(sizes) else np.full(len(size), -1, np.int64)
    hops = np.flatnonzero(number >= 0)
    hops = hops[np.lexsort((end[hops], number[hops]))]
    bounds = np.searchsorted(number[hops], np.arange(len(sizes) + 1))
    columns = (start, end, size, number)
    limits = config.together_ns, config.beside, config.most_parts
    tried, met, _ = _try_runs(order, begin, columns, sizes, hops, bounds, limits, np.zeros(0, np.bool_))
    agreed = _agree(tried, met, len(sizes), config)
    runs = np.zeros((4, 0), np.int64)
    if agreed.any():
        _, _, runs = _try_runs(order, begin, columns, sizes, hops, bounds, limits, agreed)
    return _list_parts(order, *runs)


def _agree(tried: Ints, met: Ints, num_sizes: int, config: TornConfig) -> NDArray[np.bool_]:
    """Which kinds of runs are torn transfers, by how many were tried and how many of them go with a whole hop.

    Runs of one whole, of the same first and last size and of two, three or more parts are alike: torn, or none is.
    Hops of a tree end a level apart, so that fewer go with another one; what is larger first shows how many by chance.
    """
    shape = (num_sizes, num_sizes + 1, num_sizes + 1, levels.MIN_SAMPLES)
    turned_tried, turned_met = (num.reshape(shape).swapaxes(1, 2).ravel() for num in (tried, met))
    seldom = met * turned_tried > config.seldom * turned_met * tried
    # Frequent sizes are numbered from one, the smallest first; zero stands for all others.
    _, first, last, more = np.indices(shape)
    seldom &= ((first > 0) & (first < last) & (more == 0)).ravel()
    enough = np.where(seldom, config.some, config.agreeing)
    return np.asarray((met >= levels.MIN_SAMPLES) & (met >= enough * tried))


def _count_packets(sizes: Ints) -> bool:
    """Whether sizes are numbers of sampled packets, which chance spreads over all multiples: these add up anyhow."""
    if len(sizes) < levels.MIN_STATISTICS:
        return False
    return bool(np.mean(np.diff(sizes) == np.gcd.reduce(sizes)) >= levels.SHARE_LARGE)


def _number_sizes(size: Ints, sizes: Ints, tolerance: float) -> Ints:
    """The number of the frequent size of each record, -1 for others."""
    near = nearest(sizes, size)
    return np.where(np.abs(sizes[near] - size) <= tolerance * size, near, -1)


def _list_parts(order: Ints, first: Ints, last: Ints, how: Ints, apart: Ints) -> Torn:
    """The parts of runs of records, each in one run at most.

    Those that waited for a late rank come first, and the one that begins first: what follows a first part may add up to
    what others send after theirs, and beside a slow hop first parts of the next message follow at once.
    """
    best = np.lexsort((apart, first, how))
    kept = _part_runs(first, last, best, len(order))
    first, last, how = first[kept], last[kept], how[kept]
    num = last - first
    run = np.repeat(np.arange(len(num)), num)
    at = first[run] + 1 + np.arange(len(run)) - np.repeat(np.cumsum(num) - num, num)
    return Torn(part=order[at], head=order[first[run]], ends=at == last[run], slowed=how[run] == _SLOWED)


@kernel
def _part_runs(first: Ints, last: Ints, best: Ints, count: int) -> NDArray[np.bool_]:
    """Which runs share no record with one that comes before it in `best`."""
    kept, taken = np.zeros(len(first), np.bool_), np.zeros(count, np.bool_)
    for i in best:
        if not taken[first[i] : last[i] + 1].any():
            kept[i] = True
            taken[first[i] : last[i] + 1] = True
    return kept


@kernel
def _try_runs(
    order: Ints, begin: Ints, columns: tuple[Ints, Ints, Ints, Ints], sizes: Ints, hops: Ints, bounds: Ints,
    limits: tuple[int, float, int], agreed: NDArray[np.bool_],
) -> tuple[Ints, Ints, Ints]:  # fmt: skip
    """Records that follow each other on a connection and add up to a frequent size: how many by kind, and how many of
    them go with a whole hop. Of kinds that are `agreed` also the first and last of each, how it goes with one, and by
    how much apart.

    Messages of about one size are several. A few bytes are a message of their own: a transfer that waits has filled the
    buffers of its transport. One that waits more than once passes most of its bytes later: tensors of two, one and one
    layers add up to one of four, too.
    """
    start, end, size, number = columns
    together_ns, beside, most_parts = limits
    largest = (1 + EXACT_SIZE) * sizes[-1] if len(sizes) else 0.0
    tried, met = np.zeros((2, len(sizes) * (len(sizes) + 1) ** 2 * _FEW), np.int64)
    found, num = np.empty((4, 1024), np.int64), 0
    for g in range(len(begin) - 1):
        for j in range(begin[g] + 1, begin[g + 1]):
            tail = order[j]
            total = least = most = size[tail]
            near = np.int64(0)
            for i in range(j - 1, max(begin[g], j - most_parts + 1) - 1, -1):
                own = size[order[i]]
                total, least, most = total + own, min(least, own), max(most, own)
                if total > largest or least < _SMALL:
                    break
                while sizes[near] < total - EXACT_SIZE * total:
                    near += 1
                if sizes[near] > total + EXACT_SIZE * total or most - least <= _UNLIKE * most:
                    continue
                kind = (near * (len(sizes) + 1) + number[order[i]] + 1) * (len(sizes) + 1) + number[tail] + 1
                kind = kind * _FEW + min(j - i, _FEW) - 1
                if len(agreed) and not agreed[kind]:
                    continue
                own_hops = hops[bounds[near] : bounds[near + 1]]
                apart_ns = together_ns if own < most or j - i == 1 else -1
                how, apart = _go_with(order[i], tail, own_hops, start, end, apart_ns, beside)
                tried[kind] += 1
                met[kind] += how != _APART
                if len(agreed):
                    if num == found.shape[1]:
                        found = np.concatenate((found, np.empty_like(found)), axis=1)
                    found[0, num], found[1, num], found[2, num], found[3, num] = i, j, how, apart
                    num += 1
    return tried, met, found[:, :num].copy()


@kernel
def _go_with(
    head: int, tail: int, hops: Ints, start: Ints, end: Ints, together_ns: int, beside: float
) -> tuple[int, int]:
    """Whether parts end with a hop that was not cut and began after the first, or pass beside one that is slow.

    Also by how much apart. `hops` are in order of their ends.
    """
    low, high = 0, len(hops)
    while low < high:
        middle = (low + high) // 2
        if end[hops[middle]] < end[tail]:
            low = middle + 1
        else:
            high = middle
    for at in (low - 1, low):
        if 0 <= at < len(hops):
            hop = hops[at]
            apart, blur = abs(end[hop] - end[tail]), beside * (end[hop] - start[hop])
            if apart <= together_ns and start[hop] > end[head]:
                return _WAITED, apart
            if apart <= blur and abs(start[hop] - start[head]) <= blur:
                return _SLOWED, apart + abs(start[hop] - start[head])
    return _APART, 2**62
