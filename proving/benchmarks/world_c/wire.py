"""Messages on the wire: collectives that start when their members are ready, as NCCL moves them between hosts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from .fabric import Fabric, Floats, Ints

SLICE_BYTES = 4e6  # NCCL's buffer per channel (NCCL_BUFFSIZE): what a sender may send before its receiver is ready
MAX_ROUNDS = 48
ROCE_PORT = 4791


@dataclass(kw_only=True)
class Wire:
    """All messages of a capture, in the order they were simulated."""

    fabric: Fabric
    rng: np.random.Generator
    merge_gap: float = 1e-3  # silences shorter than this do not cut a message
    parts: list[tuple[np.ndarray, ...]] = field(default_factory=list)
    texts: list[tuple[float, float, str, str, int, int, int]] = field(default_factory=list)

    def put(self, start: Floats, end: Floats, src: Ints, dst: Ints, size: Floats, comm: int, qps: int = 1) -> None:
        """RDMA messages; each connection has `qps` queue pairs with a source port each, which share the bytes."""
        keep = np.isfinite(end) & (size >= 1)
        start, end, src, dst, size = (a[keep] for a in (start, end, src, dst, size))
        for q in range(qps):
            key = (((comm * 4096 + src) * 4096 + dst) * 8 + q).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            port = 49152 + (key >> np.uint64(50)).astype(np.int64)
            shift = np.abs(self.rng.normal(0, 1e-6, len(start))) if qps > 1 else 0.0
            qp = (key >> np.uint64(40)).astype(np.int64) & 0xFFFFF
            self.parts.append((start + shift, end + shift, src, dst, np.maximum(1, size / qps), port, qp))

    def tcp(self, start: float, end: float, src: str, dst: str, size: int, sport: int, dport: int) -> None:
        """One message of other traffic, between any addresses."""
        self.texts.append((start, end, src, dst, size, sport, dport))


@dataclass(kw_only=True)
class Talker:
    """A job's view of the wire: its rails, queue pairs, communicators, and which pairs it used for what."""

    wire: Wire
    rails: tuple[int, ...]
    qps: int = 1
    base: int = 0  # communicators of other jobs lie below
    pairs: dict[tuple[int, int], set[str]] = field(default_factory=lambda: defaultdict(set))

    def ends(self, hosts: Ints) -> Ints:
        """Endpoints of hosts, one more axis for the rails."""
        return hosts[..., None] * self.wire.fabric.num_nics + np.array(self.rails)

    def _put(self, start: Floats, end: Floats, src: Ints, dst: Ints, size: Floats, comm: int, kind: str) -> None:
        self.wire.put(start, end, src, dst, size, self.base + comm, self.qps)
        if kind:
            for pair in {*zip(src[np.isfinite(end)].tolist(), dst[np.isfinite(end)].tolist(), strict=True)}:
                self.pairs[pair].add(kind)

    def _rounds(self, start: Floats, end: Floats, src: Ints, dst: Ints, sizes: Floats, comm: int, kind: str) -> None:
        """Rounds (axis 0) of the same edges, those without a silence between joined to one message."""
        rounds = start.shape[0]
        start, end = start.reshape(rounds, -1).T, end.reshape(rounds, -1).T
        src, dst = src.ravel(), dst.ravel()
        sent = np.isfinite(end)
        with np.errstate(invalid="ignore"):
            fresh = np.concatenate([np.ones((len(src), 1), bool), start[:, 1:] - end[:, :-1] > self.wire.merge_gap], 1)
        fresh &= sent
        flat = np.flatnonzero(sent.ravel())
        begin = np.flatnonzero(fresh.ravel()[flat])
        if not len(begin):
            return
        edge = flat[begin] // rounds
        volume = np.add.reduceat(sizes[flat % rounds], begin)
        last = np.append(begin[1:], len(flat)) - 1
        first_start, last_end = start.ravel()[flat[begin]], end.ravel()[flat[last]]
        self._put(first_start, last_end, src[edge], dst[edge], volume, comm, kind)

    def ring(self, hosts: Ints, ready: Floats, edge_bytes: float, passes: int, comm: int, kind: str = "dp") -> Floats:
        """Rings over hosts [group, member], `passes` 2 for all-reduce, 1 for all-gather or reduce-scatter.

        `edge_bytes` is what each edge of each rail carries in all. Returns when each member is done.
        """
        members = hosts.shape[1]
        if members == 1:
            return ready + 20e-6
        fabric, rng = self.wire.fabric, self.wire.rng
        per_loop = passes * (members - 1)
        loops = int(np.clip(round(edge_bytes / per_loop / SLICE_BYTES), 1, max(2, MAX_ROUNDS // per_loop)))
        sizes = slice_sizes(edge_bytes, loops, per_loop)
        rounds = len(sizes)
        src = self.ends(hosts)
        dst = np.roll(src, -1, axis=1)
        mine = ready[..., None] + rng.uniform(5e-6, 30e-6, src.shape)
        theirs = np.roll(mine, -1, axis=1)
        starts, finish = np.empty((rounds, *src.shape)), np.empty((rounds, *src.shape))
        for k in range(rounds):
            start = mine
            if k:
                start = np.maximum(start, finish[k - 1])
                if k % per_loop:  # what came in the round before is sent on
                    start = np.maximum(start, np.roll(finish[k - 1], 1, axis=1))
            if k > 1:  # the receiver's buffer holds two slices until its kernel runs and sends them on
                start = np.maximum(np.maximum(start, theirs), np.roll(starts[k - 1], -1, axis=1))
            starts[k] = start
            finish[k] = fabric.transfer(rng, src, dst, start, sizes[k])
        self._rounds(starts, finish, src, dst, sizes, comm, kind)
        done = np.maximum(finish[-1], np.roll(finish[-1], 1, axis=1))
        return np.maximum(done, mine).max(axis=-1)

    def tree(self, hosts: Ints, ready: Floats, rail_bytes: float, comm: int, kind: str = "dp") -> Floats:
        """NCCL's double binary tree all-reduce over hosts [member]; each tree carries half of a rail's bytes."""
        num = len(hosts)
        if num == 1:
            return ready + 20e-6
        done = ready.copy()
        for which in range(2):
            done = np.maximum(done, self._one_tree(hosts, ready, rail_bytes / 2, 2 * comm + which, which, kind))
        return done

    def _one_tree(self, hosts: Ints, ready: Floats, size: float, comm: int, which: int, kind: str) -> Floats:
        num, fabric, rng = len(hosts), self.wire.fabric, self.wire.rng
        parent = {second_tree(r, num, which): second_tree(p, num, which) for r, p in enumerate(btree(num)) if p >= 0}
        root = second_tree(0, num, which)
        order = [root]
        for node in order:
            order += [c for c, p in parent.items() if p == node]
        slices = int(np.clip(round(size / SLICE_BYTES), 2, 24))
        ends, parts = self.ends(hosts), np.full(slices, size / slices)
        shape = (slices, num, len(self.rails))
        have = np.repeat((ready[:, None] + rng.uniform(5e-6, 30e-6, shape[1:]))[None], slices, axis=0)
        launch = have[0].copy()
        up, down = (np.zeros((2, *shape)) for _ in range(2))

        def send(src: int, dst: int, slot: int, m: int, out: Floats, room: Floats) -> None:
            start = np.maximum(have[m, src], out[1, m - 1, slot]) if m else have[m, src]
            start = np.maximum(start, room)
            # A NIC serves two trees at once.
            finish = fabric.transfer(rng, ends[src], ends[dst], start, 2 * parts[m])
            out[0, m, slot], out[1, m, slot] = start, finish
            have[m, dst] = np.maximum(have[m, dst], finish)

        for m in range(slices):  # a parent's buffer holds two slices until all its children have sent theirs
            for child in reversed(order[1:]):
                over = parent[child]
                send(child, over, child, m, up, have[m - 2, over] if m > 1 else np.zeros(len(self.rails)))
        for m in range(slices):
            for child in order[1:]:
                send(parent[child], child, child, m, down, launch[child])
        kids = np.array(order[1:])
        parents = np.array([parent[c] for c in order[1:]])
        self._rounds(up[0][:, kids], up[1][:, kids], ends[kids], ends[parents], parts, comm, kind)
        self._rounds(down[0][:, kids], down[1][:, kids], ends[parents], ends[kids], parts, comm, kind)
        return np.maximum(have[-1].max(axis=-1), ready)

    def alltoall(self, hosts: Ints, ready: Floats, sizes: Floats, comm: int, kind: str = "ep") -> Floats:
        """All-to-all over hosts [group, member]: sizes [group, from, to] per rail; GPUs of one rail talk (PXN)."""
        members = hosts.shape[1]
        if members == 1:
            return ready + 20e-6
        fabric, rng = self.wire.fabric, self.wire.rng
        ends = self.ends(hosts)
        src = np.broadcast_to(ends[:, :, None], (len(hosts), members, members, len(self.rails)))
        dst = np.swapaxes(src, 1, 2)
        both = np.maximum(ready[:, :, None], ready[:, None, :])[..., None]
        start = both + rng.uniform(5e-6, 40e-6, src.shape)
        off = ~np.eye(members, dtype=bool)[None, :, :, None] & np.ones(src.shape, bool)
        # The flows of a NIC share it, out and in, and the busier side sets their speed.
        load = np.maximum((sizes * ~np.eye(members, dtype=bool)).sum(2)[:, :, None], sizes.sum(1)[:, None, :])
        finish = fabric.transfer(rng, src, dst, start, np.broadcast_to(load[..., None], src.shape))
        full = np.broadcast_to(sizes[..., None], src.shape)
        self._put(start[off], finish[off], src[off], dst[off], full[off], comm, kind)
        masked = np.where(off, finish, 0)
        return np.maximum(masked.max(axis=(2, 3)), masked.max(axis=(1, 3)))

    def send(self, src: Ints, dst: Ints, start: Floats, rail_bytes: float, comm: int, kind: str) -> Floats:
        """Point-to-point messages between hosts, one per rail; returns the arrivals."""
        left, right = self.ends(src), self.ends(dst)
        begin = start[..., None] + self.wire.rng.uniform(2e-6, 15e-6, left.shape)
        finish = self.wire.fabric.transfer(self.wire.rng, left, right, begin, rail_bytes)
        size = np.full(left.size, float(rail_bytes))
        self._put(begin.ravel(), finish.ravel(), left.ravel(), right.ravel(), size, comm, kind)
        return finish.max(axis=-1)


def slice_sizes(total: float, loops: int, per_loop: int) -> Floats:
    """Bytes per round: slices of the buffer's size in the first loop, as in NCCL; later ones stand for several."""
    if loops == 1:
        return np.full(per_loop, total / per_loop)
    first = min(SLICE_BYTES, total / loops / per_loop)
    rest = (total / per_loop - first) / (loops - 1)
    return np.repeat(np.array([first] + [rest] * (loops - 1)), per_loop)


def btree(num: int) -> list[int]:
    """Parents in NCCL's binary tree (ncclGetBtree), -1 for the root."""
    parents = [-1]
    for rank in range(1, num):
        bit = rank & -rank
        up = (rank ^ bit) | (bit << 1)
        parents.append(up if up < num else rank ^ bit)
    return parents


def second_tree(rank: int, num: int, which: int) -> int:
    """The other tree of the pair: mirrored, or shifted by one where the number is odd (ncclGetDtree)."""
    if which == 0:
        return rank
    return (rank + 1) % num if num % 2 else num - 1 - rank
