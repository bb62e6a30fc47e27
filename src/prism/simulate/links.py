"""The network's links as numbers: which ones a transfer crosses, and how many bytes per nanosecond each carries.

Links are directed and numbered in four blocks: NIC to leaf, leaf to NIC, leaf to spine, spine to leaf.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from prism.simulate.cluster import Cluster, IntArray
from prism.simulate.nccl.constants import NETWORK_GB_PER_100_GBIT

# Bytes per ns of one Gb/s, after the share that headers take: NCCL counts 12 GB/s per 100 Gb/s.
BYTES_PER_NS_PER_GBPS = NETWORK_GB_PER_100_GBIT / 100


@dataclass(frozen=True, slots=True)
class FlowLinks:
    """Links of many transfers: those of transfer i are `links[start[i]:start[i + 1]]`."""

    start: IntArray
    links: IntArray


@lru_cache(maxsize=16)
def link_capacities(cluster: Cluster) -> NDArray[np.float64]:
    """Bytes per nanosecond of every link, by its number; do not write to it."""
    nic, leaf_nics = cluster.nics.gbps, cluster.nics.count // cluster.leaves_per_pod
    uplink = (
        cluster.fabric.hosts_per_leaf * leaf_nics * nic / cluster.fabric.oversubscription / cluster.fabric.num_spines
    )
    edges, trunks = cluster.num_hosts * cluster.nics.count, cluster.num_leaves * cluster.fabric.num_spines
    capacity = np.repeat(np.array([nic, uplink]), [2 * edges, 2 * trunks]) * BYTES_PER_NS_PER_GBPS
    for link in cluster.links:
        capacity[link_number(cluster, link.src, link.dst)] = link.gbps * BYTES_PER_NS_PER_GBPS
    capacity.flags.writeable = False
    return capacity


def link_number(cluster: Cluster, src: str, dst: str) -> int:
    """The number of the link between two neighbours, such as leaf-0 and spine-3."""
    edges, trunks = cluster.num_hosts * cluster.nics.count, cluster.num_leaves * cluster.fabric.num_spines
    nic, upwards = (src, True) if src.startswith("host-") else (dst, False)
    if nic.startswith("host-"):
        host, _, card = nic.partition("/")
        index = int(host.removeprefix("host-")) * cluster.nics.count + int(card.removeprefix("nic-"))
        return index if upwards else edges + index
    leaf, spine, upwards = (src, dst, True) if src.startswith("leaf-") else (dst, src, False)
    index = int(leaf.removeprefix("leaf-")) * cluster.fabric.num_spines + int(spine.removeprefix("spine-"))
    return 2 * edges + (0 if upwards else trunks) + index


def link_name(cluster: Cluster, number: int) -> str:
    """A link as a user reads it, such as host-3/nic-0>leaf-1."""
    edges, trunks = cluster.num_hosts * cluster.nics.count, cluster.num_leaves * cluster.fabric.num_spines
    block, index = divmod(number, edges) if number < 2 * edges else divmod(number - 2 * edges, trunks)
    if number < 2 * edges:
        host, rail = divmod(index, cluster.nics.count)
        low, high = f"host-{host}/nic-{rail}", f"leaf-{cluster.leaf_of(host, rail)}"
    else:
        leaf, spine = divmod(index, cluster.fabric.num_spines)
        low, high = f"leaf-{leaf}", f"spine-{spine}"
    return f"{low}>{high}" if block == 0 else f"{high}>{low}"


def links_of(cluster: Cluster, src: tuple[int, int], dst: tuple[int, int], flow: int = 0) -> IntArray:
    """The links between two GPUs given as (host, GPU); none inside a host."""
    one = [np.array([v], np.int64) for v in (*src, *dst, flow)]
    return links_of_many(cluster, *one).links


def links_of_many(
    cluster: Cluster,
    src_hosts: IntArray,
    src_locals: IntArray,
    dst_hosts: IntArray,
    dst_locals: IntArray,
    flows: IntArray | None = None,
) -> FlowLinks:
    """The links of every transfer; `flows` (a port, a queue pair) lets switches spread equal pairs over spines."""
    nics, spines = cluster.nics.count, cluster.fabric.num_spines
    edges, trunks = cluster.num_hosts * nics, cluster.num_leaves * spines
    dst_rail = cluster.rail_of(dst_locals)
    # With NVLink a message first moves to the GPU on the receiver's rail, so that it stays below one leaf (PXN).
    src_rail = dst_rail if cluster.nvlink and cluster.fabric.rail_optimized else cluster.rail_of(src_locals)
    src_nic, dst_nic = src_hosts * nics + src_rail, dst_hosts * nics + dst_rail
    src_leaf, dst_leaf = cluster.leaf_of(src_hosts, src_rail), cluster.leaf_of(dst_hosts, dst_rail)
    spine = _hash(src_nic, dst_nic, np.zeros_like(src_nic) if flows is None else flows) % spines
    up, down = 2 * edges + src_leaf * spines + spine, 2 * edges + trunks + dst_leaf * spines + spine
    path = np.stack([src_nic, up, down, edges + dst_nic], axis=1)
    away = src_hosts != dst_hosts
    crossed = np.stack([away, away & (src_leaf != dst_leaf), away & (src_leaf != dst_leaf), away], axis=1)
    start = np.zeros(len(src_nic) + 1, np.int64)
    np.cumsum(crossed.sum(axis=1), out=start[1:])
    return FlowLinks(start, path[crossed])


def _hash(src: IntArray, dst: IntArray, flow: IntArray) -> IntArray:
    """Spread transfers over spines as switches hash headers: even on the whole, fixed for one flow."""
    mixed = src.astype(np.uint64)
    for word in (dst, flow):
        mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15) + word.astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return (mixed >> np.uint64(33)).astype(np.int64)
