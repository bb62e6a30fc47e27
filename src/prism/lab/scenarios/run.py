"""Make a scenario: run its jobs, plant its faults, measure its flows, write the truth."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from prism.collect.tables import write_flows
from prism.lab.scenarios.capture import capture
from prism.lab.scenarios.effects import Effect, measure_effect
from prism.lab.scenarios.naming import list_topology, name_endpoints
from prism.lab.scenarios.planted import Blocker, Planted, Site
from prism.lab.scenarios.planting import plant
from prism.lab.scenarios.scenario import Scenario, check_scenario, place_jobs
from prism.lab.scenarios.slow_hops import end_hops_apart
from prism.lab.scenarios.timeline import Disturbance, JobPlan, JobRun, plan_job, run_job
from prism.lab.scenarios.traffic import collect_records, expand_flows
from prism.lab.scenarios.truth import describe_truth
from prism.records import SPANS, TOPOLOGY, write_table
from prism.simulate.cluster import Cluster
from prism.simulate.cluster_file import write_cluster
from prism.simulate.graph import Graph, save_graph
from prism.simulate.solving.slowdowns import Slowdown

_MOST_SPANS = 2_000_000  # beyond, only some ranks' spans are kept
_JOIN_NS = 2_000_000  # traffic of another tenant closer than this is one disturbance


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioRun:
    """The results of a scenario: three tables, the truth document, and the graph of each job's undisturbed step."""

    flows: pl.DataFrame
    topology: pl.DataFrame
    spans: pl.DataFrame
    truth: dict[str, Any]
    cluster: Cluster
    graphs: Mapping[str, Graph]  # by job


def make_scenario(scenario: Scenario, seed: int = 0) -> ScenarioRun:
    """Run a scenario; the same seed gives the same result."""
    check_scenario(scenario)
    cluster, epoch = scenario.cluster, scenario.epoch_s * 10**9
    naming = name_endpoints(cluster, scenario.num_storage, scenario.measurement, seed)
    plans = _plan_jobs(scenario)
    horizon = round(scenario.duration_s * 1e9)
    site = Site(cluster=cluster, plans=plans, names=naming.names, horizon_ns=horizon, seed=seed)
    planted = [plant(fault, site) for fault in scenario.faults]
    span_ranks = choose_span_ranks(plans, planted, horizon)
    runs, planted = _run_jobs(site, planted, span_ranks)
    effects = _measure_effects(site, runs, planted)
    records, connections = collect_records(scenario, runs, planted, naming, epoch, seed)
    measured = capture(records, connections, scenario.measurement, epoch, seed)
    hosts = sorted({int(h) for plan in plans for h in plan.layout.host})
    spans = pl.concat([run.spans for run in runs]).with_columns(pl.col("start_ns") + epoch, pl.col("end_ns") + epoch)
    return ScenarioRun(
        flows=expand_flows(measured, connections, naming, scenario.measurement),
        topology=list_topology(cluster, naming, hosts),
        spans=spans.sort("job", "rank", "lane", "start_ns"),
        truth=describe_truth(scenario, seed, runs, planted, effects, naming, span_ranks),
        cluster=cluster,
        graphs={plan.job.id: plan.graph for plan in plans},
    )


def _plan_jobs(scenario: Scenario) -> tuple[JobPlan, ...]:
    uneven = {f.job for f in scenario.faults if f.kind == "load_imbalance"}
    return tuple(
        plan_job(layout, scenario.cluster, i, split_replicas=layout.job.id in uneven)
        for i, layout in enumerate(place_jobs(scenario))
    )


