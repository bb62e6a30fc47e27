"""How the exporter cut its records: what they can show is judged before anything is read from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """When many records end at one length because an active timeout cut them."""

    sampled: int = 100_000
    near: float = 0.93  # of the longest record
    share: float = 0.15  # of all bytes that are in records of about that length
    least: int = 8  # such records
    shortest_ns: int = 200_000_000  # active timeouts are not set shorter
    cut_share: float = 0.15  # of the bytes of a connection that are in such records


def find_active_timeout(start: Ints, end: Ints, size: Ints, config: ExportConfig | None = None) -> int:
    """The length at which an exporter cuts records of traffic that goes on, in nanoseconds; 0 where it cuts none."""
    config = config or ExportConfig()
    if not len(size):
        return 0
    longest = int((end - start).max())
    if longest < config.shortest_ns:
        return 0
    step = max(1, len(size) // config.sampled)
    took, weight = (end - start)[::step], size[::step].astype(np.float64)
    near = took >= config.near * longest
    return longest if near.sum() >= config.least and weight[near].sum() >= config.share * weight.sum() else 0


def mark_cut(
    stream: Ints, connection: Ints, took: Ints, size: Ints, active_ns: int, config: ExportConfig | None = None
) -> Flags:
    """By stream whether the records of its connection were cut while traffic went on: these begin at odd moments.

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
