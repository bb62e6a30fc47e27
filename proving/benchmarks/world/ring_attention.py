"""Context parallelism across hosts: ring attention in every layer, tensor parallelism inside the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proving.benchmarks.world.collectives import LATENCY
from proving.benchmarks.world.execution import Run
from proving.benchmarks.world.programs import MB, Degrees, Step
from proving.benchmarks.world.traffic import Route


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
        per_byte = self.share * run.fabric.seconds_per_byte(self.route.src, self.route.dst)
        self.per_byte = per_byte.reshape(self.cells, self.tp)
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
        """Each of cp - 1 turns sends a block on and computes with the one before; backward blocks are twice as big."""
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