def _run_jobs(
    site: Site, planted: list[Planted], span_ranks: Sequence[Sequence[int]]
) -> tuple[list[JobRun], list[Planted]]:
    """Run every job; a job that disturbs another one runs first, so that its traffic is known."""
    blocked = {p.blocker.victim for p in planted if p.blocker is not None}
    runs: dict[int, JobRun] = {}
    for plan in sorted(site.plans, key=lambda plan: plan.index in blocked):
        for i, p in enumerate(planted):
            if p.blocker is not None and p.blocker.victim == plan.index:
                slow = _windows_behind(p.blocker, runs[p.blocker.job], p)
                planted[i] = replace(p, disturbances={plan.index: Disturbance(slowdowns=slow)})
        total = disturb(planted, plan.index)
        run = run_job(plan, site.cluster, total, site.horizon_ns, site.seed, span_ranks[plan.index])
        runs[plan.index] = end_hops_apart(run, planted)
    return [runs[i] for i in range(len(runs))], planted


def disturb(planted: Sequence[Planted], job: int) -> Disturbance:
    """The disturbances of one job by all planted faults."""
    total = Disturbance()
    for p in planted:
        total = total + p.disturbances.get(job, Disturbance())
    return total


def _windows_behind(blocker: Blocker, run: JobRun, planted: Planted) -> tuple[Slowdown, ...]:
    """Slow the victim's groups whenever the other job sends over the shared link."""
    on_link = np.isin(run.connection, blocker.connections)
    inside = on_link & (run.end_ns > planted.start_ns) & (run.start_ns < planted.end_ns)
    order = np.argsort(run.start_ns[inside])
    start, end = run.start_ns[inside][order], np.maximum.accumulate(run.end_ns[inside][order])
    if not len(start):
        return ()
    opens = np.r_[True, start[1:] > end[:-1] + _JOIN_NS]
    begins, ends = start[opens], end[np.r_[np.flatnonzero(opens)[1:] - 1, len(end) - 1]]
    return tuple(
        Slowdown(target="group", id=g, speed=planted.fault.speed, start_ns=int(b), end_ns=int(e))
        for g in blocker.groups
        for b, e in zip(begins, ends, strict=True)
        if e > b
    )


def _measure_effects(site: Site, runs: Sequence[JobRun], planted: Sequence[Planted]) -> list[list[Effect]]:
    found = []
    for p in planted:
        rest = [q for q in planted if q is not p]
        found.append(
            [
                measure_effect(p, runs[job], site.cluster, disturb(planted, job), disturb(rest, job), site.seed)
                for job in sorted(p.disturbances)
            ]
        )
    return found


def choose_span_ranks(plans: Sequence[JobPlan], planted: Sequence[Planted], horizon_ns: int) -> list[list[int]]:
    """All ranks of every job; if those are too many, the ranks that faults slow and the first pipelines of each job."""
    total = sum(plan.graph.num_op_instances * horizon_ns / plan.step_ns for plan in plans)
    share = min(1.0, _MOST_SPANS / max(total, 1.0))
    out = []
    for plan in plans:
        if share == 1:
            out.append(list(range(plan.job.num_gpus)))
            continue
        slow = {
            s.id for p in planted for s in p.disturbances.get(plan.index, Disturbance()).slowdowns if s.target == "rank"
        }
        in_pipelines = plan.layout.grid.transpose(1, 2, 3, 0).ravel()
        count = max(plan.job.pp, int(share * plan.job.num_gpus))
        out.append(sorted({*sorted(slow)[:count], *in_pipelines[:count].tolist()}))
    return out


def write_scenario(run: ScenarioRun, folder: Path) -> None:
    """Write flows.parquet, topology.csv, spans.parquet and truth.json."""
    folder.mkdir(parents=True, exist_ok=True)
    write_flows(run.flows, folder / "flows.parquet")
    write_table(run.topology, folder / "topology.csv", TOPOLOGY)
    write_table(run.spans, folder / "spans.parquet", SPANS)
    (folder / "truth.json").write_text(json.dumps(run.truth) + "\n")


def write_graphs(run: ScenarioRun, folder: Path) -> list[Path]:
    """Write graphs/JOB for every job and cluster.yaml, as `prism simulate` takes them; returns the graphs' folders."""
    folder.mkdir(parents=True, exist_ok=True)
    write_cluster(run.cluster, folder / "cluster.yaml")
    paths = [folder / "graphs" / job for job in run.graphs]
    for path, graph in zip(paths, run.graphs.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_graph(graph, path)
    return paths
