"""The truth of a capture: what a perfect diagnosis would say, and no more than the records hold."""

from __future__ import annotations

import numpy as np
import polars as pl

from proving.benchmarks.world.exporters import EPOCH_NS
from proving.benchmarks.world.fabric import Fabric
from proving.benchmarks.world.life import Job
from proving.benchmarks.world.traffic import CODE, KINDS

SMALL_BYTES = 64 * 1024  # pairs that carry less in a capture only have control traffic and are not scored
KIND_SHARE = 0.05  # of a pair's bytes, to count as one of its kinds


def describe_jobs(
    jobs: list[Job], bursts: pl.DataFrame, flows: pl.DataFrame, fabric: Fabric, until: float
) -> list[dict]:
    """One entry per job; `bursts` are those inside the capture, `flows` what was exported of them."""
    seen = set(zip(flows["src"], flows["dst"], strict=True))
    seen |= {(b, a) for a, b in seen}
    out = []
    for number, job in enumerate(jobs):
        own = bursts.filter((pl.col("job") // 16 == number) & (pl.col("kind") < CODE["storage"]))
        if own.is_empty():  # a job inside one host is invisible, and is no job to find
            continue
        steps = [s for run in job.runs for s in run.steps if s[0] >= 0 and s[1] <= until]
        pairs = _pairs(own, fabric, seen)
        ends = own["end"].max()
        longest = max(range(len(job.runs)), key=lambda i: len(job.runs[i].steps))
        degrees = job.degrees[longest]
        out.append(
            {
                "name": job.name, "endpoints": _endpoints(own, fabric, seen), "dp": degrees.dp, "pp": degrees.pp,
                "inner": degrees.tp, "gpus": job.runs[longest].size, "pairs": pairs,
                "steps": [{"start_ns": _ns(a), "duration_ns": _ns(b) - _ns(a)} for a, b in steps],
                "stage_of": _stages(job, longest, fabric),
                "culprit": job.culprit.to_json() if job.culprit else None,
                "start_ns": _ns(max(0.0, job.phases[0].begin)), "end_ns": _ns(min(until, float(ends))),
                "tp": degrees.tp, "cp": degrees.cp, "ep": degrees.ep, "state": job.state,
            }
        )  # fmt: skip
    return out


def _ns(seconds: float) -> int:
    return EPOCH_NS + round(seconds * 1e9)


def _endpoints(own: pl.DataFrame, fabric: Fabric, seen: set[tuple[str, str]]) -> list[str]:
    pairs = own.select("src", "dst").unique()
    names = {(fabric.addresses[a], fabric.addresses[b]) for a, b in pairs.iter_rows()}
    return sorted({end for pair in names & seen for end in pair})


def _pairs(own: pl.DataFrame, fabric: Fabric, seen: set[tuple[str, str]]) -> list[dict]:
    """Each pair once, either way round, with the kinds that carry a good part of its bytes."""
    low, high = pl.min_horizontal("src", "dst"), pl.max_horizontal("src", "dst")
    rows = own.filter(pl.col("kind") != CODE["control"]).group_by(low.alias("a"), high.alias("b"), "kind")
    rows = rows.agg(pl.col("payload").sum()).with_columns(total=pl.col("payload").sum().over("a", "b"))
    rows = rows.filter((pl.col("total") >= SMALL_BYTES) & (pl.col("payload") >= KIND_SHARE * pl.col("total")))
    pairs = []
    for (a, b), part in sorted(rows.group_by("a", "b"), key=lambda item: item[0]):
        src, dst = fabric.addresses[a], fabric.addresses[b]
        if (src, dst) in seen:
            pairs.append({"src": src, "dst": dst, "kinds": sorted(KINDS[k] for k in part["kind"])})
    return pairs


def _stages(job: Job, longest: int, fabric: Fabric) -> dict[str, int]:
    """The pipeline stage of each address, where an address has one."""
    run, degrees = job.runs[longest], job.degrees[longest]
    if degrees.pp == 1:
        return {}
    per_stage = run.size // degrees.pp
    stages: dict[str, set[int]] = {}
    for rank, place in enumerate(run.places):
        stages.setdefault(fabric.addresses[fabric.nic_of(*place)], set()).add(rank // per_stage)
    return {address: min(found) for address, found in stages.items() if len(found) == 1}


def gather_bursts(jobs: list[Job], noise: list[dict[str, np.ndarray]], until: float) -> pl.DataFrame:
    """The bursts of all jobs and of noise that begin inside the capture, cut at its end."""
    tables = []
    for number, job in enumerate(jobs):
        for phase, run in enumerate(job.runs):
            tables.append(pl.DataFrame(run.bursts.columns()).with_columns(job=pl.lit(number * 16 + phase)))
    tables += [pl.DataFrame(n).with_columns(job=pl.lit(16_000 + i)) for i, n in enumerate(noise)]
    integers = ("src", "dst", "connection", "transfer", "kind", "job")
    table = pl.concat([t.with_columns(pl.col(integers).cast(pl.Int64)) for t in tables])
    table = table.filter((pl.col("start") >= 0) & (pl.col("start") < until))
    share = ((until - pl.col("start")) / (pl.col("end") - pl.col("start")).clip(1e-9)).clip(0, 1)
    return table.with_columns(payload=(pl.col("payload") * share).ceil(), end=pl.col("end").clip(upper_bound=until))
