"""How NCCL scored candidates before version 2.12.

Follows src/graph/tuning.cc of NVIDIA/nccl 2.8 (2.7 differs in the base latency of ring LL128 alone). Trees had one cap
for all channels together, LL a fixed share of the bus, and the plateau of rings over networks was higher.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from prism.simulate.nccl.channels import Communicator
from prism.simulate.nccl.constants import LL, LL128, Row

LAST_MINOR: Final = 11

BASE_LATENCY: Final[dict[str, Row]] = {"tree": (4.4, 4.4, 0.0), "ring": (3.6, 10.0, 8.4)}
HOP_LATENCY: Final[dict[str, dict[str, Row]]] = {
    "nvlink": {"tree": (0.52, 1.2, 28.0), "ring": (0.47, 1.9, 3.4)},
    "pcie": {"tree": (1.0, 1.9, 28.0), "ring": (1.0, 2.5, 5.7)},
    "network": {"tree": (5.0, 8.5, 50.0), "ring": (2.7, 4.0, 9.6)},
}
LL128_PER_CHANNEL: Final = {
    "broadcast": 18.8,
    "reduce": 12.0,
    "all_gather": 18.3,
    "reduce_scatter": 15.2,
    "all_reduce": 16.7,
}
PLATEAU: Final = 1.9
_AMPERE_BUS: Final = 235.0
_LL_SLOWER_BETWEEN_HOSTS: Final = 1.8

TREE_CORRECTION: Final[tuple[tuple[float, ...], ...]] = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.9, 0.9, 1, 1, 1),
    (*(0.9,) * 7, 0.8, 0.7, 0.6, 0.6, *(0.5,) * 6, 0.6, 0.6, 0.7, 0.8, 0.9, 1, 1),
)


def bus_gb_per_s(kind: str, algorithm: str, protocol: int, comm: Communicator) -> float:
    """Bus bandwidth in GB/s of a ring or a tree."""
    placement, cluster, graphs = comm.placement, comm.cluster, comm.graphs
    graph = graphs.ring if algorithm == "ring" else graphs.tree
    bus = graph.channels * (graph.intra if placement.num_hosts <= 2 else graph.inter)
    if cluster.arch == "ampere":
        bus = min(bus, _AMPERE_BUS)
    if algorithm == "ring":
        if protocol == LL:
            reduces = kind in ("all_reduce", "reduce")
            return bus / (4 if reduces or not placement.same_host else 3)
        if protocol == LL128:
            share = 0.7 if placement.num_ranks < 2 * placement.num_hosts else 0.92
            return min(bus * share, LL128_PER_CHANNEL[kind] * graph.channels)
        return bus
    bus = min(bus * 0.9, _tree_cap(protocol, comm))
    if protocol == LL:
        return bus / 3.8
    if protocol == LL128:
        share = 7 / 9 if placement.same_host else 0.915
        return min(bus * share, LL128_PER_CHANNEL[kind] * graph.channels * 7 / 9)
    return bus


def hop_latencies(algorithm: str, protocol: int, comm: Communicator) -> tuple[float, float]:
    """Latency of one hop inside a host and of one between hosts."""
    intra = HOP_LATENCY[comm.graphs.hardware][algorithm][protocol]
    if protocol == LL and not comm.placement.same_host:
        intra *= _LL_SLOWER_BETWEEN_HOSTS
    return intra, HOP_LATENCY["network"][algorithm][protocol]


def is_on_plateau(sizes: NDArray[np.float64], num_ranks: int) -> NDArray[np.bool_]:
    """Sizes at which a ring over the network takes its longer latency."""
    beyond: NDArray[np.bool_] = sizes >= num_ranks / 16 * 65536
    return beyond


def _tree_cap(protocol: int, comm: Communicator) -> float:
    fast = comm.cluster.arch == "ampere" and protocol == LL128
    if comm.placement.num_hosts > 2:
        return 105.0 if fast else 80.0
    return 130.0 if fast else 110.0
