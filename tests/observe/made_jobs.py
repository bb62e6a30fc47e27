"""Flows of small training jobs with one planted fault, written without Prism's simulator.

A pipeline runs one forward, one backward; a message leaves as soon as its sender has it (`meets` False) or when both
sides have come. Every data-parallel group ends its step with one ring all-reduce, whose hops start likewise, and end
together or, with `coupled` False, each at its own pace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

MS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that is wrong from step `first` to step `last`."""

    kind: str = "none"  # late_host slow_nic slow_switch heavy_stage hang
    place: int = 0  # host, endpoint, switch or stage number
    factor: float = 1.6
    first: int = 0
    last: int = 10_000


@dataclass(frozen=True, kw_only=True)
class MadeJob:
    """A job: ranks are numbered stage by stage, replica by replica, `tp` of them in each worker."""

    dp: int = 4
    pp: int = 4
    tp: int = 2
    microbatches: int = 8
    steps: int = 24
    gpus_per_host: int = 4
    hosts_per_switch: int = 2
    first_host: int = 0
    host_stride: int = 1
    forward_ms: float = 8.0
    gap_ms: float = 12.0
    volume: float = 1.0  # times the usual bytes of every message
    jitter: float = 0.01
    meets: bool = True
    coupled: bool = True
    start_ns: int = 1_700_000_000 * 10**9
    seed: int = 0
    fault: Fault = field(default_factory=Fault)

    def rank(self, stage: int, replica: int, i: int) -> int:
        """The number of a rank."""
        return (stage * self.dp + replica) * self.tp + i

    def host(self, rank: int) -> int:
        """Where it sits."""
        return self.first_host + rank // self.gpus_per_host * self.host_stride

    def address(self, rank: int) -> str:
        """Its NIC."""
        return f"10.9.{self.host(rank)}.{rank % self.gpus_per_host + 1}"

    def switch(self, rank: int) -> int:
        """The switch of its host."""
        return self.host(rank) // self.hosts_per_switch

    @property
    def num_ranks(self) -> int:
        """All of them."""
        return self.dp * self.pp * self.tp

    def topology(self) -> pl.DataFrame:
        """The table of NICs."""
        ranks = range(self.num_ranks)
        return pl.DataFrame(
            {
                "address": [self.address(r) for r in ranks],
                "host": [f"h{self.host(r)}" for r in ranks],
                "rail": [r % self.gpus_per_host for r in ranks],
                "switch": [f"sw{self.switch(r)}" for r in ranks],
            },
            schema_overrides={"rail": pl.Int32},
        )


