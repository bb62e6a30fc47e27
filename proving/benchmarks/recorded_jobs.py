"""Flows as switches would have seen two recorded production jobs, with the truth about them.

The op times are ByteDance's (StragglerAnalysis: ST, 8 workers dp2 pp4; SE, 128 ranks dp32 x 2 x pp2). Sizes are
made up but constant, as a model's are.
A transfer starts when both sides are there and ends with the first of them to finish.
Nothing here uses Prism's own simulator, so what is read back from these flows was written by no one's model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl


@dataclass
class RecordedJob:
    """One job placed on a cluster: its flows, and what an observer should find."""

    name: str
    flows: pl.DataFrame
    topology: pl.DataFrame
    truth: dict[str, Any]


@dataclass
class Placement:
    """Where a job's ranks sit: GPUs per host, first host number, first GPU used of each host."""

    gpus_per_host: int = 8
    first_host: int = 0
    first_gpu: int = 0
    names: str = "node"
    seed: int = 0
    jitter: float = 3e-4  # relative noise of bytes: headers, retransmissions
    start_ns: int = 1_700_000_000 * 10**9
    sizes: dict[str, int] = field(default_factory=lambda: {
        "forward": 33_554_432, "backward": 33_554_432, "params": 620_000_000, "grads": 1_240_000_000,
        "embedding": 410_000_000})  # fmt: skip


def place_job(folder: Path, trial: str, where: Placement, max_steps: int = 0) -> RecordedJob:
    """The recorded job `trial` as flows on the cluster that `where` describes."""
    trace = pl.read_parquet(folder / f"trace-{trial}.parquet").with_columns(pl.col("optype").cast(pl.String))
    inner = 2 if trial == "SE" else 1
    steps = trace["step"].unique().sort().to_list()
    steps = steps[:max_steps] if max_steps else steps
    ends = trace.group_by("step").agg((pl.col("start_ts") + pl.col("duration")).max().alias("end"))
    length = dict(ends.iter_rows())
    begins, now = {}, 0.0
    for step in steps:
        begins[step] = now
        now += float(length[step]) + 0.003
    num_dp, num_pp = trace["dp_rank"].n_unique(), trace["stage"].n_unique()
    rng = np.random.default_rng(where.seed)

    def rank_of(stage: int, dp: int, i: int) -> int:
        return (stage * num_dp + dp) * inner + i

    def place(rank: int) -> tuple[int, int]:
        return where.first_host + rank // where.gpus_per_host, where.first_gpu + rank % where.gpus_per_host

    def address(rank: int) -> str:
        host, gpu = place(rank)
        return f"10.{host // 250}.{host % 250}.{gpu + 1}"

    rows: list[tuple[float, float, int, int, float]] = []
    kinds: dict[tuple[int, int], dict[str, float]] = {}

    def add(begin: float, end: float, src: int, dst: int, size: float, kind: str) -> None:
        if place(src)[0] == place(dst)[0]:
            return
        sent = kinds.setdefault((src, dst), {})
        sent[kind] = sent.get(kind, 0.0) + size
        rows.append((begin, max(end, begin + 1e-5), src, dst, size))

    for (step,), part in trace.filter(pl.col("step").is_in(steps)).group_by("step"):
        base = begins[step]
        ops = {
            (o, s, d, q): (base + t, base + t + u)
            for o, s, d, q, t, u in part.select(
                "optype", "stage", "dp_rank", "seq_id", "start_ts", "duration"
            ).iter_rows()
        }
        for (op, stage, dp, seq), (t0, t1) in ops.items():
            if op in ("forward-send", "backward-send"):
                way = 1 if op.startswith("forward") else -1
                twin = (op.replace("send", "recv"), stage + way, dp, seq)
                if twin in ops:
                    begin, end = max(t0, ops[twin][0]), min(t1, ops[twin][1])
                    size = where.sizes["forward" if way == 1 else "backward"]
                    for i in range(inner):
                        add(begin, end, rank_of(stage, dp, i), rank_of(stage + way, dp, i), size, "pp")
        for op, size in (("params-all-gather", "params"), ("grads-reduce-scatter", "grads")):
            for stage in range(num_pp):
                times = [ops[(op, stage, d, 0)] for d in range(num_dp) if (op, stage, d, 0) in ops]
                if len(times) < 2:
                    continue
                begin, end = max(t for t, _ in times), min(t for _, t in times)
                for d in range(num_dp):
                    for i in range(inner):
                        hop = where.sizes[size] * (num_dp - 1) / num_dp
                        add(begin, end, rank_of(stage, d, i), rank_of(stage, (d + 1) % num_dp, i), hop, "dp")
        for d in range(num_dp):
            first, last = (ops.get(("embedding-grads-all-reduce", s, d, 0)) for s in (0, num_pp - 1))
            if first and last and num_pp > 1:
                begin, end = max(first[0], last[0]), min(first[1], last[1])
                for i in range(inner):
                    a, b = rank_of(0, d, i), rank_of(num_pp - 1, d, i)
                    add(begin, end, a, b, where.sizes["embedding"], "embedding")
                    add(begin, end, b, a, where.sizes["embedding"], "embedding")
    frame = pl.DataFrame(rows, schema=["t0", "t1", "s", "d", "size"], orient="row")
    noise = 1 + np.abs(rng.normal(0, where.jitter, frame.height))
    world = num_dp * num_pp * inner
    names = pl.Series([address(r) for r in range(world)])
    flows = frame.select(
        start_ns=where.start_ns + (pl.col("t0") * 1e9).cast(pl.Int64),
        end_ns=where.start_ns + (pl.col("t1") * 1e9).cast(pl.Int64),
        src=names.gather(frame["s"]),
        dst=names.gather(frame["d"]),
        bytes=(pl.col("size") * pl.Series(noise)).cast(pl.Int64),
    ).sort("start_ns")
    hosts = [place(r) for r in range(world)]
    topology = pl.DataFrame(
        {
            "address": names,
            "host": [f"{where.names}-{h:03}" for h, _ in hosts],
            "rail": [g for _, g in hosts],
            "switch": [f"leaf-{g}" for _, g in hosts],
        }
    )
    edges = [begins[s] for s in steps] + [now]
    truth = {
        "endpoints": names.to_list(),
        "layout": {"dp": num_dp, "pp": num_pp, "tp": inner},
        "pairs": [
            {"src": names[a], "dst": names[b], "kind": max(sent, key=lambda k: sent[k])}
            for (a, b), sent in kinds.items()
        ],
        "stages": {names[rank_of(s, d, i)]: s for s in range(num_pp) for d in range(num_dp) for i in range(inner)},
        "steps": [
            {"index": k, "start_ns": where.start_ns + int(a * 1e9), "end_ns": where.start_ns + int(b * 1e9)}
            for k, (a, b) in enumerate(pairwise(edges))
        ],
    }
    return RecordedJob(name=trial, flows=flows, topology=topology, truth=truth)
