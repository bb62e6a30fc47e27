"""Megatron-like programs: tensor parallelism inside a host, pipelines, context parallelism and experts across hosts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from benchmarks.world.collectives import LATENCY, Group
from benchmarks.world.execution import Run
from benchmarks.world.programs import MB, Degrees, Step
from benchmarks.world.schedules import (
    Compute,
    Transfer,
    interleaved,
    one_forward_one_backward,
    solve_order,
    zero_bubble,
)
from benchmarks.world.traffic import Route


@dataclass
class Pipeline:
    """TP in the host x PP x DP; rank order is tp, dp, pp, so stages are far apart and replicas are neighbours."""

    pp: int = 4
    tp: int = 8
    microbatches: int = 8
    schedule: str = "1f1b"  # or "interleaved", "zero_bubble"
    chunks: int = 1
    forward: float = 0.03  # seconds per microbatch, stage and chunk
    activation_mb: float = 32.0  # per rank and microbatch
    gradient_mb: float = 800.0  # per rank
    embedding_mb: float = 0.0  # per rank of the first and last stage; 0: not tied
    distributed_optimizer: bool = True
    optimizer: float = 0.03
    heavy: dict[int, float] = field(default_factory=dict)  # stage: factor
    cut: tuple[int, int, int] | None = None  # (step, stage, replica): sends from there never end
    count: int = field(init=False, default=0)

    def setup(self, run: Run) -> Degrees:
        self.dp = run.size // (self.pp * self.tp)
        self.grid = np.arange(run.size).reshape(self.pp, self.dp, self.tp)
        nics = run.fabric.config.nics_per_host
        self.share = max(1.0, run.fabric.config.gpus_per_host / nics)
        self.groups = self._replicas(run)
        ends = [self.grid[0], self.grid[-1]]
        self.ties = [run.group([int(a), int(b)], "embedding", 2) for a, b in zip(*map(np.ravel, ends), strict=True)]
        self.world = run.group(list(range(run.size)), "control", 1)
        orders = [self._order(stage) for stage in range(self.pp)]
        self.plan = solve_order(orders, self.chunks, self.schedule == "1f1b")
        self.transfers = [item for item in self.plan if isinstance(item, Transfer)]
        self.num_work = sum(map(len, orders))
        self._routes(run)
        return Degrees(dp=self.dp, pp=self.pp, tp=self.tp)

    def _replicas(self, run: Run) -> list[Group]:
        if self.dp == 1:
            return []
        cells = [self.grid[stage, :, t].tolist() for stage in range(self.pp) for t in range(self.tp)]
        return [run.group(ranks, "dp", 2) for ranks in cells]

    def _order(self, stage: int) -> list:
        if self.schedule == "interleaved":
            return interleaved(stage, self.pp, self.microbatches, self.chunks)
        make = zero_bubble if self.schedule == "zero_bubble" else one_forward_one_backward
        return make(stage, self.pp, self.microbatches)

    def _routes(self, run: Run) -> None:
        """One connection per direction and pair of ranks, used by all microbatches."""
        known: dict[tuple[int, int], np.ndarray] = {}
        src, dst, connections = [], [], []
        for item in self.transfers:
            pair = (item.src_stage, item.dst_stage)
            if pair not in known:
                known[pair] = run.connect(self.dp * self.tp)
            src.append(run.nic(self.grid[item.src_stage]))
            dst.append(run.nic(self.grid[item.dst_stage]))
            connections.append(known[pair])
        columns = [np.concatenate(c) for c in (src, dst, connections)]
        self.route = Route(columns[0], columns[1], columns[2], "pp")
        speed = run.fabric.speed.copy()
        slowest = np.minimum(speed[self.route.src], speed[self.route.dst])
        per_rank = self.activation_mb * MB * self.share / slowest
        self.send_seconds = per_rank.reshape(len(self.transfers), self.dp, self.tp).max(axis=2)
        self.rank_seconds = per_rank.reshape(len(self.transfers), self.dp, self.tp)
        self.outside = (
            self.route.src // run.fabric.config.nics_per_host != self.route.dst // run.fabric.config.nics_per_host
        )

    def _pass_seconds(self, run: Run) -> dict[str, float]:
        split = self.schedule == "zero_bubble"
        return {"F": self.forward, "B": self.forward * (1 if split else 2), "W": self.forward}

    def step(self, run: Run) -> Step:
        run.collect_garbage()
        shape = (self.pp, self.dp)
        begin = run.clock.reshape(self.pp, self.dp, self.tp).max(axis=2)
        factor = run.factor.reshape(self.pp, self.dp, self.tp).max(axis=2)
        factor = factor * np.array([self.heavy.get(s, 1.0) for s in range(self.pp)])[:, None]
        noise = run.rng.lognormal(0, run.health.jitter, (self.num_work, self.dp))
        seconds = self._pass_seconds(run)
        ends = np.empty((self.num_work, self.dp))
        sends = np.empty((2, len(self.transfers), self.dp))
        durations = self.send_seconds * (1 + np.abs(run.rng.normal(0, 0.01, self.send_seconds.shape))) + LATENCY
        self._cut(durations)
        hangs = self._hanging(run, shape)
        final = begin.copy()
        for item in self.plan:
            if isinstance(item, Transfer):
                start = ends[item.node]
                if item.posted >= 0:
                    start = np.maximum(start, ends[item.posted])
                start = np.maximum(start, begin[item.dst_stage])
                sends[0, item.number] = start
                sends[1, item.number] = start + durations[item.number]
            else:
                final[item.stage] = self._solve(item, begin, ends, sends[1])
                ends[item.node] = final[item.stage] + seconds[item.work.name] * factor[item.stage] * noise[item.node]
                if hangs is not None and hangs[0] == item.stage and ends[item.node][hangs[1]] > run.health.hang_time:
                    ends[item.node][hangs[1]] = np.inf
                final[item.stage] = ends[item.node]
        self._write(run, sends)
        self.count += 1
        run.clock = np.repeat(final.reshape(-1), self.tp)
        yield from self._finish(run)

    def _hanging(self, run: Run, shape: tuple[int, int]) -> tuple[int, int] | None:
        rank = run.health.hang_rank
        return None if rank < 0 else (rank // self.tp // shape[1], rank // self.tp % shape[1])

    def _cut(self, durations: np.ndarray) -> None:
        """From a given step on, one pair's sends in the middle of the step do not end."""
        if self.cut and self.count >= self.cut[0]:
            numbers = [t.number for t in self.transfers if t.src_stage == self.cut[1] and not t.backward]
            durations[numbers[len(numbers) // 2], self.cut[2]] = np.inf

    def _solve(self, item: Compute, begin: np.ndarray, ends: np.ndarray, arrivals: np.ndarray) -> np.ndarray:
        start = ends[item.before] if item.before >= 0 else begin[item.stage]
        if item.arrival >= 0:
            start = np.maximum(start, arrivals[item.arrival])
        if item.sent >= 0:
            start = np.maximum(start, arrivals[item.sent])
        return start

    def _write(self, run: Run, sends: np.ndarray) -> None:
        """The bursts of all sends of a step; the ranks of a host send side by side."""
        count = len(self.transfers) * self.dp * self.tp
        start = np.repeat(sends[0].reshape(-1), self.tp) + run.rng.exponential(8e-6, count)
        with np.errstate(invalid="ignore"):  # sends that never begin
            scale = (sends[1] - sends[0])[:, :, None] / self.send_seconds[:, :, None]
        end = start + (self.rank_seconds * scale).reshape(-1)
        size = np.full(count, float(round(self.activation_mb * MB)))
        size[~self.outside] = 0
        run.bursts.add(start, end, size, self.route, run.bursts.new_transfers(count))

    def _finish(self, run: Run) -> Step:
        """Gradients, tied embeddings, the norm, the optimizer, and the parameters that it gives back."""
        operation = "reduce_scatter" if self.distributed_optimizer else "all_reduce"
        yield from self._among(run, self.groups, operation, self.gradient_mb * MB)
        if self.embedding_mb and self.pp > 1:
            yield from self._among(run, self.ties, "all_reduce", self.embedding_mb * MB)
        yield from run.scalar(self.world)
        run.compute(self.optimizer)
        if self.distributed_optimizer:
            yield from self._among(run, self.groups, "all_gather", self.gradient_mb / 2 * MB)

    def _among(self, run: Run, groups: list[Group], operation: str, num_bytes: float) -> Step:
        for group in groups:
            ready = run.clock[group.ranks]
            run.clock[group.ranks] = yield from run.collective(group, operation, num_bytes, ready, self.share)


@dataclass
class RingAttention:
    """TP in the host x CP x DP: hosts of a context group pass keys and values around in every layer."""

    cp: int = 2
    tp: int = 8
    layers: int = 16
    microbatches: int = 2
    layer: float = 0.012  # seconds of a layer's forward pass
    keys_mb: float = 24.0  # keys and values of one rank's part of the sequence
    gradient_mb: float = 900.0
    optimizer: float = 0.03

    def setup(self, run: Run) -> Degrees:
        self.cells = run.size // self.tp
        self.dp = self.cells // self.cp
        cell = np.arange(self.cells).reshape(self.dp, self.cp)
        self.prev = np.roll(cell, 1, axis=1).reshape(-1)  # who sends to a cell
        ranks = np.arange(run.size).reshape(self.cells, self.tp)
        self.groups = [run.group(ranks[:, t].tolist(), "dp", 2) for t in range(self.tp)]
        self.world = run.group(list(range(run.size)), "control", 1)
        self.route = Route(run.nic(ranks[self.prev]), run.nic(ranks), run.connect(run.size), "cp")
        self.share = max(1.0, run.fabric.config.gpus_per_host / run.fabric.config.nics_per_host)
        slowest = np.minimum(run.fabric.speed[self.route.src], run.fabric.speed[self.route.dst])
        self.per_byte = (self.share / slowest).reshape(self.cells, self.tp)
        return Degrees(dp=self.dp, tp=self.tp, cp=self.cp)

    def step(self, run: Run) -> Step:
        run.collect_garbage()
        clock = run.clock.reshape(self.cells, self.tp).max(axis=1)
        factor = run.factor.reshape(self.cells, self.tp).max(axis=1)
        host = run.health.hang_rank // self.tp
        for _ in range(self.microbatches):
            for turn in (1.0, 2.0):
                for _ in range(self.layers):
                    clock = self._layer(run, clock, factor, turn)
                    if host >= 0 and clock[host] > run.health.hang_time:
                        clock[host] = np.inf
        run.clock = np.repeat(clock, self.tp)
        for group in self.groups:
            ready = run.clock[group.ranks]
            end = yield from run.collective(group, "reduce_scatter", self.gradient_mb * MB, ready, self.share)
            run.clock[group.ranks] = end
        yield from run.scalar(self.world)
        run.compute(self.optimizer)
        for group in self.groups:
            ready = run.clock[group.ranks]
            end = yield from run.collective(group, "all_gather", self.gradient_mb / 2 * MB, ready, self.share)
            run.clock[group.ranks] = end

    def _layer(self, run: Run, clock: np.ndarray, factor: np.ndarray, turn: float) -> np.ndarray:
        """Each of cp - 1 turns sends one block on while it computes with the one before; backward sends twice as much."""
        size = turn * self.keys_mb * MB
        for _ in range(self.cp - 1):
            start = np.maximum(clock, clock[self.prev])
            seconds = size * self.per_byte * (1 + np.abs(run.rng.normal(0, 0.01, self.per_byte.shape))) + LATENCY
            starts = np.repeat(start, self.tp) + run.rng.exponential(8e-6, run.size)
            sizes = np.full(run.size, float(round(size)))
            transfers = run.bursts.new_transfers(run.size)
            run.bursts.add(starts, starts + seconds.reshape(-1), sizes, self.route, transfers)
            noise = run.rng.lognormal(0, run.health.jitter, self.cells)
            clock = np.maximum(clock + turn * self.layer / self.cp * factor * noise, start + seconds.max(axis=1))
        noise = run.rng.lognormal(0, run.health.jitter, self.cells)
        return clock + turn * self.layer / self.cp * factor * noise


@dataclass
class Experts:
    """Data parallelism with experts spread over hosts: two all-to-alls per layer and direction, by PXN where rails are."""

    ep_hosts: int = 2
    layers: int = 8
    attention: float = 0.008  # seconds per layer, forward
    expert: float = 0.006
    tokens_mb: float = 64.0  # sent by one rank per all-to-all, with its own share
    dense_mb: float = 1200.0
    expert_mb: float = 400.0  # per rank
    unevenness: float = 0.08  # lognormal spread of expert loads, new for every layer and step
    hot: dict[int, float] = field(default_factory=dict)  # rank: load beyond the mean, for good
    optimizer: float = 0.03
    channels: int = 8

    def setup(self, run: Run) -> Degrees:
        per_host = run.fabric.config.gpus_per_host
        self.per_host, self.hosts = per_host, len(run.hosts)
        self.world = run.group(list(range(run.size)), "dp", self.channels)
        width = self.ep_hosts * per_host
        spread = [list(range(i, run.size, width)) for i in range(width)]
        self.expert_groups = [run.group(r, "dp", 2) for r in spread] if self.hosts > self.ep_hosts else []
        self.hot_load = np.ones(run.size)
        for rank, load in self.hot.items():
            self.hot_load[rank] = load
        self.share = max(1.0, per_host / run.fabric.config.nics_per_host)
        self._routes(run)
        return Degrees(dp=run.size, ep=width)

    def _routes(self, run: Run) -> None:
        """Rows (sending host, receiving rank) inside an expert group: PXN sends by the NIC of the receiver's rail."""
        rows = []
        for first in range(0, self.hosts, self.ep_hosts):
            inside = range(first, first + self.ep_hosts)
            rows += [(a, b * self.per_host + g) for a in inside for b in inside for g in range(self.per_host) if a != b]
        table = np.array(rows)
        self.sender, self.receiver = table[:, 0], table[:, 1]
        src = np.array([run.fabric.nic_of(run.hosts[a], r % self.per_host) for a, r in rows])
        dst = run.nic(self.receiver)
        self.route = Route(src, dst, run.connect(len(rows)), "ep")

    def _all_to_all(self, run: Run, load: np.ndarray, combine: bool) -> None:
        """Every host waits for every other host of its expert group."""
        hosts = run.clock.reshape(self.hosts, self.per_host).max(axis=1)
        begin = np.repeat(hosts.reshape(-1, self.ep_hosts).max(axis=1), self.ep_hosts)
        size = self.tokens_mb * MB / self.ep_hosts * load[self.receiver]
        route = (
            Route(self.route.dst, self.route.src, self.route.connection + 1_000_000, "ep") if combine else self.route
        )
        speed = run.fabric.speed
        out = np.bincount(route.src, weights=size, minlength=len(speed)) / speed
        into = np.bincount(route.dst, weights=size, minlength=len(speed)) / speed
        seconds = (
            np.maximum(out[route.src], into[route.dst]) * (1 + np.abs(run.rng.normal(0, 0.02, len(size)))) + LATENCY
        )
        other = self.receiver // self.per_host
        start = np.maximum(hosts[self.sender], hosts[other]) + run.rng.exponential(10e-6, len(size))
        with np.errstate(invalid="ignore"):
            end = np.maximum(start, begin[self.sender]) + seconds
        run.bursts.add(start, end, np.round(size), route, run.bursts.new_transfers(len(size)))
        done = begin.copy()
        np.maximum.at(done, self.sender, end)
        np.maximum.at(done, other, end)
        run.clock = np.repeat(done, self.per_host)

    def step(self, run: Run) -> Step:
        run.collect_garbage()
        for turn in (1, 2):
            for _ in range(self.layers):
                load = self.hot_load * run.rng.lognormal(0, self.unevenness, run.size)
                load /= load.mean()
                run.compute(turn * self.attention)
                self._all_to_all(run, load, combine=False)
                run.compute(turn * self.expert * load)
                self._all_to_all(run, load, combine=True)
        stream = run.clock
        for _ in range(max(1, round(self.dense_mb / 200))):
            stream = yield from run.collective(self.world, "all_reduce", 200 * MB, stream)
        run.clock = stream.copy()
        for group in self.expert_groups:
            ready = run.clock[group.ranks]
            end = yield from run.collective(group, "all_reduce", self.expert_mb * MB, ready, self.share)
            run.clock[group.ranks] = end
        yield from run.scalar(self.world)
        run.compute(self.optimizer)