class Writer:
    """Steps of one job as flow records."""

    def __init__(self, job: MadeJob) -> None:
        self.job = job
        self.rng = np.random.default_rng(job.seed)
        self.rows: list[tuple[float, float, int, int, float]] = []
        self.now = np.zeros((job.pp, job.dp))
        self.step = 0

    def flows(self) -> pl.DataFrame:
        """All records, sorted by start."""
        job = self.job
        for self.step in range(job.steps):
            if not self._run_step():
                break
        frame = pl.DataFrame(self.rows, schema=["t0", "t1", "s", "d", "size"], orient="row")
        names = pl.Series([job.address(r) for r in range(job.num_ranks)])
        noise = 1 + np.abs(self.rng.normal(0, 3e-4, frame.height))
        return frame.select(
            (job.start_ns + pl.col("t0") * MS).cast(pl.Int64).alias("start_ns"),
            (job.start_ns + pl.col("t1") * MS).cast(pl.Int64).alias("end_ns"),
            names.gather(frame["s"]).alias("src"),
            names.gather(frame["d"]).alias("dst"),
            (pl.col("size") * pl.Series(noise)).cast(pl.Int64).alias("bytes"),
        ).sort("start_ns")

    def _is_wrong(self, kind: str) -> bool:
        fault = self.job.fault
        return fault.kind == kind and fault.first <= self.step <= fault.last

    def _work(self, stage: int, replica: int, amount: float) -> float:
        """Milliseconds of compute of a worker; inf where it hangs."""
        job, fault = self.job, self.job.fault
        ranks = [job.rank(stage, replica, i) for i in range(job.tp)]
        factor = 1.0
        if self._is_wrong("late_host") and any(job.host(r) == fault.place for r in ranks):
            factor = fault.factor
        if self._is_wrong("heavy_stage") and stage == fault.place:
            factor = fault.factor
        if self._is_wrong("hang") and fault.place in ranks:
            return float("inf")
        return job.forward_ms * amount * factor * float(np.exp(self.rng.normal(0, job.jitter)))

    def _takes(self, src: int, dst: int, size: float) -> float:
        """Milliseconds of a transfer at 200 Gb/s, longer over what is slow."""
        job, fault = self.job, self.job.fault
        slow = 1.0
        if self._is_wrong("slow_nic") and fault.place in (src, dst):
            slow = fault.factor
        if self._is_wrong("slow_switch") and fault.place in (job.switch(src), job.switch(dst)):
            slow = fault.factor
        return size / 25e6 * slow * float(np.exp(self.rng.normal(0, job.jitter)))

    def _send(self, begin: float, src: int, dst: int, size: float) -> float:
        """Record one transfer; returns when it ends."""
        end = begin + self._takes(src, dst, size)
        if np.isfinite(end) and self.job.host(src) != self.job.host(dst):
            self.rows.append((begin, end, src, dst, size))
        return end

    def _run_step(self) -> bool:
        job = self.job
        begin = float(self.now.max()) + job.gap_ms
        ready = np.full((job.pp, job.dp), begin)
        for replica in range(job.dp):
            ready[:, replica] = self._run_pipeline(replica, begin)
        if job.dp > 1:
            for stage in range(job.pp):
                ready[stage] = self._reduce(stage, ready[stage])
        self.now = ready
        return bool(np.isfinite(ready).all())

    def _run_pipeline(self, replica: int, begin: float) -> np.ndarray:
        """One forward, one backward; returns when each stage is done."""
        job = self.job
        queues = [self._order(stage) for stage in range(job.pp)]
        free = [begin] * job.pp
        arrived: dict[tuple[int, str, int], float] = {}
        waiting: dict[tuple[int, str, int], tuple[float, int, int]] = {}
        moved = True
        while moved:
            moved = False
            for stage in range(job.pp):
                while queues[stage]:
                    phase, m = queues[stage][0]
                    needs = stage > 0 if phase == "F" else stage < job.pp - 1
                    key = (stage, phase, m)
                    if needs and key not in arrived:
                        if key not in waiting:
                            break
                        sent, src, dst = waiting.pop(key)
                        arrived[key] = self._pass(max(sent, free[stage]) if job.meets else sent, src, dst, replica)
                    done = max(free[stage], arrived.get(key, begin)) + self._work(
                        stage, replica, 1.0 if phase == "F" else 2.0
                    )
                    if not np.isfinite(done):
                        return np.full(job.pp, np.inf)
                    free[stage] = done
                    onward = stage + 1 if phase == "F" else stage - 1
                    if 0 <= onward < job.pp:
                        waiting[onward, phase, m] = (done, stage, onward)
                    queues[stage].pop(0)
                    moved = True
        return np.array(free)

    def _pass(self, begin: float, src: int, dst: int, replica: int) -> float:
        job = self.job
        return max(
            self._send(begin, job.rank(src, replica, i), job.rank(dst, replica, i), 12e6 * job.volume)
            for i in range(job.tp)
        )

    def _order(self, stage: int) -> list[tuple[str, int]]:
        ahead = min(self.job.pp - stage - 1, self.job.microbatches)
        order = [("F", m) for m in range(ahead)]
        for m in range(self.job.microbatches - ahead):
            order += [("F", m + ahead), ("B", m)]
        return order + [("B", m) for m in range(self.job.microbatches - ahead, self.job.microbatches)]

    def _reduce(self, stage: int, ready: np.ndarray) -> np.ndarray:
        """A ring over the replicas for every tensor-parallel rank; nothing ends before the last has come."""
        job, size = self.job, 90e6 * self.job.volume
        done = ready.copy()
        if not np.isfinite(ready).all():
            return np.full(job.dp, np.inf)
        if job.pp == 1:
            ready = ready + np.array([self._work(stage, d, 3.0 * job.microbatches) for d in range(job.dp)])
            if not np.isfinite(ready).all():
                return np.full(job.dp, np.inf)
        for i in range(job.tp):
            hops = [(d, (d + 1) % job.dp) for d in range(job.dp)]
            took = [self._takes(job.rank(stage, a, i), job.rank(stage, b, i), size) for a, b in hops]
            last = float(ready.max())
            for (a, b), own in zip(hops, took, strict=True):
                begin = max(ready[a], ready[b]) if job.meets else ready[a]
                end = last + (max(took) if job.coupled else own)
                src, dst = job.rank(stage, a, i), job.rank(stage, b, i)
                if job.host(src) != job.host(dst):
                    self.rows.append((float(begin), float(end), src, dst, size))
                done[a] = max(done[a], end)
        return np.full(job.dp, done.max())


def write_job(job: MadeJob) -> tuple[pl.DataFrame, pl.DataFrame]:
    """FLOWS and the topology of one job."""
    return Writer(job).flows(), job.topology()


def contend(victim: MadeJob, other: MadeJob, uplink: str, factor: float) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Two jobs that share a link between switches: while the other sends over it, the victim's transfers last longer.

    Only messages that leave by the first switch of the link take it; all others have a link of their own.
    """
    parts = []
    for job in (victim, other):
        flows, table = Writer(job).flows(), job.topology()
        switch = dict(table.select("address", "switch").iter_rows())
        src, dst = (flows[c].replace_strict(switch) for c in ("src", "dst"))
        crosses = (src != dst) & (src == uplink.split(">")[0])
        spine = uplink.split(">")[1]
        path = [
            s if s == d else f"{s}>{spine if c else f'own-{s}'}>{d}" for s, d, c in zip(src, dst, crosses, strict=True)
        ]
        parts.append(flows.with_columns(pl.Series("path", path), pl.Series("crosses", crosses)))
    busy = parts[1].filter("crosses").select("start_ns", "end_ns").to_numpy()
    parts[0] = _stretch(parts[0], busy, factor)
    topology = pl.concat([victim.topology(), other.topology()]).unique("address", maintain_order=True)
    return pl.concat(parts).drop("crosses").sort("start_ns"), topology


def _stretch(flows: pl.DataFrame, busy: np.ndarray, factor: float) -> pl.DataFrame:
    start, end, crosses = flows["start_ns"].to_numpy(), flows["end_ns"].to_numpy(), flows["crosses"].to_numpy()
    hit = np.array([bool(((busy[:, 0] < e) & (busy[:, 1] > s)).any()) for s, e in zip(start, end, strict=True)])
    longer = np.where(crosses & hit, (end - start) * factor, end - start).astype(np.int64)
    return flows.with_columns(pl.Series("end_ns", start + longer))


def named(finding: Any) -> tuple[str, str]:
    """A finding's kind and culprit."""
    return finding.kind, finding.culprit.id
