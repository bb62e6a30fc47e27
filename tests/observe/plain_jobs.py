"""Flows of training jobs written with numpy alone: no simulator, no cost model, one endpoint per rank.

Forward and backward of each micro-batch pass along the stages, one after the other; a step ends with a ring
all-reduce of every data-parallel group. Blocks of context pass around rings, tokens go to all experts, tensors are
gathered across hosts, shards of parameters layer by layer, as asked for. Records may be cut into chunks, spread over
queue pairs, or seen in one direction only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

MB = 1_000_000


@dataclass(frozen=True, kw_only=True)
class PlainJob:
    """A job and how its records are written."""

    dp: int = 2
    pp: int = 1
    tp: int = 1
    cp: int = 1
    ep: int = 1
    fsdp: bool = False
    layers: int = 6
    microbatches: int = 4
    steps: int = 20
    gpus_per_host: int = 4
    first_host: int = 0
    first_gpu: int = 0
    forward_s: float = 0.02
    idle_s: float = 0.03  # between steps
    buckets: int = 1  # records per gradient reduction
    chunks: int = 1  # records per transfer, one after the other
    queue_pairs: int = 0  # 0: the columns are missing; else records of one transfer side by side
    jitter: float = 0.01
    start_s: float = 0.0
    seed: int = 0
    size: float = 1.0
    pause_every: int = 0  # steps after which an evaluation holds the job up
    pause_s: float = (
        1.0  # one that is longer than a step and a half belongs to no step, a shorter one to the step before
    )
    rows: list[tuple[float, float, int, int, float, int, str]] = field(default_factory=list)

    @property
    def ranks(self) -> int:
        """How many."""
        return self.dp * self.pp * self.tp * self.cp

    def rank(self, stage: int, replica: int, context: int, tensor: int) -> int:
        """Tensor parallel changes fastest, then context, data and pipeline."""
        return ((stage * self.dp + replica) * self.cp + context) * self.tp + tensor

    def place(self, rank: int) -> tuple[int, int]:
        """Host and GPU."""
        return self.first_host + rank // self.gpus_per_host, self.first_gpu + rank % self.gpus_per_host

    def address(self, rank: int) -> str:
        """The NIC of a rank."""
        host, gpu = self.place(rank)
        return f"10.{host // 200}.{host % 200}.{gpu + 1}"


@dataclass
class Made:
    """Flows, their topology and what should be found in them."""

    flows: pl.DataFrame
    topology: pl.DataFrame
    truth: dict[str, Any]


def make_jobs(*jobs: PlainJob, storage: bool = False, degrade: str = "") -> Made:
    """All jobs on one cluster."""
    parts = [_make(job) for job in jobs]
    flows = pl.concat([p.flows for p in parts], how="diagonal").sort("start_ns")
    topology = pl.concat([p.topology for p in parts]).unique("address", maintain_order=True)
    if storage:
        flows, topology = _add_storage(flows, topology)
    truth = {"jobs": [{**p.truth, "id": f"job-{i + 1}"} for i, p in enumerate(parts)]}
    return Made(flows=_degrade(flows, degrade), topology=topology, truth=truth)


def _make(job: PlainJob) -> Made:
    rng = np.random.default_rng(job.seed)
    rows: list[tuple[float, float, int, int, float, int, str]] = []
    now, steps = job.start_s, []
    for step in range(job.steps):
        begin = now
        now = end = _step(job, rng, now, rows)
        if job.pause_every and (step + 1) % job.pause_every == 0:
            now += job.pause_s
        steps.append((begin, end if job.pause_s > 1.5 * (end - begin) else now))
    frame = _to_flows(job, rows, rng)
    crossing = {(s, d) for _, _, s, d, *_ in rows if job.place(s)[0] != job.place(d)[0]}
    weights: dict[tuple[int, int], dict[str, float]] = {}
    for _, _, s, d, size, _, kind in rows:
        if (s, d) in crossing:
            own = weights.setdefault((s, d), {})
            own[kind] = own.get(kind, 0.0) + size
    names = [job.address(r) for r in range(job.ranks)]
    truth = {
        "endpoints": names,
        "layout": {"dp": job.dp, "pp": job.pp, "tp": job.tp, "cp": job.cp, "ep": job.ep},
        "pairs": [
            {"src": names[s], "dst": names[d], "kind": max(w, key=lambda k: w[k])} for (s, d), w in weights.items()
        ],
        "stages": {names[r]: r // (job.dp * job.cp * job.tp) for r in range(job.ranks)} if job.pp > 1 else {},
        "steps": [{"index": i, "start_ns": int(a * 1e9), "end_ns": int(b * 1e9)} for i, (a, b) in enumerate(steps)],
    }
    places = [job.place(r) for r in range(job.ranks)]
    topology = pl.DataFrame(
        {
            "address": names,
            "host": [f"host-{h:03}" for h, _ in places],
            "rail": [g for _, g in places],
            "switch": [f"leaf-{g}" for _, g in places],
        },
        schema_overrides={"rail": pl.Int32},
    )
    return Made(flows=frame, topology=topology, truth=truth)


def _step(job: PlainJob, rng: np.random.Generator, begin: float, rows: list[Any]) -> float:
    """One step: forwards and backwards of every replica, then gradients; the time at which it ends."""
    begin += job.idle_s * (1 + job.jitter * rng.standard_normal())
    ends = np.zeros((job.dp, job.pp))
    for replica in range(job.dp):
        free = np.full(job.pp, begin)
        arrived = np.zeros((job.microbatches, job.pp))
        for m in range(job.microbatches):
            ready = begin
            for stage in range(job.pp):
                start = max(free[stage], ready)
                free[stage] = _work(job, rng, rows, start, job.forward_s, stage, replica, forward=True)
                ready = free[stage]
                if stage + 1 < job.pp:
                    ready = _send(job, rng, rows, free[stage], stage, stage + 1, replica)
            arrived[m, -1] = ready
        for m in range(job.microbatches):
            ready = arrived[m, -1]
            for stage in reversed(range(job.pp)):
                start = max(free[stage], ready)
                free[stage] = _work(job, rng, rows, start, 2 * job.forward_s, stage, replica, forward=False)
                ready = free[stage]
                if stage:
                    ready = _send(job, rng, rows, free[stage], stage, stage - 1, replica)
        ends[replica] = free
    done = begin
    for stage in range(job.pp):
        for tensor in range(job.tp):
            done = max(done, _reduce(job, rng, rows, float(ends[:, stage].max()), stage, tensor))
    return done


def _work(
    job: PlainJob, rng: np.random.Generator, rows: list[Any], begin: float, length: float, stage: int, replica: int,
    *, forward: bool,
) -> float:  # fmt: skip
    """Compute of one micro-batch, with what layers send meanwhile."""
    length *= 1 + job.jitter * rng.standard_normal()
    if not (job.cp > 1 or job.ep > 1 or job.fsdp or job.tp > job.gpus_per_host):
        return begin + length
    for layer in range(job.layers):
        at = begin + length * layer / job.layers
        took = length / job.layers / 4
        for tensor in range(job.tp):
            ring = [job.rank(stage, replica, c, tensor) for c in range(job.cp)]
            if job.cp > 1:
                for a, b in zip(ring, ring[1:] + ring[:1], strict=True):
                    rows.append((at, at + took, a, b, 3 * MB * job.size, 1, "cp"))
        if job.tp > job.gpus_per_host:
            ring = [job.rank(stage, replica, 0, t) for t in range(job.tp)]
            for part in (0.0, 0.5):
                for a, b in zip(ring, ring[1:] + ring[:1], strict=True):
                    shift = part * length / job.layers
                    rows.append((at + shift, at + shift + took, a, b, 8 * MB * job.size, 1, "tp"))
        if job.ep > 1 and replica % job.ep == 0:
            group = [job.rank(stage, replica + e, 0, 0) for e in range(job.ep)]
            for a in group:
                for b in group:
                    if a != b:
                        size = 2 * MB * job.size * (1 + 0.3 * rng.random())
                        rows.append((at, at + took, a, b, size, 1, "ep"))
        if job.fsdp and replica == 0:
            ring = [job.rank(stage, d, 0, 0) for d in range(job.dp)]
            for a, b in zip(ring, ring[1:] + ring[:1], strict=True):
                rows.append((at, at + took, a, b, 40 * MB * job.size, 2, "dp"))
                if not forward:
                    rows.append((at + 2 * took, at + 3 * took, a, b, 80 * MB * job.size, 2, "dp"))
    return begin + length


def _send(
    job: PlainJob, rng: np.random.Generator, rows: list[Any], at: float, stage: int, to: int, replica: int
) -> float:
    took = 0.002 * (1 + 0.03 * abs(rng.standard_normal()))
    for context in range(job.cp):
        for tensor in range(job.tp):
            a, b = job.rank(stage, replica, context, tensor), job.rank(to, replica, context, tensor)
            rows.append((at, at + took, a, b, 12 * MB * job.size, job.chunks, "pp"))
    return at + took


def _reduce(job: PlainJob, rng: np.random.Generator, rows: list[Any], at: float, stage: int, tensor: int) -> float:
    """The ring of one data-parallel group; all its hops last as long."""
    if job.fsdp or job.dp * job.cp == 1:
        return at
    ring = [job.rank(stage, d, c, tensor) for d in range(job.dp) for c in range(job.cp)]
    for _ in range(job.buckets):
        took = 0.04 / job.buckets * (1 + 0.03 * abs(rng.standard_normal()))
        for a, b in zip(ring, ring[1:] + ring[:1], strict=True):
            rows.append((at, at + took, a, b, 200 * MB * job.size / job.buckets, job.chunks, "dp"))
        at += took
    return at


def _to_flows(job: PlainJob, rows: list[Any], rng: np.random.Generator) -> pl.DataFrame:
    """Records: transfers between hosts, cut into chunks, over as many queue pairs as the job uses."""
    out: dict[str, list[Any]] = {c: [] for c in ("start_ns", "end_ns", "src", "dst", "bytes", "src_port")}
    for begin, end, s, d, size, chunks, kind in rows:
        if job.place(s)[0] == job.place(d)[0]:
            continue
        length = (end - begin) / chunks
        for k in range(chunks):
            for q in range(max(1, job.queue_pairs)):
                wide = max(1, job.queue_pairs)
                noise = 1 + 3e-4 * abs(rng.standard_normal())
                out["start_ns"].append(int((begin + k * length) * 1e9))
                out["end_ns"].append(int((begin + (k + 1) * length) * 1e9))
                out["src"].append(job.address(s))
                out["dst"].append(job.address(d))
                out["bytes"].append(int(size / chunks / wide * noise))
                # Each job opens connections of its own.
                own = 40_000 + 100 * (job.seed % 250)
                out["src_port"].append(own + q + 16 * ("pp", "dp", "cp", "tp", "ep").index(kind))
    frame = pl.DataFrame(out)
    return frame if job.queue_pairs else frame.drop("src_port")


def _add_storage(flows: pl.DataFrame, topology: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Two servers that every host reads from, and writes to now and then."""
    rng = np.random.default_rng(9)
    hosts = topology.group_by("host", maintain_order=True).first()["address"].to_list()
    begin, end = int(flows["start_ns"].min()), int(flows["end_ns"].max())  # type: ignore[arg-type]
    rows = []
    for i, address in enumerate(hosts):
        server = f"10.254.0.{i % 2 + 1}"
        rows += [(at, at + 3_000_000, server, address, 5 * MB) for at in rng.integers(begin, end, 40).tolist()]
        for k in range(1, 4):
            at = begin + (end - begin) * k // 4
            rows.append((at, at + 40_000_000, address, server, 300 * MB))
    extra = pl.DataFrame(rows, schema=["start_ns", "end_ns", "src", "dst", "bytes"], orient="row")
    servers = pl.DataFrame(
        {"address": ["10.254.0.1", "10.254.0.2"], "host": ["store-1", "store-2"], "rail": [0, 0], "switch": ["s", "s"]},
        schema_overrides={"rail": pl.Int32},
    )
    return pl.concat([flows, extra], how="diagonal").sort("start_ns"), pl.concat([topology, servers])


def _degrade(flows: pl.DataFrame, how: str) -> pl.DataFrame:
    """The records as a poor exporter writes them."""
    rng = np.random.default_rng(5)
    if how == "lossy":
        return flows.filter(pl.Series(rng.random(flows.height) > 0.01))
    if how == "skewed":
        names = flows["src"].unique().sort()
        offset = dict(zip(names, rng.normal(0, 1e6, len(names)).astype(np.int64).tolist(), strict=True))
        shift = pl.col("src").replace_strict(offset, return_dtype=pl.Int64)
        return flows.with_columns(pl.col("start_ns") + shift, pl.col("end_ns") + shift)
    if how == "milliseconds":
        return flows.with_columns(pl.col("start_ns", "end_ns") // 10**6 * 10**6)
    return flows
