"""How the exporter split its records: what they can show is determined before they are used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prism.kernel import kernel
from prism.observe import levels
from prism.observe.traffic.numbering import group_by_number

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """When many records end at one length because an active timeout cut them."""

    near: float = levels.SHARE_NEARLY_ALL  # of the longest record
    share: float = levels.SHARE_SMALL  # of all bytes that are in records of about that length
    least: int = levels.MIN_STATISTICS  # such records
    shortest_ns: int = 200_000_000  # active timeouts are not set shorter; transfers of one length are not cut by one
    most_of_all: float = levels.SHARE_MINOR  # of the observation
    # Of the timeout: the next record of a connection follows so soon where traffic continues.
    at_once: float = levels.SHARE_SMALL
    cut_share: float = levels.SHARE_SMALL  # of the bytes of a connection that are in such records


def find_active_timeout(
    connection: Ints, start: Ints, end: Ints, size: Ints, config: ExportConfig | None = None
) -> int:
    """The length at which an exporter cuts records of traffic that continues, in nanoseconds; 0 where it cuts none.

    Many bytes are then in records of one length, the longest, and most of these are followed by another at once. A hop
    that waits for a late rank may last as long again and again, but silence follows it. Records are in order of start.
    """
    config = config or ExportConfig()
    if not len(size):
        return 0
    longest = int((end - start).max())
    if longest < config.shortest_ns:
        return 0
    near = (end - start) >= config.near * longest
    if near.sum() < config.least or float(size[near].sum()) < config.share * float(size.sum()):
        return 0
    if longest > config.most_of_all * int(end.max() - start.min()):
        return longest  # A record for most of the observation shows no time at all.
    order, begin = group_by_number(connection, int(connection.max()) + 1)
    after = _measure_gaps(order, begin, start, end)[near]
    known = after[after < 2**62]
    goes_on = len(known) > 0 and float(np.mean(known <= config.at_once * longest)) >= 0.5
    return longest if goes_on else 0


@kernel
def _measure_gaps(order: Ints, begin: Ints, start: Ints, end: Ints) -> Ints:
    """From the end of each record to the start of the next one of its connection; endless after the last."""
    gaps = np.full(len(order), 2**62, np.int64)
    for g in range(len(begin) - 1):
        for i in range(begin[g], begin[g + 1] - 1):
            gaps[order[i]] = start[order[i + 1]] - end[order[i]]
    return gaps


def mark_cut(
    stream: Ints, connection: Ints, took: Ints, size: Ints, active_ns: int, config: ExportConfig | None = None
) -> Flags:
    """By stream whether the records of its connection were cut while traffic continued: these begin at odd moments.

    `stream` is that of each record, `connection` that of each stream.
    """
    config = config or ExportConfig()
    if not active_ns:
        return np.zeros(len(connection), np.bool_)
    _, number = np.unique(connection, return_inverse=True)
    own = number[stream]
    total = np.bincount(own, size)
    cut = np.bincount(own, size * (took >= config.near * active_ns), minlength=len(total))
    return np.asarray((cut > config.cut_share * total)[number], np.bool_)
