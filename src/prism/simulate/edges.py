"""Which NIC sends what share of a collective's buffer to which: the hops between hosts of rings, trees and exchanges.

Hops inside a host never reach a NIC, so only those between hosts are listed. A group works on as many lanes as the
host with the fewest NICs gives it; lane k leaves and enters by the k-th NIC of each host, as NCCL's channels do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Edges:
    """Directed hops between NICs; `share` is the part of the op's bytes that crosses each."""

    src: Ints
    dst: Ints
    share: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """The NICs of a group: one row per host in ring order, one column per lane."""

    nics: Ints
    num_ranks: int


def find_lanes(hosts: Sequence[int] | Ints, nics: Sequence[int] | Ints) -> Lanes:
    """Lanes of a group from the host and the NIC of each member, in the order of their positions."""
    host, nic = np.asarray(hosts, np.int64), np.asarray(nics, np.int64)
    _, first = np.unique(host, return_index=True)
    order = host[np.sort(first)]  # hosts in the order of their first members
    own = [np.unique(nic[host == h]) for h in order]
    num_lanes = min(len(n) for n in own)
    return Lanes(nics=np.array([n[:num_lanes] for n in own]), num_ranks=len(host))


def collective_edges(kind: str, algorithm: str, lanes: Lanes, root_host: int = 0) -> Edges:
    """The hops between hosts of one collective; `root_host` is the row of the root in a broadcast or reduce."""
    if len(lanes.nics) < 2:
        return _no_edges()
    if algorithm in ("tree", "nvls_tree") and kind == "all_reduce":
        return _over_lanes(lanes, *_tree_hops(len(lanes.nics)))
    if algorithm == "pat" and kind in ("all_gather", "reduce_scatter"):
        return _over_lanes(lanes, *_pat_hops(len(lanes.nics), kind))
    return _over_lanes(lanes, *_ring_hops(kind, lanes, root_host))


def _ring_hops(kind: str, lanes: Lanes, root_host: int) -> tuple[Ints, Ints, Floats]:
    num_hosts, n = len(lanes.nics), lanes.num_ranks
    source = np.arange(num_hosts)
    target = (source + 1) % num_hosts
    if kind in ("broadcast", "reduce", "gather", "scatter"):
        # A pipelined chain: the hop that would close the ring at the root stays empty.
        closing = target == root_host if kind in ("broadcast", "scatter") else source == root_host
        return source[~closing], target[~closing], np.ones(num_hosts - 1)
    passes = 2.0 if kind == "all_reduce" else 1.0
    return source, target, np.full(num_hosts, passes * (n - 1) / n)


def _tree_hops(num_hosts: int) -> tuple[Ints, Ints, Floats]:
    """NCCL's double binary tree: each of two trees takes half of the buffer up, and its sum down again."""
    child, parent = [], []
    for mirrored in (False, True):
        for node in range(1, num_hosts):
            child.append(_mirror(node, num_hosts) if mirrored else node)
            above = tree_parent(node, num_hosts)
            parent.append(_mirror(above, num_hosts) if mirrored else above)
    up, down = np.array(child, np.int64), np.array(parent, np.int64)
    return np.r_[up, down], np.r_[down, up], np.full(2 * len(up), 0.5)


def tree_parent(node: int, size: int) -> int:
    """The parent of a node other than the root 0 in NCCL's binary tree (src/graph/trees.cc)."""
    low = node & -node
    above = (node ^ low) | (low << 1)
    return above if above < size else node ^ low


def _mirror(node: int, size: int) -> int:
    """A node's place in the second tree, which makes leaves of the first one's inner nodes."""
    return size - 1 - node if size % 2 == 0 else (node + 1) % size


def _pat_hops(num_hosts: int, kind: str) -> tuple[Ints, Ints, Floats]:
    """PAT: every shard follows a binomial tree, so a host talks to those 1, 2, 4, ... places away."""
    source, target, share = [], [], []
    node = np.arange(num_hosts)
    distance = 1
    while distance < num_hosts:
        shards = len(range(0, num_hosts - distance, 2 * distance))
        source.append(node)
        target.append((node + distance) % num_hosts)
        share.append(np.full(num_hosts, shards / num_hosts))
        distance *= 2
    src, dst = np.concatenate(source), np.concatenate(target)
    return (src, dst, np.concatenate(share)) if kind == "all_gather" else (dst, src, np.concatenate(share))


def _over_lanes(lanes: Lanes, source: Ints, target: Ints, share: Floats) -> Edges:
    num_lanes = lanes.nics.shape[1]
    return Edges(
        src=lanes.nics[source].ravel(),
        dst=lanes.nics[target].ravel(),
        share=np.repeat(share / num_lanes, num_lanes),
    )


def _no_edges() -> Edges:
    return Edges(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
