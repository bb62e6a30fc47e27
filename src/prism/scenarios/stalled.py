"""Transfers that a rank which stands still leaves hanging: what of them reached the wire.

A hop starts to send once its sender is there, but no further than the buffers of the receiver go while others are
missing. Where they never come, the exporter closes the record after a while: small, and the last of its kind.
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
    """Messages cut short: which, and when each began."""

    message: NDArray[np.int32]
    start_ns: Ints

    def sizes(self, whole: Ints) -> Ints:
        """Bytes of each that were sent; `whole` are those of every message of the plan."""
        return np.asarray(np.minimum(whole[self.message], _BUFFERED_BYTES))


def take_ns(size: Ints) -> Ints:
    """How long bytes that nothing holds up take."""
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
    """Messages that began before `stop` though not all of their group came by then; None where no rank stands still."""
    if not any(s.target == "rank" and s.speed == 0 and s.start_ns < stop <= s.end_ns for s in slowdowns):
        return None
    rank, seq = messages["rank"].to_numpy(), messages["seq"].to_numpy()
    ready = times.table[times.rows_of(rank, seq + first_op), READY]
    at = np.flatnonzero((now + start < stop - _IDLE_NS) & (now + ready > stop))
    return Stalled(at.astype(np.int32), now + start[at])
