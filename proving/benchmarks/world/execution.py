"""One run of a job on its hosts: clocks of ranks, what they compute, and the collectives that they wait in.

Programs are generators. They yield a Claim for each collective and are sent the time at which it ends, so that jobs
that share uplinks slow each other down (see `sharing.py`). A hang is a time that is infinite.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np

from proving.benchmarks.world.collectives import (
    BUFFER_BYTES,
    LATENCY,
    Group,
    Hops,
    build_group,
    protocol_bytes,
    ring_hop_bytes,
    uses_tree,
)
from proving.benchmarks.world.fabric import Fabric
from proving.benchmarks.world.traffic import Bursts, Route

CHUNK_BYTES = 4 * 512 * 1024  # NCCL's chunk of a ring: 4 of the 8 slots of its buffer
PAUSE_SECONDS = 200e-6  # a wait shorter than this is not worth a burst of its own
CONTROL_BYTES = 64 * 1024


@dataclass(frozen=True)
class Claim:
    """A collective that wants its links from `begin`, and takes `seconds` if it has them to itself."""

    begin: float
    seconds: float
    uplinks: frozenset[str]


Waiting = Generator[Claim, float, np.ndarray]


@dataclass(frozen=True)
class Plan:
    """A group's hops for one algorithm and number of channels, with the seconds that a byte takes per channel."""

    rows: np.ndarray  # of the group's hops
    seconds_per_byte: np.ndarray  # by channel
    route: Route
    leaf_child: np.ndarray  # tree: hops up from a host without children


@dataclass(frozen=True)
class _Call:
    """One collective call, as its bursts need it."""

    hops: Hops
    plan: Plan
    ready: np.ndarray
    payload: float  # of one hop
    chunk: float


@dataclass(frozen=True, kw_only=True)
class Health:
    """What is wrong with the ranks of a run, and how noisy they are."""

    jitter: float = 0.015
    slow: dict[int, float] = field(default_factory=dict)  # rank: factor on its compute
    pause_chance: float = 0.0  # of a rank and step: garbage collection
    pause_seconds: float = 0.0
    hang_rank: int = -1
    hang_time: float = np.inf  # the rank computes nothing more after this


