"""Run one job through the solver, step by step, and keep what the network and a profiler would show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.lab.scenarios.stalled import Stalled, find_stalled, take_ns
from prism.lab.scenarios.storage import checkpoint_pause_ns
from prism.records.spans import SPANS
from prism.simulate.cluster import Cluster
from prism.simulate.costs import ClusterCosts
from prism.simulate.flows import MessageTimes, OpTimes, describe_connections
from prism.simulate.graph import Graph, repeat_graph
from prism.simulate.messages import find_messages
from prism.simulate.plans.job import Job
from prism.simulate.plans.layout import RankLayout
from prism.simulate.plans.program import build_step, pause_after
from prism.simulate.plans.sizes import RankSizes, size_up
from prism.simulate.solving.kernel import START
from prism.simulate.solving.slowdowns import FOREVER, Jitter, Slowdown
from prism.simulate.solving.solver import Solution, SolveConfig, solve
from prism.simulate.spans import write_spans

Ints = NDArray[np.int64]

_OPS_PER_SOLVE = 6_000_000  # op-instances solved at once: some 300 MB
_REACH = 50  # slowdowns later than this many times the expected time cannot affect the steps solved together
_EXPERT_SPREAD = 0.15  # routing changes from step to step: standard deviation of the logarithm of a pair's bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """A placed job, its step as a graph, and the messages of that step."""

    job: Job
    index: int
    layout: RankLayout
    sizes: RankSizes
    graph: Graph
    messages: pl.DataFrame  # MESSAGES, and the connection of each
    connections: pl.DataFrame  # src, dst, group, kind, src_port, qp, spine, path, one row per connection
    step_ns: int  # of an undisturbed step
    op_rows: int  # ops of the longest program


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """The effects of faults on one job; times are relative to the start of the scenario."""

    slowdowns: tuple[Slowdown, ...] = ()
    spread: tuple[int, int, float] | None = None  # uneven replicas: from, to, standard deviation
    outages: tuple[tuple[int, int], ...] = ()  # the job does not run: from, to
    pause_factor: tuple[int, int, float] | None = None  # checkpoints take longer: from, to, factor

    def __add__(self, other: Disturbance) -> Disturbance:
        """Both at once."""
        return Disturbance(
            slowdowns=self.slowdowns + other.slowdowns,
            spread=self.spread or other.spread,
            outages=self.outages + other.outages,
            pause_factor=self.pause_factor or other.pause_factor,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Steps that are solved together."""

    now: int
    stop: int
    first_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """The result; `connection` is a row of the plan's connections."""

    plan: JobPlan
    connection: NDArray[np.int32]
    start_ns: Ints
    end_ns: Ints
    bytes: Ints
    step_number: Ints  # of the complete steps, counted over restarts
    step_start_ns: Ints
    step_end_ns: Ints
    pauses_ns: Ints
    spans: pl.DataFrame
    stretches: tuple[Stretch, ...]  # as they were solved


def plan_job(layout: RankLayout, cluster: Cluster, index: int, *, split_replicas: bool) -> JobPlan:
    """Build a job's step and list its messages between hosts."""
    sizes = size_up(layout.job, cluster.gpu)
    graph = build_step(layout, sizes, split_replicas=split_replicas)
    messages = find_messages(graph, cluster)
    ends = ["group", "src", "dst"]
    connections = messages.select(*ends, "kind").unique(ends).sort(ends)
    connections = connections.hstack(describe_connections(connections, cluster)).with_row_index("connection")
    return JobPlan(
        job=layout.job,
        index=index,
        layout=layout,
        sizes=sizes,
        graph=graph,
        messages=messages.join(connections.select("connection", *ends), on=ends, how="left", maintain_order="left"),
        connections=connections,
        step_ns=solve(graph, ClusterCosts(cluster)).total_ns,
        op_rows=int(graph.ops["seq"].max() or 0) + 1,  # type: ignore[arg-type]
    )


@dataclass
class _Collected:
    """Parts of a run, one per solved stretch of steps."""

    message: list[NDArray[np.int32]] = field(default_factory=list)
    start: list[Ints] = field(default_factory=list)
    end: list[Ints] = field(default_factory=list)
    step_number: list[Ints] = field(default_factory=list)
    step_start: list[Ints] = field(default_factory=list)
    step_end: list[Ints] = field(default_factory=list)
    pauses: list[Ints] = field(default_factory=list)
    spans: list[pl.DataFrame] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    stalled: list[Stalled] = field(default_factory=list)


