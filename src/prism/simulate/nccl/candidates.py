"""Every algorithm and protocol that NCCL would consider for a collective: its latency and its bandwidth.

Follows src/graph/tuning.cc of NVIDIA/nccl 2.30: bandwidth is channels times the rate of each, capped and derated by
protocol, turned from bus to algorithm bandwidth; latency is a base plus one hop per step. Versions before 2.12 score
as in `older.py`; NVLS exists since 2.17, its tree over hosts since 2.18, PAT since 2.23.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from prism.simulate.cluster import Cluster
from prism.simulate.nccl import constants as tables
from prism.simulate.nccl import older
from prism.simulate.nccl.channels import Communicator, communicator
from prism.simulate.nccl.constants import LL, LL128, PROTOCOLS, SIMPLE
from prism.simulate.nccl.transports import hop_us
from prism.simulate.placement import GroupPlacement

_ALGORITHMS = {
    "all_reduce": ("tree", "ring", "nvls", "nvls_tree"),
    "all_gather": ("ring", "nvls", "pat"),
    "reduce_scatter": ("ring", "nvls", "pat"),
    "broadcast": ("ring",),
    "reduce": ("ring",),
}
_FIRST_MINOR = {"nvls": 17, "nvls_tree": 18, "pat": 23}


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
    comm = communicator(placement, cluster)
    found = []
    for algorithm in _ALGORITHMS[kind]:
        for protocol in (LL, LL128, SIMPLE):
            if not _is_enabled(algorithm, protocol, comm):
                continue
            bandwidth = _bandwidth(kind, algorithm, protocol, comm)
            if bandwidth > 0:
                nvls = algorithm.startswith("nvls")
                found.append(
                    Candidate(
                        algorithm=algorithm,
                        protocol=protocol,
                        latency_us=_latency(kind, algorithm, protocol, comm),
                        gb_per_s=bandwidth,
                        channels=comm.graphs.nvls_channels if nvls else comm.graphs.coll_channels,
                    )
                )
    # NCCL falls back to rings where what NCCL_ALGO allows cannot run this collective.
    return tuple(found) or find_candidates(kind, placement, replace(cluster, nccl_algo=("ring",)))


def _is_enabled(algorithm: str, protocol: int, comm: Communicator) -> bool:
    placement, graphs = comm.placement, comm.graphs
    if comm.cluster.nccl_minor < _FIRST_MINOR.get(algorithm, 0):
        return False
    if comm.cluster.nccl_algo and algorithm not in comm.cluster.nccl_algo:
        return False
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


def _bandwidth(kind: str, algorithm: str, protocol: int, comm: Communicator) -> float:
    """Algorithm bandwidth in GB/s."""
    placement, graphs = comm.placement, comm.graphs
    steps_ratio = placement.num_ranks / num_steps(kind, placement.num_ranks)
    if algorithm in ("nvls", "nvls_tree"):
        bus = _nvls_bus(kind, algorithm, comm)
        return bus * steps_ratio if kind == "all_reduce" else bus
    if algorithm == "pat":
        return graphs.tree.channels * (graphs.tree.intra if placement.num_hosts < 3 else graphs.tree.inter) * 0.75
    if comm.cluster.nccl_minor <= older.LAST_MINOR:
        return older.bus_gb_per_s(kind, algorithm, protocol, comm) * (steps_ratio if algorithm == "ring" else 0.5)
    if algorithm == "ring":
        return _ring_bus(protocol, comm) * steps_ratio
    return _tree_bus(protocol, comm) * 0.5


def _ll_max(comm: Communicator) -> float:
    if comm.placement.same_host:
        return tables.LL_MAX_ONE_NODE[comm.cluster.arch]
    return tables.LL_MAX_NODES[comm.cluster.cpu][comm.scale]


def _ring_bus(protocol: int, comm: Communicator) -> float:
    graph = comm.graphs.ring
    bus = graph.channels * (graph.intra if comm.scale < 2 else graph.inter)
    if protocol == LL:
        return min(_ll_max(comm), bus * 0.5)
    if protocol == LL128:
        return min(bus * 0.92, graph.channels * tables.RING_LL128_PER_CHANNEL[comm.cluster.arch][comm.scale])
    return bus


def _tree_bus(protocol: int, comm: Communicator) -> float:
    graph, arch, scale = comm.graphs.tree, comm.cluster.arch, comm.scale
    bus = graph.channels * (graph.intra if scale < 2 else graph.inter)
    bus = min(bus * 0.92, graph.channels * tables.TREE_PER_CHANNEL[arch][scale])
    if protocol == LL:
        bus = min(bus / 3.8, _ll_max(comm))
    if protocol == LL128:
        most = graph.channels * tables.TREE_LL128_PER_CHANNEL[arch][scale]
        bus = min(bus * (7 / 9 if scale == 0 else 120 / 128), most)
    # Hopper and Blackwell search a plain tree, where one GPU of a host carries all its network traffic.
    return bus * 0.85 if arch in ("hopper", "blackwell") else bus


def _nvls_bus(kind: str, algorithm: str, comm: Communicator) -> float:
    graph, arch, hosts = comm.graphs.nvls, comm.cluster.arch, comm.placement.num_hosts
    assert graph is not None
    ranks = comm.placement.num_ranks / hosts
    intra = graph.intra * tables.NVLS_EFFICIENCY[arch] * (graph.channels - 1) / graph.channels
    intra *= 2.0 if kind == "all_reduce" else (ranks - 1) / ranks
    if algorithm == "nvls":
        return graph.channels * intra
    inter = graph.inter * (2 if hosts == 2 else 1)
    return graph.channels * min(intra, inter, tables.NVLS_TREE_PER_CHANNEL[arch][comm.scale])


def _latency(kind: str, algorithm: str, protocol: int, comm: Communicator) -> float:
    """Microseconds that do not depend on size."""
    ranks, nodes = comm.placement.num_ranks, comm.placement.num_hosts
    is_old = comm.cluster.nccl_minor <= older.LAST_MINOR
    base = (older.BASE_LATENCY if is_old else tables.BASE_LATENCY)[algorithm][protocol]
    intra, inter = hop_latencies(algorithm, protocol, comm)
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
    if nodes > 1 and not is_old:
        overhead = tables.NETWORK_OVERHEAD[comm.cluster.cpu] * (3 if protocol == SIMPLE else 1)
        intra = max(intra, overhead)
    steps = num_steps(kind, ranks)
    network_steps = 0 if nodes == 1 else (2 if kind == "all_reduce" else 1) * (nodes - 1)
    return base + (steps - network_steps) * intra + network_steps * inter


def hop_latencies(algorithm: str, protocol: int, comm: Communicator) -> tuple[float, float]:
    """Latency of one hop inside a host and of one between hosts."""
    flushes = 2 if protocol == SIMPLE else 1  # Simple waits for the data and for its flush
    beyond = flushes * hop_us(comm.cluster)
    if comm.cluster.nccl_minor <= older.LAST_MINOR:
        intra, inter = older.hop_latencies(algorithm, protocol, comm)
        return intra, inter + beyond
    intra = tables.HOP_LATENCY[comm.graphs.hardware][algorithm][protocol]
    # One GPU per host cannot hide the network behind NVLink, so NCCL takes the tree's latency.
    network = "tree" if comm.placement.num_ranks == comm.placement.num_hosts else algorithm
    return intra, tables.HOP_LATENCY["network"][network][protocol] + beyond
