"""Every algorithm and protocol that NCCL would consider for a collective: its latency and its bandwidth.

Follows src/graph/tuning.cc of NVIDIA/nccl 2.30: bandwidth is channels times the rate of each, capped and derated by
protocol, turned from bus to algorithm bandwidth; latency is a base plus one hop per step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from prism.simulate.cluster import Cluster
from prism.simulate.nccl import constants as tables
from prism.simulate.nccl.channels import GroupGraphs, find_graphs
from prism.simulate.nccl.constants import LL, LL128, PROTOCOLS, SIMPLE
from prism.simulate.placement import GroupPlacement

_ALGORITHMS = {
    "all_reduce": ("tree", "ring", "nvls", "nvls_tree"),
    "all_gather": ("ring", "nvls", "pat"),
    "reduce_scatter": ("ring", "nvls", "pat"),
    "broadcast": ("ring",),
    "reduce": ("ring",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One algorithm with one protocol, ready to be scored for any size."""

    algorithm: str
    protocol: int
    latency_us: float
    gb_per_s: float  # algorithm bandwidth: bytes of the buffer over time
    channels: int

    @property
    def name(self) -> str:
        """As NCCL's own log writes it, such as ring/LL128."""
        return f"{self.algorithm}/{PROTOCOLS[self.protocol]}"


@lru_cache(maxsize=16384)
def find_candidates(kind: str, placement: GroupPlacement, cluster: Cluster) -> tuple[Candidate, ...]:
    """Every algorithm and protocol that NCCL would enable for a collective on this placement."""
    graphs = find_graphs(placement, cluster)
    found = []
    for algorithm in _ALGORITHMS[kind]:
        for protocol in (LL, LL128, SIMPLE):
            if not _is_enabled(algorithm, protocol, placement, graphs):
                continue
            bandwidth = _bandwidth(kind, algorithm, protocol, placement, cluster, graphs)
            if bandwidth > 0:
                found.append(
                    Candidate(
                        algorithm=algorithm,
                        protocol=protocol,
                        latency_us=_latency(kind, algorithm, protocol, placement, cluster, graphs),
                        gb_per_s=bandwidth,
                        channels=graphs.nvls_channels if algorithm.startswith("nvls") else graphs.coll_channels,
                    )
                )
    return tuple(found)


def _is_enabled(algorithm: str, protocol: int, placement: GroupPlacement, graphs: GroupGraphs) -> bool:
    if protocol == LL128 and graphs.hardware != "nvlink":
        return False
    if algorithm in ("nvls", "nvls_tree", "pat") and protocol != SIMPLE:
        return False
    if algorithm == "nvls":  # between nodes it needs in-network reduction, which clusters here do not have
        return graphs.nvls is not None and placement.same_host
    if algorithm == "nvls_tree":
        return graphs.nvls is not None and not placement.same_host
    if algorithm == "pat":
        return placement.num_hosts == placement.num_ranks > 1
    return True


def num_steps(kind: str, num_ranks: int) -> int:
    """Steps of a ring, one after the other."""
    if kind == "all_reduce":
        return 2 * (num_ranks - 1)
    return num_ranks - 1 if kind in ("all_gather", "reduce_scatter") else num_ranks