class Run:
    """Clocks, random numbers and bursts of one run; ranks are numbered host by host."""

    def __init__(self, fabric: Fabric, hosts: list[int], health: Health, rng: np.random.Generator, begin: float):
        per_host = fabric.config.gpus_per_host
        self.fabric, self.hosts, self.health, self.rng = fabric, hosts, health, rng
        self.places = [(host, gpu) for host in hosts for gpu in range(per_host)]
        self.size = len(self.places)
        self.clock = np.full(self.size, begin)
        self.bursts = Bursts()
        self.factor = np.ones(self.size)
        for rank, factor in health.slow.items():
            self.factor[rank] = factor
        self.steps: list[tuple[float, float]] = []
        self.synced = begin  # the end of the latest collective
        self.num_connections = 0
        self._plans: dict[tuple[int, bool, int, float], Plan] = {}
        self._num_groups = 0

    def nic(self, ranks: np.ndarray | list[int]) -> np.ndarray:
        """The address numbers of ranks."""
        return np.array([self.fabric.nic_of(*self.places[rank]) for rank in np.ravel(ranks)])

    def connect(self, count: int) -> np.ndarray:
        """Numbers for new connections."""
        numbers = np.arange(self.num_connections, self.num_connections + count)
        self.num_connections += count
        return numbers

    def group(self, ranks: list[int], kind: str, channels: int) -> Group:
        """A communicator over ranks."""
        places = [self.places[rank] for rank in ranks]
        self._num_groups += 1
        return build_group(self.fabric, places, ranks, kind, channels=channels, number=self._num_groups)

    def compute(self, seconds: float | np.ndarray) -> None:
        """Every rank computes; the clock of a rank that hangs becomes infinite."""
        health = self.health
        noise = self.rng.lognormal(0, health.jitter, self.size)
        self.clock = self.clock + seconds * self.factor * noise
        self._hang()

    def _hang(self) -> None:
        rank = self.health.hang_rank
        if rank >= 0 and self.clock[rank] > self.health.hang_time:
            self.clock[rank] = np.inf

    def collect_garbage(self) -> None:
        """Some ranks pause for a moment, which harms one step and means nothing."""
        if self.health.pause_chance:
            hit = self.rng.random(self.size) < self.health.pause_chance
            self.clock = self.clock + hit * self.rng.exponential(self.health.pause_seconds, self.size)

    def _plan(self, group: Group, tree: bool, channels: int, share: float) -> Plan:
        key = (group.number, tree, channels, share)
        if key in self._plans:
            return self._plans[key]
        hops = group.tree if tree else group.ring
        rows = np.flatnonzero(hops.channel < channels)
        src, dst, channel = hops.src[rows], hops.dst[rows], hops.channel[rows]
        num = len(self.fabric.speed)
        out, into = np.bincount(src, minlength=num), np.bincount(dst, minlength=num)
        per_hop = share * np.maximum(out[src], into[dst]) * self.fabric.seconds_per_byte(src, dst)
        per_channel = np.zeros(channels)
        np.maximum.at(per_channel, channel, per_hop)
        up = hops.upward[rows]
        inner = np.unique(np.stack([channel, hops.dst_rank[rows]])[:, up], axis=1) if tree else np.zeros((2, 0), int)
        keys = channel * self.size + hops.src_rank[rows]
        leaf_child = up & ~np.isin(keys, inner[0] * self.size + inner[1])
        route = Route(src, dst, self.connect(len(rows)), group.kind)
        self._plans[key] = Plan(rows, per_channel, route, leaf_child)
        return self._plans[key]

    def collective(
        self, group: Group, operation: str, num_bytes: float, ready: np.ndarray, share: float = 1.0
    ) -> Waiting:
        """Run a collective whose members are ready at given times; gives the time at which it ends, per member."""
        size = len(group.ranks)
        last = float(ready.max())
        if group.num_hosts == 1:  # all of it goes over NVLink
            return np.full(size, last + 20e-6 + num_bytes / 300e9)
        tree = operation == "all_reduce" and uses_tree(group, num_bytes)
        sent = protocol_bytes(num_bytes)
        channels = int(np.clip(np.ceil(num_bytes / CONTROL_BYTES), 1, group.num_channels))
        plan = self._plan(group, tree, channels, share)
        payload = sent / channels if tree else ring_hop_bytes(operation, sent, size, channels)
        turns = 2 if operation == "all_reduce" else 1
        hops_deep = 2 * np.log2(group.num_hosts) + 1 if tree else turns * group.num_hosts
        latency = LATENCY * hops_deep + 1.5e-6 * size
        noise = 1 + np.abs(self.rng.normal(0, 0.01, channels))
        seconds = latency + payload * plan.seconds_per_byte * noise
        begin, stretch = last + LATENCY, 1.0
        if np.isfinite(begin):
            end = yield Claim(begin, float(seconds.max()), group.uplinks)
            stretch = (end - begin) / seconds.max()
        else:
            end = np.inf
        chunk = min(payload / (turns * (size - 1)), CHUNK_BYTES)
        call = _Call(group.tree if tree else group.ring, plan, ready, float(round(payload)), chunk)
        self._record(call, begin, begin + seconds * stretch)
        self.synced = max(self.synced, end)
        return end + self.rng.exponential(4e-6, size)

    def _record(self, call: _Call, begin: float, ends: np.ndarray) -> None:
        """Write a collective's bursts: what hops can send before the last member comes, and the rest."""
        hops, plan, ready, payload = call.hops, call.plan, call.ready, call.payload
        rows = plan.rows
        src, dst, channel = hops.src_rank[rows], hops.dst_rank[rows], hops.channel[rows]
        latest = int(ready.argmax())
        jitter = self.rng.exponential(5e-6, (2, len(rows)))
        start = np.maximum(ready[src], ready[dst]) + LATENCY + jitter[0]
        if hops.upward.any():
            early = np.where(plan.leaf_child, min(payload, BUFFER_BYTES), 0.0)
        else:  # a rank sends its own chunk and one for each rank since the missing one, as far as buffers ahead hold
            since = (hops.place[rows] - hops.order[channel, latest]) % len(ready)
            room = (len(ready) - since - 1) * 2 * BUFFER_BYTES
            early = np.minimum(np.floor(np.minimum(since * call.chunk, room)), payload)
        early[(src == latest) | (dst == latest) | (start > begin - PAUSE_SECONDS)] = 0
        transfer = self.bursts.new_transfers(len(rows))
        speed = self.fabric.speed[plan.route.src]
        self.bursts.add(start, np.minimum(start + early / speed + 3e-6, begin), early, plan.route, transfer)
        main = np.maximum(begin + jitter[0], start)
        finish = np.maximum(ends[channel] + jitter[1], main + 2e-6)
        self.bursts.add(main, finish, payload - early, plan.route, transfer)

    def scalar(self, group: Group) -> Waiting:
        """A small all-reduce (loss, gradient norm) of all members of a group, by their clocks."""
        control = Group(**{**group.__dict__, "kind": "control", "number": group.number + 100_000})
        end = yield from self.collective(control, "all_reduce", 512.0, self.clock[group.ranks])
        self.clock[group.ranks] = end
        return end

    def mark_step(self, begin: float) -> float:
        """Note a step, which ends with its last collective; gives that time."""
        if np.isfinite(self.clock).all():
            self.steps.append((begin, self.synced))
        return self.synced
