"""The channels that NCCL's topology search would find for a group: how many, and how fast each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from prism.simulate.cluster import Cluster
from prism.simulate.nccl import constants as tables
from prism.simulate.placement import GroupPlacement


@dataclass(frozen=True, slots=True)
class ChannelGraph:
    """One searched graph: GB/s of each channel inside hosts and between them."""

    channels: int
    intra: float
    inter: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupGraphs:
    """What a communicator over one group would work with."""

    hardware: str  # "nvlink" or "pcie"
    ring: ChannelGraph
    tree: ChannelGraph
    nvls: ChannelGraph | None
    coll_channels: int  # as launched: each searched ring channel runs twice
    nvls_channels: int


@dataclass(frozen=True, slots=True)
class Communicator:
    """A group on its cluster with the channels that NCCL finds for it."""

    placement: GroupPlacement
    cluster: Cluster
    graphs: GroupGraphs

    @property
    def scale(self) -> int:
        """Which entry of NCCL's rows of three applies: one host, two, more."""
        return min(self.placement.num_hosts, 3) - 1


def communicator(placement: GroupPlacement, cluster: Cluster) -> Communicator:
    """What NCCL works with for one group."""
    return Communicator(placement, cluster, find_graphs(placement, cluster))


@lru_cache(maxsize=4096)
def find_graphs(placement: GroupPlacement, cluster: Cluster) -> GroupGraphs:
    """The graphs of one group."""
    host_gb = cluster.nvlink.gb_per_s if cluster.nvlink else cluster.pcie_gb_per_s
    if placement.same_host:
        ring = _ring_in_host(host_gb, cluster.arch)
    else:
        ring = _ring_over_network(placement, cluster, host_gb)
    ring = _duplicate(ring, cluster.arch)
    nvls = _nvls(placement, cluster)
    return GroupGraphs(
        hardware="nvlink" if cluster.nvlink else "pcie",
        ring=ring,
        tree=_tree(ring, placement, cluster, host_gb),
        nvls=nvls,
        coll_channels=min(tables.MAX_CHANNELS, 2 * ring.channels),
        nvls_channels=tables.NVLS_CHANNELS[cluster.arch][not placement.same_host] if nvls else 0,
    )


def nic_gb_per_s(placement: GroupPlacement, cluster: Cluster) -> float:
    """What NCCL counts on from one NIC, 12 GB/s per 100 Gb/s, at the pace of the slowest link on the way."""
    return cluster.nics.gbps * placement.slowest_link / 100 * tables.NETWORK_GB_PER_100_GBIT


def _ring_in_host(host_gb: float, arch: str) -> ChannelGraph:
    tried = [(s, int(host_gb / s + 1e-9)) for s in tables.SPEEDS_ONE_NODE[arch]]
    return _best(tried, host_gb)


def _ring_over_network(placement: GroupPlacement, cluster: Cluster, host_gb: float) -> ChannelGraph:
    nic = nic_gb_per_s(placement, cluster)
    tried = []
    for speed in tables.SPEEDS_NODES[cluster.arch]:
        channels = placement.rails_per_host * int(nic / speed + 1e-9)
        if placement.ranks_per_host_max > 1:
            channels = min(channels, int(host_gb / speed + 1e-9))
        tried.append((speed, channels))
    return _best(tried, min(nic, host_gb))


def _best(tried: list[tuple[float, int]], fallback: float) -> ChannelGraph:
    """The most total bandwidth among speeds down to half the first that works, as the search stops there."""
    found = [(speed, min(n, tables.MAX_CHANNELS // 2)) for speed, n in tried if n > 0]
    if not found:
        return ChannelGraph(1, fallback, fallback)
    near = [(speed, n) for speed, n in found if speed > 0.49 * found[0][0]]
    speed, channels = max(near, key=lambda pair: pair[0] * pair[1])  # the first of equals, hence the fastest
    return ChannelGraph(channels, speed, speed)


def _duplicate(graph: ChannelGraph, arch: str) -> ChannelGraph:
    """Fast channels are run as two slower ones."""
    if graph.intra < 25.0 or (arch in ("hopper", "blackwell") and graph.intra < 50.0 and graph.channels > 4):
        return graph
    channels = min(2 * graph.channels, tables.MAX_CHANNELS // 2)
    share = math.ceil(channels / graph.channels)
    return ChannelGraph(channels, graph.intra / share, graph.inter / share)


def _tree(ring: ChannelGraph, placement: GroupPlacement, cluster: Cluster, host_gb: float) -> ChannelGraph:
    """Same channels as the ring; inside hosts it may run faster than the network, up to what two nodes need."""
    if placement.same_host or placement.ranks_per_host_max == 1:
        return ring
    fits = [s for s in tables.SPEEDS_NODES[cluster.arch] if s * ring.channels <= host_gb + 1e-9]
    return ChannelGraph(ring.channels, max(ring.inter, min(fits[0] if fits else 0.0, 2 * ring.inter)), ring.inter)


def _nvls(placement: GroupPlacement, cluster: Cluster) -> ChannelGraph | None:
    """One channel per GPU of a host; the head of a channel carries it twice."""
    link = cluster.nvlink
    heads = placement.ranks_per_host_min
    if (
        link is None
        or not link.sharp
        or cluster.arch not in ("hopper", "blackwell")
        or placement.num_ranks <= 2
        or heads < 2
    ):
        return None
    if placement.ranks_per_host_max != heads:
        return None
    limit = link.gb_per_s / (heads + 1)
    if placement.same_host:
        speed = next((s for s in tables.SPEEDS_ONE_NODE[cluster.arch] if s <= limit), limit)
        return ChannelGraph(heads, speed, speed)
    speeds = tables.SPEEDS_NODES[cluster.arch]
    intra = next((s for s in speeds if s <= limit), limit)
    network = placement.rails_per_host * nic_gb_per_s(placement, cluster) / heads
    inter = next((s for s in speeds if s <= min(limit, network)), min(limit, network))
    return ChannelGraph(heads, intra, inter)