def run_job(
    plan: JobPlan, cluster: Cluster, disturbance: Disturbance, horizon_ns: int, seed: int, span_ranks: Sequence[int]
) -> JobRun:
    """Solve step by step until the horizon; unfinished messages are left out."""
    found = _Collected()
    first_step = 0
    for begin, stop in _stretches(plan.job, disturbance, horizon_ns):
        now = begin
        while now < stop:
            stretch = Stretch(now=now, stop=stop, first_step=first_step)
            solution, pauses = solve_stretch(plan, cluster, disturbance, stretch, seed)
            _collect(found, plan, solution, stretch, pauses, span_ranks, disturbance)
            first_step += len(pauses)
            now += solution.total_ns
    return _finish(found, plan, seed)


def _stretches(job: Job, disturbance: Disturbance, horizon_ns: int) -> list[tuple[int, int]]:
    """The times in which the job runs."""
    outages = [(round(r.at_s * 1e9), round((r.at_s + r.down_s) * 1e9)) for r in job.restarts]
    now, out = round(job.start_s * 1e9), []
    for begin, end in sorted([*outages, *disturbance.outages]):
        if now < begin < horizon_ns:
            out.append((now, begin))
            now = end
    return [*out, (now, horizon_ns)] if now < horizon_ns else out


def solve_stretch(
    plan: JobPlan, cluster: Cluster, disturbance: Disturbance, stretch: Stretch, seed: int, *, note_ops: bool = True
) -> tuple[Solution, Ints]:
    """Solve as many steps as fit in memory or until the stretch stops; also the pause that ends each."""
    job, now, stop, first_step = plan.job, stretch.now, stretch.stop, stretch.first_step
    most = max(1, _OPS_PER_SOLVE // plan.graph.num_op_instances)
    if disturbance.spread is not None:
        most = min(most, 4)  # whether a step falls into the window is decided by when it is expected to start
    count = int(np.clip((stop - now) / plan.step_ns * 1.02 + 1, 1, most))
    expected = now + np.arange(count) * plan.step_ns
    pauses = _pauses(plan, disturbance, first_step + np.arange(count), expected)
    graph = repeat_graph(plan.graph, count)
    graph = pause_after(graph, {i: int(p) for i, p in enumerate(pauses) if p})
    if disturbance.spread is not None:
        graph = _spread_work(graph, plan, disturbance.spread, expected, seed + first_step)
    slowdowns = [
        replace(s, start_ns=s.start_ns - now, end_ns=min(FOREVER, s.end_ns - now))
        for s in disturbance.slowdowns
        if s.end_ns > now and s.start_ns < now + _REACH * count * plan.step_ns
    ]
    draw = np.random.default_rng([seed, plan.index, first_step]).integers(2**31)
    jitter = Jitter(compute_sigma=job.compute_jitter, communication_sigma=job.communication_jitter, seed=int(draw))
    config = SolveConfig(fold=False, note_ops=note_ops, slowdowns=slowdowns, jitter=jitter)
    return solve(graph, ClusterCosts(cluster), config), pauses


def _pauses(plan: JobPlan, disturbance: Disturbance, steps: Ints, expected: Ints) -> Ints:
    """Nanoseconds for which each step's checkpoint and evaluation pause the job."""
    job = plan.job
    pauses = np.zeros(len(steps), np.int64)
    if job.checkpoint is not None:
        due = (steps + 1) % job.checkpoint.every_steps == 0
        pause = np.full(len(steps), checkpoint_pause_ns(job), float)
        if disturbance.pause_factor is not None:
            begin, end, factor = disturbance.pause_factor
            pause = np.where((expected >= begin) & (expected < end), pause * factor, pause)
        pauses += np.where(due, pause, 0).astype(np.int64)
    if job.evaluation is not None:
        pauses += np.where((steps + 1) % job.evaluation.every_steps == 0, round(job.evaluation.pause_s * 1e9), 0)
    return pauses


def _spread_work(graph: Graph, plan: JobPlan, spread: tuple[int, int, float], expected: Ints, seed: int) -> Graph:
    """Give every replica a random amount of work in each step, for sequences of different lengths."""
    begin, end, sigma = spread
    replicas = plan.job.dp
    rng = np.random.default_rng([seed, 7])
    factor = np.exp(rng.normal(0, sigma, (len(expected), replicas)) - sigma**2 / 2)
    factor[(expected < begin) | (expected >= end)] = 1.0
    step, replica = graph.ops["step"].to_numpy(), graph.ops["class"].to_numpy() % replicas
    scaled = (graph.ops["duration_ns"].fill_null(0).to_numpy() * factor[step, replica]).round().astype(np.int64)
    works = (pl.col("kind") == "compute") & ~pl.col("name").is_in(["optimizer"])
    column = pl.when(works).then(pl.Series(scaled)).otherwise("duration_ns").alias("duration_ns")
    return replace(graph, ops=graph.ops.with_columns(column))


def _collect(
    found: _Collected,
    plan: JobPlan,
    solution: Solution,
    stretch: Stretch,
    pauses: Ints,
    span_ranks: Sequence[int],
    disturbance: Disturbance,
) -> None:
    now, stop = stretch.now, stretch.stop
    times = OpTimes(solution)
    count = len(pauses)
    messages = MessageTimes(plan.messages)
    for step in range(count):
        start, end = messages.look_up(times, step * plan.op_rows)
        seen = np.flatnonzero(now + end <= stop)
        found.message.append(seen.astype(np.int32))
        found.start.append(now + start[seen])
        found.end.append(now + end[seen])
        stalled = find_stalled(plan.messages, times, start, step * plan.op_rows, now, stop, disturbance.slowdowns)
        if stalled is not None:
            found.stalled.append(stalled)
    every = np.arange(plan.job.num_gpus)
    first_ops = (times.rows_of(every, np.full(len(every), i * plan.op_rows)) for i in range(count))
    begun = np.array([times.table[at, START].min() for at in first_ops])
    ended = np.maximum.accumulate(solution.step_end_ns)
    complete = now + ended <= stop
    found.step_number.append(stretch.first_step + np.flatnonzero(complete))
    found.step_start.append(now + begun[complete])
    found.step_end.append(now + ended[complete])
    found.pauses.append(pauses[complete])
    found.spans.append(_list_spans(solution, span_ranks, stretch))
    found.stretches.append(stretch)


def _list_spans(solution: Solution, ranks: Sequence[int], stretch: Stretch) -> pl.DataFrame:
    """SPANS of some ranks in the scenario's time, with steps counted over the whole job."""
    spans = write_spans(solution, ranks).with_columns(
        pl.col("step") + stretch.first_step, pl.col("start_ns") + stretch.now, pl.col("end_ns") + stretch.now
    )
    name = pl.when(pl.col("kind") == "step").then(pl.format("step {}", "step")).otherwise("name").alias("name")
    seen = (pl.col("end_ns") > pl.col("start_ns")) & (pl.col("end_ns") <= stretch.stop)
    return spans.filter(seen).with_columns(name)


def _finish(found: _Collected, plan: JobPlan, seed: int) -> JobRun:
    message = np.concatenate(found.message) if found.message else np.zeros(0, np.int32)
    size = plan.messages["bytes"].to_numpy()[message]
    routed = (plan.messages["kind"] == "ep").to_numpy()[message]
    if routed.any():
        rng = np.random.default_rng([seed, plan.index, 3])
        size[routed] = np.maximum(1, size[routed] * rng.lognormal(0, _EXPERT_SPREAD, int(routed.sum()))).astype(
            np.int64
        )
    none = np.zeros(0, np.int64)
    cut = [s.sizes(plan.messages["bytes"].to_numpy()) for s in found.stalled]
    cut_start = [s.start_ns for s in found.stalled]
    return JobRun(
        plan=plan,
        connection=plan.messages["connection"]
        .to_numpy()
        .astype(np.int32)[np.concatenate([message, *(s.message for s in found.stalled)])],
        start_ns=np.concatenate([*found.start, *cut_start, none]),
        end_ns=np.concatenate([*found.end, *(b + take_ns(n) for b, n in zip(cut_start, cut, strict=True)), none]),
        bytes=np.concatenate([size, *cut]),
        step_number=np.concatenate(found.step_number or [none]),
        step_start_ns=np.concatenate(found.step_start or [none]),
        step_end_ns=np.concatenate(found.step_end or [none]),
        pauses_ns=np.concatenate(found.pauses or [none]),
        spans=pl.concat(found.spans) if found.spans else SPANS.empty(),
        stretches=tuple(found.stretches),
    )
