"""What the solver asks of a cost model, and the simplest model that answers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt


class CostModel(Protocol):
    """Turns transfers into nanoseconds; equal placements must compare equal, so that symmetric ranks fold."""

    def place(self, hosts: Sequence[int], locals_: Sequence[int]) -> Hashable:
        """What of a group's placement matters to its cost; one host and GPU per position."""
        ...

    def price(
        self,
        kinds: Sequence[str],
        sizes: npt.NDArray[np.int64],
        placement_index: npt.NDArray[np.int64],
        placements: Sequence[Hashable],
    ) -> npt.NDArray[np.int64]:
        """Nanoseconds of each transfer: its kind, its bytes as OPS defines them, and the placement it runs on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCosts:
    """Latency plus size over bandwidth, slower between hosts; for tests, and where no cluster is described."""

    latency_ns: int = 10_000
    bytes_per_ns: float = 200.0  # inside a host; 1 byte/ns is 1 GB/s
    network_bytes_per_ns: float = 40.0  # between hosts

    def place(self, hosts: Sequence[int], locals_: Sequence[int]) -> Hashable:
        """Group size and whether it crosses hosts."""
        return len(hosts), len(set(hosts)) > 1

    def price(
        self,
        kinds: Sequence[str],
        sizes: npt.NDArray[np.int64],
        placement_index: npt.NDArray[np.int64],
        placements: Sequence[Hashable],
    ) -> npt.NDArray[np.int64]:
        """Ring costs: an all-reduce moves its buffer 2(n-1)/n times, other collectives (n-1)/n times."""
        size = np.array([p[0] for p in placements], np.float64)[placement_index]  # type: ignore[index]
        crosses = np.array([p[1] for p in placements], np.bool_)[placement_index]  # type: ignore[index]
        share = (size - 1) / size
        passes = np.array([2.0 if k == "all_reduce" else 0.0 if k in ("send", "recv") else 1.0 for k in kinds])
        moved = np.where(passes > 0, passes * share, 1.0) * sizes
        speed = np.where(crosses, self.network_bytes_per_ns, self.bytes_per_ns)
        alone = (size == 1) & (passes > 0)
        return np.where(alone, 0, self.latency_ns + np.rint(moved / speed)).astype(np.int64)
