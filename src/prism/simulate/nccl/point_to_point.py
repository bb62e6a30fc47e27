"""What NCCL's sends and receives take, alone or grouped into an all-to-all, gather or scatter.

NCCL has no score for these; the latencies are those of its ring (one hop), the rate that of the narrowest link a
rank uses. Between hosts NCCL sends with Simple only; inside one, up to 16 KiB go with LL.
"""

from __future__ import annotations

import numpy as np

from prism.simulate.cluster import Cluster
from prism.simulate.nccl import constants as tables
from prism.simulate.nccl.candidates import Candidate
from prism.simulate.nccl.channels import find_graphs
from prism.simulate.nccl.choice import Costs, FloatArray
from prism.simulate.nccl.constants import LL, SIMPLE
from prism.simulate.nccl.transports import hop_us, real_nic_gb_per_s
from prism.simulate.placement import GroupPlacement

POINT_TO_POINT_KINDS = ("send", "recv", "all_to_all", "gather", "scatter")


def evaluate_point_to_point(kind: str, sizes: FloatArray, placement: GroupPlacement, cluster: Cluster) -> Costs:
    """Time sends, receives and what is made of them, for every size."""
    peers = 1 if kind in ("send", "recv") else placement.num_ranks - 1
    message = sizes if kind in ("send", "recv") else sizes / placement.num_ranks
    transfer = slowest_link_us(kind, sizes, placement, cluster)
    candidates = tuple(
        Candidate(
            algorithm="p2p",
            protocol=protocol,
            latency_us=exchange_latency_us(peers, protocol, placement, cluster),
            gb_per_s=host_gb_per_s(cluster),
            channels=find_graphs(placement, cluster).coll_channels,
        )
        for protocol in (LL, SIMPLE)
    )
    short = (message <= tables.P2P_LL_LIMIT_BYTES) & placement.same_host
    choice = np.where(short, 0, 1)
    latency = np.array([c.latency_us for c in candidates])[choice]
    total = latency + transfer * np.where(short, 2.0, 1.0)  # half of an LL line is flags
    return Costs(
        candidates=candidates,
        choice=choice,
        score_us=total,
        latency_us=latency,
        duration_us=total,
        shape_us=total,
    )


def host_gb_per_s(cluster: Cluster) -> float:
    """What one GPU can send to others of its host."""
    return cluster.nvlink.gb_per_s if cluster.nvlink else cluster.pcie_gb_per_s


def exchange_latency_us(num_peers: int, protocol: int, placement: GroupPlacement, cluster: Cluster) -> float:
    """Start-up of a grouped exchange: one hop per batch of peers that NCCL serves together."""
    hardware = "nvlink" if cluster.nvlink else "pcie"
    hop = tables.HOP_LATENCY[hardware]["ring"][protocol]
    if not placement.same_host:
        detour = 0.0 if placement.same_rail else hop  # another rail is reached through the GPU that owns its NIC
        hop = tables.HOP_LATENCY["network"]["tree"][SIMPLE] + 2 * hop_us(cluster) + detour
    return tables.BASE_LATENCY["ring"][protocol] + -(-num_peers // tables.P2P_PEERS_AT_ONCE) * hop


def slowest_link_us(kind: str, sizes: FloatArray, placement: GroupPlacement, cluster: Cluster) -> FloatArray:
    """How long the busiest link is held: NVLink of one GPU, a NIC, or a leaf's share of its uplinks."""
    nic = real_nic_gb_per_s(placement, cluster)
    if kind in ("send", "recv"):
        return sizes / (1000 * (host_gb_per_s(cluster) if placement.same_host else nic))
    inside, outside = placement.ranks_per_host_max - 1, placement.num_ranks - placement.ranks_per_host_min
    if placement.same_host:
        inside, outside = placement.num_ranks - 1, 0
    per_peer = sizes / placement.num_ranks
    sharing = placement.ranks_per_host_max / placement.rails_per_host if kind == "all_to_all" else 1.0
    held = np.maximum(inside * per_peer / host_gb_per_s(cluster), outside * sharing * per_peer / nic)
    if kind == "all_to_all" and cluster.fabric.oversubscription > 1:
        pods = max(1, placement.num_leaves // (placement.num_rails if cluster.fabric.rail_optimized else 1))
        crossing = placement.num_ranks * (pods - 1) / pods
        held = np.maximum(held, crossing * sharing * per_peer * cluster.fabric.oversubscription / nic)
    return held / 1000
