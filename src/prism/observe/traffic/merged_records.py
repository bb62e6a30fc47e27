"""Merged records: an exporter merges messages that follow each other sooner than its idle timeout.

If the same connection also carries single messages, a record of a whole number of them that lasts far longer than
their transfers contains silences. All of these are shorter than any silence between records of the connection.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prism.kernel import kernel
from prism.observe import levels
from prism.observe.traffic.numbering import group_by_number
from prism.observe.traffic.records import EXACT_SIZE, find_resolution, list_frequent_sizes

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedConfig:
    """Which records may hold several messages."""

    most_messages: int = levels.SAMPLED_STREAMS
    longer: float = levels.RATIO_DOUBLE  # times what its messages take one after the other


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """For each record how many messages it holds, and how long each of these takes where they are several."""

    messages: Ints
    single_ns: Ints


def find_merged(connection: Ints, start: Ints, end: Ints, size: Ints, config: MergedConfig | None = None) -> Split:
    """How many messages each record holds; those of a connection are in order of start."""
    config = config or MergedConfig()
    messages, single = np.ones(len(size), np.int64), np.zeros(len(size), np.int64)
    candidates = _list_multiples(end - start, size, config)
    if not candidates or not len(connection):
        return Split(messages=messages, single_ns=single)
    order, begin = group_by_number(connection, int(connection.max()) + 1)
    # Times that are rounded may hide as much of a silence.
    shortest = _find_shortest_gaps(order, begin, start, end) + find_resolution(start)
    for base, whole, count, took in candidates:
        near = EXACT_SIZE
        bases = np.bincount(connection[np.abs(size - base) <= near * base], minlength=len(begin) - 1)
        rows = np.flatnonzero(np.abs(size - whole) <= near * whole)
        inner = (end[rows] - start[rows] - count * took) / (count - 1)
        held = (bases[connection[rows]] > 0) & (inner > took) & (inner < shortest[connection[rows]])
        # A single waiting message looks the same; a timeout merges all messages of a connection that are this close.
        seen, merged = (np.bincount(connection[rows], w, minlength=len(begin) - 1) for w in (np.ones(len(rows)), held))
        share = merged / np.maximum(seen, 1.0)
        rows = rows[held & (share[connection[rows]] > 0.5)]
        messages[rows], single[rows] = count, took
    return Split(messages=messages, single_ns=single)


def _list_multiples(took: Ints, size: Ints, config: MergedConfig) -> list[tuple[int, int, int, int]]:
    """Size of a message, of a record of several, how many these are, and how long a message usually takes."""
    sizes, rows = list_frequent_sizes(size)
    # Single messages may be of the same size as several merged ones, so the longest of a size are examined.
    usual = {k: tuple(np.quantile(took[rows[size[rows] == k]], (0.5, 0.98))) for k in sizes.tolist()}
    listed = []
    for whole, (_, lasts) in usual.items():
        for base, (single, _) in usual.items():
            times = round(whole / base) if base else 0
            if (
                2 <= times <= config.most_messages
                and abs(whole - times * base) <= EXACT_SIZE * whole
                and lasts > config.longer * times * max(single, 1.0)
            ):
                listed.append((base, whole, times, int(single)))
    return listed


@kernel
def _find_shortest_gaps(order: Ints, begin: Ints, start: Ints, end: Ints) -> Ints:
    """The shortest silence between records of each connection."""
    found = np.full(len(begin) - 1, 2**62, np.int64)
    for g in range(len(begin) - 1):
        for i in range(begin[g] + 1, begin[g + 1]):
            found[g] = min(found[g], start[order[i]] - end[order[i - 1]])
    return found


def place_messages(split: Split, start: Ints, end: Ints, size: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """The record of each message, when it starts and ends, and its bytes.

    The first starts with the record and the last ends with it; those between are assumed to be evenly apart.
    """
    row = np.repeat(np.arange(len(start)), split.messages)
    place = np.arange(len(row)) - np.repeat(np.cumsum(split.messages) - split.messages, split.messages)
    count, took = split.messages[row], split.single_ns[row]
    apart = (end[row] - start[row] - took) // np.maximum(count - 1, 1)
    several = count > 1
    begin = np.where(several, start[row] + place * apart, start[row])
    until = np.where(several, begin + took, end[row])
    return row, begin, until, size[row] // count
