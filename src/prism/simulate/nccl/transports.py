"""What the network really gives NCCL, by the way NCCL reaches it.

NCCL scores its candidates with the rate that a NIC states. How long a transfer then takes depends on who moves the
bytes. InfiniBand and RoCE with GPUDirect reach what NCCL counts on; elsewhere a hop costs more, and where the CPU
copies every byte a NIC gives a few GB/s however fast its link is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from prism.simulate.cluster import Cluster
from prism.simulate.nccl import constants as tables
from prism.simulate.nccl.channels import Communicator
from prism.simulate.placement import GroupPlacement


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What one transport costs."""

    hop_us: float  # added to each hop between hosts
    wire_share: float = 1.0  # of the 12 GB/s that NCCL counts on per 100 Gb/s
    cpu_gb_per_s: float | None = None  # most that the CPU moves through one NIC, where it moves the bytes


# Fitted on the systems that proving/benchmarks/data/systems.yaml marks `half: fit`;
# proving/benchmarks/simulate_coverage.py prints the fit and how the other half of the systems agrees with it.
REACHES: Final = {
    "rdma": Reach(hop_us=0.0),
    "efa": Reach(hop_us=40.0, wire_share=0.65),
    "tcpx": Reach(hop_us=60.0, wire_share=0.85),
    # Verbs on Omni-Path and sockets alike are one CPU thread for each NIC; the hop of Omni-Path is an assumption.
    "omni-path": Reach(hop_us=20.0, cpu_gb_per_s=3.0),
    "sockets": Reach(hop_us=150.0, cpu_gb_per_s=3.0),
}
BOUNCE_SHARE: Final = 0.7  # what copies to host memory and back leave of a NIC without GPUDirect; fitted likewise


def hop_us(cluster: Cluster) -> float:
    """Microseconds that a hop between hosts takes beyond what NCCL's tables hold."""
    return cluster.nics.latency_us + REACHES[cluster.nics.transport].hop_us


def real_nic_gb_per_s(placement: GroupPlacement, cluster: Cluster) -> float:
    """What one NIC really carries, at the pace of the slowest link on the way."""
    nics, reach = cluster.nics, REACHES[cluster.nics.transport]
    rate = nics.gbps * placement.slowest_link / 100 * tables.NETWORK_GB_PER_100_GBIT * reach.wire_share
    if reach.cpu_gb_per_s is not None:
        return min(rate, reach.cpu_gb_per_s)
    return rate if nics.gpu_direct else rate * BOUNCE_SHARE


def network_us(kind: str, algorithm: str, sizes: NDArray[np.float64], comm: Communicator) -> NDArray[np.float64]:
    """How long the NICs of one host are busy with a collective: the least that it can take."""
    placement = comm.placement
    if placement.same_host:
        return np.zeros(len(sizes))
    rate = placement.rails_per_host * real_nic_gb_per_s(placement, comm.cluster)
    busy: NDArray[np.float64] = crossings(kind, algorithm, placement) * sizes / (1000 * rate)
    return busy


def crossings(kind: str, algorithm: str, placement: GroupPlacement) -> float:
    """How many times the buffer leaves each host."""
    if algorithm in ("tree", "nvls_tree"):  # half of the buffer up each of two trees, and down to two children
        return 1.0 if placement.num_hosts == 2 else 2.0
    if algorithm == "pat":
        return (placement.num_hosts - 1) / placement.num_hosts
    if kind in ("broadcast", "reduce"):
        return 1.0
    passes = 2.0 if kind == "all_reduce" else 1.0
    return passes * (placement.num_ranks - 1) / placement.num_ranks