def _bandwidth(
    kind: str, algorithm: str, protocol: int, placement: GroupPlacement, cluster: Cluster, graphs: GroupGraphs
) -> float:
    """Algorithm bandwidth in GB/s."""
    nodes = min(placement.num_hosts, 3) - 1
    steps_ratio = placement.num_ranks / num_steps(kind, placement.num_ranks)
    if algorithm in ("nvls", "nvls_tree"):
        bus = _nvls_bus(kind, algorithm, placement, cluster, graphs)
        return bus * steps_ratio if kind == "all_reduce" else bus
    graph = graphs.ring if algorithm == "ring" else graphs.tree
    bus = graph.channels * (graph.intra if nodes < 2 else graph.inter)
    if algorithm == "pat":
        return bus * 0.75
    ll_max = tables.LL_MAX_ONE_NODE[cluster.arch] if nodes == 0 else tables.LL_MAX_NODES[cluster.cpu][nodes]
    if algorithm == "ring":
        if protocol == LL:
            bus = min(ll_max, bus * 0.5)
        if protocol == LL128:
            bus = min(bus * 0.92, graph.channels * tables.RING_LL128_PER_CHANNEL[cluster.arch][nodes])
        return bus * steps_ratio
    bus = min(bus * 0.92, graph.channels * tables.TREE_PER_CHANNEL[cluster.arch][nodes])
    if protocol == LL:
        bus = min(bus / 3.8, ll_max)
    if protocol == LL128:
        most = graph.channels * tables.TREE_LL128_PER_CHANNEL[cluster.arch][nodes]
        bus = min(bus * (7 / 9 if nodes == 0 else 120 / 128), most)
    if cluster.arch != "ampere":  # these search a plain tree, where one GPU of a host carries all its network traffic
        bus *= 0.85
    return bus * 0.5


def _nvls_bus(kind: str, algorithm: str, placement: GroupPlacement, cluster: Cluster, graphs: GroupGraphs) -> float:
    graph = graphs.nvls
    assert graph is not None
    ranks = placement.num_ranks / placement.num_hosts
    intra = graph.intra * tables.NVLS_EFFICIENCY[cluster.arch] * (graph.channels - 1) / graph.channels
    intra *= 2.0 if kind == "all_reduce" else (ranks - 1) / ranks
    if algorithm == "nvls":
        return graph.channels * intra
    inter = graph.inter * (2 if placement.num_hosts == 2 else 1)
    most = tables.NVLS_TREE_PER_CHANNEL[cluster.arch][min(placement.num_hosts, 3) - 1]
    return graph.channels * min(intra, inter, most)


def _latency(
    kind: str, algorithm: str, protocol: int, placement: GroupPlacement, cluster: Cluster, graphs: GroupGraphs
) -> float:
    """Microseconds that do not depend on size."""
    ranks, nodes = placement.num_ranks, placement.num_hosts
    base = tables.BASE_LATENCY[algorithm][protocol]
    intra, inter = hop_latencies(algorithm, protocol, placement, cluster, graphs)
    log_nodes = nodes.bit_length() - 1
    if algorithm == "tree":
        return base + 2 * ((ranks // nodes - 1) * intra + log_nodes * inter)
    if algorithm == "nvls":
        return intra
    if algorithm == "nvls_tree":
        return base + intra + 2 * log_nodes * inter
    if algorithm == "pat":
        return base + log_nodes * inter / 3.5 + ranks * 2.8
    if kind in ("broadcast", "reduce"):
        return base + (intra if nodes == 1 else tables.HOP_LATENCY["network"]["ring"][protocol])
    if nodes > 1:
        overhead = tables.NETWORK_OVERHEAD[cluster.cpu] * (3 if protocol == SIMPLE else 1)
        intra = max(intra, overhead)
    steps = num_steps(kind, ranks)
    network_steps = 0 if nodes == 1 else (2 if kind == "all_reduce" else 1) * (nodes - 1)
    return base + (steps - network_steps) * intra + network_steps * inter


def hop_latencies(
    algorithm: str, protocol: int, placement: GroupPlacement, cluster: Cluster, graphs: GroupGraphs
) -> tuple[float, float]:
    """Latency of one hop inside a host and of one between hosts."""
    intra = tables.HOP_LATENCY[graphs.hardware][algorithm][protocol]
    # One GPU per host cannot hide the network behind NVLink, so NCCL takes the tree's latency.
    network = "tree" if placement.num_ranks == placement.num_hosts else algorithm
    flushes = 2 if protocol == SIMPLE else 1  # Simple waits for the data and for its flush
    return intra, tables.HOP_LATENCY["network"][network][protocol] + flushes * cluster.nics.latency_us
