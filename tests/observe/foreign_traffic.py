"""Traffic of another maker than the simulator, with faults: 1F1B and rings by hand, five columns, hosts of eight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import polars as pl

GPUS = 8  # of a host, each with a NIC of its own
_BYTES_PER_S = 40e9
_EPOCH_NS = 1_700_000_000_000_000_000


@dataclass
class ForeignJob:
    """One job: ranks in the order tp, dp, pp on hosts of eight; `slow` makes a rank's work longer from half-way on."""

    dp: int
    pp: int
    tp: int
    steps: int = 24
    forward_s: float = 0.02
    buckets: int = 4
    first_host: int = 0
    slow: Callable[[int, int], float] = lambda stage, host: 1.0
    rows: list[tuple[float, float, str, str, int]] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)

    def address(self, rank: int) -> str:
        """Of the NIC of a rank."""
        return f"10.0.{self.first_host + rank // GPUS + 1}.{rank % GPUS + 1}"

    def rank(self, stage: int, replica: int, part: int) -> int:
        """Ranks of one model part lie side by side."""
        return (stage * self.dp + replica) * self.tp + part

    def send(self, a: int, b: int, start: float, end: float, size: int) -> None:
        """A flow, where it leaves the host."""
        if a // GPUS != b // GPUS:
            self.rows.append((start, end, self.address(a), self.address(b), size))

    def run(self, rng: np.random.Generator) -> None:
        """All steps, one after the other."""
        now = 0.1
        for step in range(self.steps):
            slow = self.slow if step >= self.steps // 2 else lambda stage, host: 1.0
            done = np.array([self._pipeline(now, replica, slow, rng) for replica in range(self.dp)]).T
            end = max(self._reduce(stage, done[stage], rng) for stage in range(self.pp)) + 0.003
            self.step_s.append(end - now)
            now = end

    def _pipeline(
        self, now: float, replica: int, slow: Callable[[int, int], float], rng: np.random.Generator
    ) -> list[float]:
        """When each stage of a replica is through with its micro-batches."""
        arrived: dict[tuple[str, int, int], float] = {}
        free, turn = [now] * self.pp, [0] * self.pp
        plans = [_plan(stage, self.pp, 2 * self.pp) for stage in range(self.pp)]
        size = round(2e7 / self.tp)
        while any(turn[s] < len(plans[s]) for s in range(self.pp)):
            for s in range(self.pp):
                while turn[s] < len(plans[s]):
                    way, batch = plans[s][turn[s]]
                    before = (way, s - 1, batch) if way == "f" else (way, s + 1, batch)
                    if 0 <= before[1] < self.pp and before not in arrived:
                        break
                    host = self.rank(s, replica, 0) // GPUS
                    took = (
                        self.forward_s * (1 if way == "f" else 2) * slow(s, host) * (1 + 0.01 * rng.standard_normal())
                    )
                    end = max(free[s], arrived.get(before, 0.0)) + took
                    free[s], turn[s] = end, turn[s] + 1
                    after = s + 1 if way == "f" else s - 1
                    passed = size / _BYTES_PER_S * (1 + 0.01 * rng.random())
                    arrived[way, s, batch] = end + (passed if 0 <= after < self.pp else 0.0)
                    for part in range(self.tp if 0 <= after < self.pp else 0):
                        a, b = self.rank(s, replica, part), self.rank(after, replica, part)
                        self.send(a, b, end, end + passed, size)
        return free

    def _reduce(self, stage: int, ready: np.ndarray, rng: np.random.Generator) -> float:
        """Rings of gradients, bucket by bucket: a hop begins when its sender comes, all hops end together."""
        last = float(ready.max())
        for part in range(self.tp if self.dp > 1 else 0):
            come = ready.copy()
            for _ in range(self.buckets):
                size = round(2 * (self.dp - 1) / self.dp * 4e8 / self.tp / self.buckets)
                end = float(come.max()) + size / _BYTES_PER_S * (1 + 0.01 * rng.random())
                for d in range(self.dp):
                    a, b = self.rank(stage, d, part), self.rank(stage, (d + 1) % self.dp, part)
                    self.send(a, b, float(come[d]), end, size)
                come[:] = end
            last = max(last, float(come.max()))
        return last


def _plan(stage: int, stages: int, batches: int) -> list[tuple[str, int]]:
    """One forward, one backward, after as many forwards as stages follow."""
    ahead = min(batches, stages - stage - 1)
    plan = [("f", i) for i in range(ahead)]
    for i in range(ahead, batches):
        plan += [("f", i), ("b", i - ahead)]
    return plan + [("b", i) for i in range(batches - ahead, batches)]


def make_foreign(jobs: list[ForeignJob], seed: int = 0) -> tuple[pl.DataFrame, pl.DataFrame]:
    """FLOWS with five columns and the TOPOLOGY of jobs that run beside each other, each on hosts of its own."""
    rng = np.random.default_rng(seed)
    hosts = 0
    for job in jobs:
        job.first_host = hosts
        hosts += -(-job.dp * job.pp * job.tp // GPUS)
        job.run(rng)
    start, end, src, dst, size = zip(*(row for job in jobs for row in job.rows), strict=True)
    flows = pl.DataFrame(
        {
            "start_ns": _EPOCH_NS + (np.array(start) * 1e9).astype(np.int64),
            "end_ns": _EPOCH_NS + (np.array(end) * 1e9).astype(np.int64),
            "src": src,
            "dst": dst,
            "bytes": size,
        }
    ).sort("start_ns")
    nics = [(f"10.0.{h + 1}.{n + 1}", f"node-{h}", n, f"leaf-{n}") for h in range(hosts) for n in range(GPUS)]
    return flows, pl.DataFrame(nics, schema=["address", "host", "rail", "switch"], orient="row")
