"""Pipelines as Megatron runs them: tensor parallelism inside a host, stages and replicas across hosts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from proving.benchmarks.world.collectives import LATENCY, Group
from proving.benchmarks.world.execution import Run
from proving.benchmarks.world.programs import MB, Degrees, Step
from proving.benchmarks.world.schedules import (
    Compute,
    Transfer,
    interleaved,
    one_forward_one_backward,
    solve_order,
    zero_bubble,
)
from proving.benchmarks.world.traffic import Route


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
        per_rank = self.activation_mb * MB * self.share * run.fabric.seconds_per_byte(self.route.src, self.route.dst)
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
