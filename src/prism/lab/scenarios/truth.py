"""The truth file: what really happened in a scenario, in the format of the diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl

from prism.lab.scenarios.effects import Effect
from prism.lab.scenarios.naming import Naming
from prism.lab.scenarios.planted import Planted
from prism.lab.scenarios.scenario import Scenario
from prism.lab.scenarios.timeline import JobPlan, JobRun
from prism.simulate.cluster import Cluster
from prism.simulate.endpoints import host_name
from prism.simulate.graph import label_groups

SCHEMA = "prism.truth/1"


def describe_truth(
    scenario: Scenario,
    seed: int,
    runs: Sequence[JobRun],
    planted: Sequence[Planted],
    effects: Sequence[Sequence[Effect]],
    naming: Naming,
    span_ranks: Sequence[Sequence[int]],
) -> dict[str, Any]:
    """The whole document."""
    epoch, cluster = scenario.epoch_s * 10**9, scenario.cluster
    renamed = dict(zip(naming.original, naming.names, strict=True)) if scenario.measurement.renamed else {}
    return {
        "schema": SCHEMA,
        "scenario": scenario.name,
        "about": scenario.about,
        "seed": seed,
        "start_ns": epoch,
        "end_ns": epoch + round(scenario.duration_s * 1e9),
        "cluster": describe_cluster(scenario),
        "measurement": asdict(scenario.measurement),
        "jobs": [describe_job(run, cluster, epoch, naming) for run in runs],
        "storage": list(naming.storage),
        "faults": [describe_fault(p, e, epoch) for p, e in zip(planted, effects, strict=True)],
        "names": renamed,
        "span_ranks": {run.plan.job.id: list(ranks) for run, ranks in zip(runs, span_ranks, strict=True)},
    }


def describe_fault(planted: Planted, effects: Sequence[Effect], epoch_ns: int) -> dict[str, Any]:
    """One fault: the correct finding, its window, and its measured effect."""
    return {
        "kind": planted.finding,
        "cause": planted.fault.kind,
        "jobs": [effect.job for effect in effects],
        "culprit": asdict(planted.culprit),
        "accepted": [asdict(c) for c in planted.accepted],
        "start_ns": epoch_ns + planted.start_ns,
        "end_ns": epoch_ns + planted.end_ns,
        "lost_gpu_seconds": sum(effect.lost_gpu_seconds for effect in effects),
        "fired": any(effect.fired for effect in effects),
        "effects": [asdict(effect) for effect in effects],
    }


def describe_job(run: JobRun, cluster: Cluster, epoch_ns: int, naming: Naming) -> dict[str, Any]:
    """One job as the truth file holds it; `naming` holds the addresses that the flows use."""
    plan, job = run.plan, run.plan.job
    layout, names = plan.layout, naming.names
    endpoint = layout.host * cluster.nics.count + cluster.rail_of(layout.local)
    stages: dict[str, set[int]] = {}
    for e, s in zip(endpoint.tolist(), layout.stage.tolist(), strict=True):
        stages.setdefault(names[e], set()).add(s)
    return {
        "id": job.id,
        "gpus": job.num_gpus,
        "params": job.model.params,
        "endpoints": sorted({names[e] for e in endpoint.tolist()}),
        "hosts": [host_name(h) for h in np.unique(layout.host).tolist()],
        "layout": {
            **{d: getattr(job, d) for d in ("dp", "pp", "tp", "cp", "ep")},
            "sharding": job.sharding,
            "schedule": job.schedule,
            "microbatches": job.microbatches,
        },
        "pairs": list_pairs(plan, names),
        "groups": list_groups(plan, endpoint, names),
        "crossing": list_crossing(plan),
        # An endpoint that two stages share has no single stage.
        "stages": {name: min(found) for name, found in stages.items() if len(found) == 1},
        "steps": [
            {"index": i, "start_ns": epoch_ns + b, "end_ns": epoch_ns + e}
            for i, b, e in zip(
                run.step_number.tolist(), run.step_start_ns.tolist(), run.step_end_ns.tolist(), strict=True
            )
        ],
        "ranks": [
            {"rank": r, "host": host_name(h), "gpu": g, "endpoint": names[e], "stage": s}
            for r, (h, g, e, s) in enumerate(
                zip(layout.host.tolist(), layout.local.tolist(), endpoint.tolist(), layout.stage.tolist(), strict=True)
            )
        ],
    }


def list_pairs(plan: JobPlan, names: Sequence[str]) -> list[dict[str, Any]]:
    """Every directed pair that the job sends on, with the kind that carries most of its bytes."""
    table = pl.Series(names)
    named = plan.messages.select(
        table.gather(plan.messages["src"]).alias("src"),
        table.gather(plan.messages["dst"]).alias("dst"),
        pl.col("kind").cast(pl.String),
        "bytes",
    )
    by_kind = named.group_by("src", "dst", "kind").agg(pl.col("bytes").sum()).sort("bytes", descending=True)
    pairs = by_kind.group_by("src", "dst", maintain_order=True).agg(
        pl.col("kind").first(), pl.col("kind").alias("kinds"), pl.col("bytes").sum().alias("bytes_per_step")
    )
    return pairs.sort("src", "dst").to_dicts()


def list_groups(plan: JobPlan, endpoint: np.ndarray, names: Sequence[str]) -> list[dict[str, Any]]:
    """Groups that span endpoints; pipeline pairs are joined into whole pipelines."""
    out = []
    for group in plan.layout.groups:
        if group.kind in ("pp", "unknown"):
            continue
        for ranks in group.ranks:
            members = list(dict.fromkeys(names[e] for e in endpoint[ranks].tolist()))
            if len(members) > 1:
                out.append({"kind": group.kind, "endpoints": members, "size": len(ranks)})
    if plan.job.pp > 1:
        for ranks in plan.layout.grid.reshape(plan.job.pp, -1).T:
            members = list(dict.fromkeys(names[e] for e in endpoint[ranks].tolist()))
            out.append({"kind": "pp", "endpoints": members, "size": len(ranks)})
    return out


def list_crossing(plan: JobPlan) -> list[str]:
    """The groups, as spans name them, that send data between hosts: flows do not show the others."""
    labels = label_groups(plan.graph)
    return labels.filter(pl.col("group").is_in(plan.messages["group"].unique().to_list()))["label"].to_list()


def describe_cluster(scenario: Scenario) -> dict[str, Any]:
    """A short description of the cluster."""
    cluster = scenario.cluster
    return {
        "name": cluster.name,
        "gpu": cluster.gpu,
        "hosts": cluster.num_hosts,
        "gpus_per_host": cluster.gpus_per_host,
        "nics_per_host": cluster.nics.count,
        "nic_gbps": cluster.nics.gbps,
        "leaves": cluster.num_leaves,
        "spines": cluster.fabric.num_spines,
        "rail_optimized": cluster.fabric.rail_optimized,
    }
