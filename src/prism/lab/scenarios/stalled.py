"""Transfers that are interrupted because a rank stopped, and how much of them was sent.

A hop starts to send when its sender has arrived, but only as much as the receiver's buffers hold while others are
missing. If they never arrive, the exporter closes the record after a while: it is small, and the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.simulate.flows import OpTimes
from prism.simulate.solving.kernel import READY
from prism.simulate.solving.slowdowns import Slowdown

Ints = NDArray[np.int64]

_BUFFERED_BYTES = 8 << 20  # NCCL's buffers of 4 MiB on the two channels that a NIC about serves
_BYTES_PER_NS = 50.0  # 400 Gbit/s
_IDLE_NS = 50_000_000  # an exporter waits this long before it closes a record


@dataclass(frozen=True, slots=True)
class Stalled:
    """Interrupted messages: which, and when each began."""

    message: NDArray[np.int32]
    start_ns: Ints

    def sizes(self, whole: Ints) -> Ints:
        """Bytes of each that were sent; `whole` are those of every message of the plan."""
        return np.asarray(np.minimum(whole[self.message], _BUFFERED_BYTES))


def take_ns(size: Ints) -> Ints:
    """How long an uninterrupted transfer takes."""
    return np.maximum(1, np.rint(size / _BYTES_PER_NS).astype(np.int64))


def find_stalled(
    messages: pl.DataFrame,
    times: OpTimes,
    start: Ints,
    first_op: int,
    now: int,
    stop: int,
    slowdowns: Sequence[Slowdown],
) -> Stalled | None:
    """Messages that began before `stop` although not all of their group had arrived; None if no rank stopped."""
    if not any(s.target == "rank" and s.speed == 0 and s.start_ns < stop <= s.end_ns for s in slowdowns):
        return None
    rank, seq = messages["rank"].to_numpy(), messages["seq"].to_numpy()
    ready = times.table[times.rows_of(rank, seq + first_op), READY]
    at = np.flatnonzero((now + start < stop - _IDLE_NS) & (now + ready > stop))
    return Stalled(at.astype(np.int32), now + start[at])
