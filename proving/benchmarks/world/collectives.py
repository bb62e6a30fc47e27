"""What NCCL sends between hosts: rings per channel, double binary trees, and how many bytes each hop carries.

Facts are from NCCL's public source (graph/connect.cc, graph/trees.cc, graph/tuning.cc, transport/net_ib): a ring
enters a host at the first GPU of its channel's order and leaves from the last; trees connect hosts and a chain
connects the GPUs of a host; the second tree is the first one shifted (odd number of hosts) or mirrored (even).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proving.benchmarks.world.fabric import Fabric

MTU = 4096
WIRE_HEADER = 44  # IP 20, UDP 8, BTH 12, ICRC 4: what a flow exporter counts besides the payload of a packet
STEP_BYTES = 512 * 1024  # one slot of NCCL's 4 MiB buffer of 8 slots (Simple)
BUFFER_BYTES = 8 * STEP_BYTES
LATENCY = 12e-6  # seconds per network hop of a small message, with the proxy threads
LL_BYTES, LL128_BYTES = 64 * 1024, 2 * 1024 * 1024  # per collective; above these NCCL's tuning takes the next protocol


@dataclass(frozen=True, kw_only=True)
class Hops:
    """The network hops of one algorithm on one communicator, as columns."""

    src_rank: np.ndarray  # numbers inside the communicator
    dst_rank: np.ndarray
    src: np.ndarray  # address numbers
    dst: np.ndarray
    channel: np.ndarray
    place: np.ndarray  # ring: position of src_rank in its channel's ring
    upward: np.ndarray  # tree: True towards the root
    order: np.ndarray  # ring: [channel, rank] -> position


@dataclass(frozen=True, kw_only=True)
class Group:
    """A communicator: its ranks with their hosts, and the hops of its ring and trees."""

    ranks: np.ndarray  # global ranks
    num_hosts: int
    num_channels: int
    ring: Hops
    tree: Hops
    kind: str
    uplinks: frozenset[str]  # leaves whose uplinks its hops use
    number: int  # tells communicators apart, for queue pairs


def ring_orders(hosts: list[list[int]], num_channels: int) -> np.ndarray:
    """For each channel the ranks in ring order: host after host, each host's GPUs rotated by the channel."""
    orders = []
    for channel in range(num_channels):
        order: list[int] = []
        for locals_ in hosts:
            turn = channel % len(locals_)
            order += locals_[turn:] + locals_[:turn]
        orders.append(order)
    return np.array(orders)


def tree_parents(count: int) -> np.ndarray:
    """The parent of each host in NCCL's binary tree, where leaves and inner nodes alternate; -1 is the root."""
    parents = np.full(count, -1)
    for node in range(1, count):
        bit = node & -node
        up = (node ^ bit) | (bit << 1)
        parents[node] = up if up < count else node ^ bit
    return parents


def double_tree_parents(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Both trees; a host that is a leaf in one is an inner node in the other wherever that can be."""
    first = tree_parents(count)
    second = np.full(count, -1)
    for node in range(count):
        if count % 2:
            parent = first[(node - 1) % count]
            second[node] = -1 if parent < 0 else (parent + 1) % count
        else:
            parent = first[count - 1 - node]
            second[node] = -1 if parent < 0 else count - 1 - parent
    return first, second


def build_group(
    fabric: Fabric, places: list[tuple[int, int]], ranks: list[int], kind: str, *, channels: int, number: int
) -> Group:
    """A communicator over ranks whose (host, gpu) are given; ranks of one host must follow each other."""
    hosts: dict[int, list[int]] = {}
    for index, (host, _gpu) in enumerate(places):
        hosts.setdefault(host, []).append(index)
    names, members = list(hosts), list(hosts.values())
    nics = [sorted({fabric.nic_of(h, places[i][1]) for i in hosts[h]}) for h in names]
    orders = ring_orders(members, channels)
    ring = _ring_hops(orders, [p[0] for p in places], names, nics)
    tree = _tree_hops(names, members, nics, channels)
    leaves = fabric.leaves
    pairs = {(leaves[a], leaves[b]) for a, b in zip(ring.src, ring.dst, strict=True)}
    uplinks = frozenset(leaf for a, b in pairs if a != b for leaf in (a, b))
    return Group(
        ranks=np.array(ranks), num_hosts=len(names), num_channels=channels, ring=ring, tree=tree, kind=kind,
        uplinks=uplinks, number=number,
    )  # fmt: skip


def _ring_hops(orders: np.ndarray, host_of: list[int], names: list[int], nics: list[list[int]]) -> Hops:
    rows = []
    of_name = {name: index for index, name in enumerate(names)}
    for channel, order in enumerate(orders):
        for place, rank in enumerate(order):
            after = order[(place + 1) % len(order)]
            if host_of[rank] == host_of[after]:
                continue
            a, b = nics[of_name[host_of[rank]]], nics[of_name[host_of[after]]]
            rows.append((rank, after, a[channel % len(a)], b[channel % len(b)], channel, place, False))
    order_of = np.argsort(orders, axis=1)
    return _hops(rows, order_of)


def _tree_hops(names: list[int], members: list[list[int]], nics: list[list[int]], channels: int) -> Hops:
    """Even channels use the first tree, odd channels the second; both directions of an edge are hops."""
    rows = []
    trees = double_tree_parents(len(names))
    for channel in range(channels):
        for child, parent in enumerate(trees[channel % 2]):
            if parent < 0:
                continue
            a, b = nics[child], nics[parent]
            low, high = members[child][channel % len(members[child])], members[parent][channel % len(members[parent])]
            x, y = a[channel % len(a)], b[channel % len(b)]
            rows += [(low, high, x, y, channel, child, True), (high, low, y, x, channel, child, False)]
    return _hops(rows, np.zeros((0, 0), dtype=int))


def _hops(rows: list[tuple[int, int, int, int, int, int, bool]], order: np.ndarray) -> Hops:
    table = np.array(rows, dtype=np.int64).reshape(-1, 7)
    return Hops(
        src_rank=table[:, 0], dst_rank=table[:, 1], src=table[:, 2], dst=table[:, 3], channel=table[:, 4],
        place=table[:, 5], upward=table[:, 6].astype(bool), order=order,
    )  # fmt: skip


def uses_tree(group: Group, num_bytes: float) -> bool:
    """All-reduces up to a few MiB per host go by trees (fewer hops); larger ones by rings (more bandwidth)."""
    return group.num_hosts > 1 and num_bytes <= 1024 * 1024 * group.num_hosts


def protocol_bytes(num_bytes: float) -> float:
    """Bytes sent for a payload: LL sends a flag with each 4 bytes, LL128 8 of 128 bytes, Simple none."""
    if num_bytes <= LL_BYTES:
        return max(2 * num_bytes, 64.0)
    return num_bytes * 128 / 120 if num_bytes <= LL128_BYTES else num_bytes


def ring_hop_bytes(operation: str, num_bytes: float, num_ranks: int, num_channels: int) -> float:
    """What one hop of one channel carries; `num_bytes` is the size of the whole (gathered) tensor."""
    turns = 2 if operation == "all_reduce" else 1
    return turns * (num_ranks - 1) / num_ranks * num_bytes / num_channels


def wire_bytes(payload: np.ndarray) -> np.ndarray:
    """Payload with the headers of its packets, as a flow exporter counts them."""
    return payload + np.ceil(payload / MTU) * WIRE_HEADER + 16
