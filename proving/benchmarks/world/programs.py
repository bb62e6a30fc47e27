"""Data-parallel programs: DDP with buckets, FSDP2 (also HSDP and MiCS), and rare synchronisation (DiLoCo).

A program has `setup(run)`, once, and `step(run)`, a generator that advances the clocks of all ranks by one step.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np

from proving.benchmarks.world.collectives import Group
from proving.benchmarks.world.execution import Claim, Run

Step = Generator[Claim, float, None]
MB = 1024 * 1024


@dataclass(frozen=True)
class Degrees:
    """The layout that the truth names."""

    dp: int
    pp: int = 1
    tp: int = 1
    cp: int = 1
    ep: int = 1


def transformer_parameters(layers: int, hidden: int, vocabulary: int) -> list[int]:
    """Parameter counts of a GPT-like model in the order of its modules."""
    block = [hidden, hidden, 3 * hidden * hidden, 3 * hidden, hidden * hidden, hidden, hidden, hidden]
    block += [4 * hidden * hidden, 4 * hidden, 4 * hidden * hidden, hidden]
    return [vocabulary * hidden, *(block * layers), hidden, hidden]


def ddp_buckets(parameters: list[int], width: int = 4, cap_mb: float = 25.0, first_mb: float = 1.0) -> list[int]:
    """Bytes per bucket in the order of reduction: filled from the last parameter, closed once over the cap."""
    buckets, filled, cap = [], 0, first_mb * MB
    for count in reversed(parameters):
        filled += count * width
        if filled >= cap:
            buckets.append(filled)
            filled, cap = 0, cap_mb * MB
    return [*buckets, filled] if filled else buckets


@dataclass
class DDP:
    """torch DistributedDataParallel: gradients all-reduced in buckets while the backward pass runs."""

    layers: int = 24
    hidden: int = 2048
    width: int = 4  # bytes of a gradient
    cap_mb: float = 25.0
    forward: float = 0.12  # seconds per microbatch
    accumulation: int = 1
    optimizer: float = 0.02
    channels: int = 8
    scalars: bool = True
    world: Group = field(init=False)
    buckets: list[int] = field(init=False)

    def setup(self, run: Run) -> Degrees:
        self.world = run.group(list(range(run.size)), "dp", self.channels)
        self.buckets = ddp_buckets(transformer_parameters(self.layers, self.hidden, 50304), self.width, self.cap_mb)
        return Degrees(dp=run.size)

    def step(self, run: Run) -> Step:
        run.collect_garbage()
        for _ in range(self.accumulation - 1):
            run.compute(3 * self.forward)
        run.compute(self.forward)
        begin = run.clock
        run.compute(2 * self.forward)
        backward = run.clock - begin
        done = np.cumsum(self.buckets) / sum(self.buckets)
        stream = np.full(run.size, -np.inf)
        for share, num_bytes in zip(done, self.buckets, strict=True):
            with np.errstate(invalid="ignore"):  # a rank that hangs
                at = np.where(np.isfinite(run.clock), begin + share * backward, np.inf)
            ready = np.maximum(at, stream)
            stream = yield from run.collective(self.world, "all_reduce", num_bytes, ready)
        run.clock = np.maximum(run.clock, stream)
        if self.scalars:
            yield from run.scalar(self.world)
        run.compute(self.optimizer)


@dataclass
class FSDP:
    """torch FSDP2: layers gathered one ahead, gradients reduce-scattered; replicas of shards are HSDP and MiCS."""

    layers: int = 32
    layer_mb: float = 400.0  # of one layer's parameters in the gathered type
    forward: float = 0.012  # seconds per layer
    shard_hosts: int = 0  # hosts of one sharding group; 0: all
    accumulation: int = 1
    optimizer: float = 0.03
    channels: int = 8
    scalars: bool = True
    world: Group = field(init=False)
    shards: list[Group] = field(init=False)
    replicas: list[Group] = field(init=False)

    def setup(self, run: Run) -> Degrees:
        per_host = run.fabric.config.gpus_per_host
        size = (self.shard_hosts or len(run.hosts)) * per_host
        everyone = list(range(run.size))
        self.world = run.group(everyone, "dp", self.channels)
        self.shards = [run.group(everyone[i : i + size], "dp", self.channels) for i in range(0, run.size, size)]
        few = max(1, self.channels * run.fabric.config.nics_per_host // (per_host * 4))
        self.replicas = [run.group(everyone[i::size], "dp", few) for i in range(size)] if size < run.size else []
        return Degrees(dp=run.size)

    def _every(
        self, run: Run, operation: str, num_bytes: float, ready: np.ndarray
    ) -> Generator[Claim, float, np.ndarray]:
        """The same collective in every sharding group."""
        end = np.empty(run.size)
        for group in self.shards:
            end[group.ranks] = yield from run.collective(group, operation, num_bytes, ready[group.ranks])
        return end

    def evaluate(self, run: Run, batches: int) -> Step:
        """Forward passes only."""
        for _ in range(batches):
            yield from self._forward(run)

    def _forward(self, run: Run) -> Step:
        size = self.layer_mb * MB
        gathered = yield from self._every(run, "all_gather", size, run.clock)
        before = run.clock
        for layer in range(self.layers):
            ahead = gathered
            if layer + 1 < self.layers:
                ahead = yield from self._every(run, "all_gather", size, np.maximum(gathered, before))
            before = run.clock
            run.clock = np.maximum(run.clock, gathered)
            run.compute(self.forward)
            gathered = ahead
        self.last = gathered

    def step(self, run: Run) -> Step:
        run.collect_garbage()
        for index in range(self.accumulation):
            yield from self._forward(run)
            yield from self._backward(run, last=index == self.accumulation - 1)
        if self.scalars:
            yield from run.scalar(self.world)
        run.compute(self.optimizer)

    def _backward(self, run: Run, last: bool) -> Step:
        """The last layer is still gathered; each layer is gathered while the one after it computes."""
        size = self.layer_mb * MB
        stream, gathered, before = self.last, self.last, run.clock
        for layer in reversed(range(self.layers)):
            ahead = gathered
            if layer:
                ahead = stream = yield from self._every(run, "all_gather", size, np.maximum(stream, before))
            before = run.clock
            run.clock = np.maximum(run.clock, gathered)
            run.compute(2 * self.forward)
            stream = yield from self._every(run, "reduce_scatter", size, np.maximum(stream, run.clock))
            if last and self.replicas:
                stream = yield from self._replicate(run, stream)
            gathered = ahead
        run.clock = np.maximum(run.clock, stream)

    def _replicate(self, run: Run, stream: np.ndarray) -> Generator[Claim, float, np.ndarray]:
        """All-reduce the shards of one layer among their replicas; groups that share a NIC share its speed."""
        share = run.fabric.config.gpus_per_host / run.fabric.config.nics_per_host
        num_bytes = self.layer_mb * MB / len(self.shards[0].ranks)
        end = stream.copy()
        for group in self.replicas:
            end[group.ranks] = yield from run.collective(group, "all_reduce", num_bytes, stream[group.ranks], share)
        return end


@dataclass
class DiLoCo:
    """Inner steps inside a host; every few seconds the hosts all-reduce what they have learnt."""

    total_mb: float = 4000.0
    bucket_mb: float = 256.0
    inner_steps: int = 16
    inner: float = 0.25
    channels: int = 4
    world: Group = field(init=False)

    def setup(self, run: Run) -> Degrees:
        self.world = run.group(list(range(run.size)), "dp", self.channels)
        return Degrees(dp=run.size)

    def step(self, run: Run) -> Step:
        per_host = run.fabric.config.gpus_per_host
        for _ in range(self.inner_steps):
            run.compute(self.inner)
            run.clock = np.repeat(run.clock.reshape(-1, per_host).max(axis=1), per_host)
        stream = run.clock
        for _ in range(round(self.total_mb / self.bucket_mb)):
            stream = yield from run.collective(self.world, "all_reduce", self.bucket_mb * MB, stream)
        run.clock = stream
