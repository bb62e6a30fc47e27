"""Mixture of experts: tokens go to experts on other hosts and back, unevenly."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from proving.benchmarks.world.collectives import LATENCY
from proving.benchmarks.world.execution import Run
from proving.benchmarks.world.programs import MB, Degrees, Step
from proving.benchmarks.world.traffic import Route


@dataclass
class Experts:
    """Data parallelism with experts spread over hosts: two all-to-alls per layer and direction, sent by PXN."""

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
