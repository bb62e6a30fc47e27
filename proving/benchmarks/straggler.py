"""Re-solve two real training jobs from their recorded ops and compare with the recording and a published what-if.

The traces and results are those of "Understanding Stragglers in Large Model Training Using What-if Analysis"
(OSDI 2025), repository ByteDance-Seed/StragglerAnalysis, Apache-2.0. What is taken from there is the meaning of the
data: which op waits for which, that a transfer lasts from the last member's start to the own end, and that an ideal
op takes the mean (compute) or median (communication) over all ranks and steps. The solving is Prism's.

Two graphs are built from each trace. "published" has the publication's dependencies, four independent message
streams among them, and is what its what-if is compared with. Replayed with the recorded gaps it must meet the
recording, whatever the dependencies: a gap is what they leave unexplained, seconds of it before some ops. "program
order" says more: a worker makes one call after the other, a send and a receive that share start and duration being
one call. It has to explain the waiting itself, so its step times are the ones that can be wrong.

    python proving/benchmarks/straggler.py [FOLDER]     FOLDER holds trace-*.parquet and result-*.json
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from prism.simulate import Graph, LinearCosts, SolveConfig, make_graph
from prism.simulate.solving.program import Program, compile_program, replace_durations
from prism.simulate.solving.solver import solve_compiled
from prism.simulate.structure import check_structure

COMPUTE_STREAM, DATA_STREAM = 0, 5
STREAMS = {"forward-send": 1, "forward-recv": 2, "backward-send": 3, "backward-recv": 4,
           "params-all-gather": DATA_STREAM, "grads-reduce-scatter": DATA_STREAM}  # fmt: skip
BATCHED = ("forward-send", "forward-recv", "backward-send", "backward-recv")
COMMUNICATION = {
    "params-all-gather": ("all_gather", "dp"),
    "grads-reduce-scatter": ("reduce_scatter", "dp"),
    "embedding-grads-all-reduce": ("all_reduce", "embedding"),
    "optimizer-clip-main-grad": ("all_reduce", "world"),
}
MEAN_TYPES = ("forward-compute", "backward-compute", "optimizer", "gc")  # the rest is ideal at its median
SKEW = 1e-2  # seconds: larger negative times are faults of the recording, as the publication treats them


@dataclass(frozen=True)
class Job:
    """One recorded job: its graph with every gap, and for each op row what it took and would ideally take."""

    graph: Graph
    program: Program
    rows: pl.DataFrame  # aligned with graph.ops: optype, stage, dp_rank, delay, took_ns, ideal_ns
    steps: list[int]
    num_workers: int

    def step_seconds(self, duration_ns: np.ndarray) -> np.ndarray:
        """Step times with these durations."""
        program = replace_durations(self.program, duration_ns)
        ends = solve_compiled(self.graph, program, LinearCosts(), SolveConfig(fold=False)).rank_end_ns
        return ends.reshape(len(self.steps), self.num_workers).max(axis=1) / 1e9

    def durations(self, *, gaps: str | None, original: pl.Expr | None = None) -> np.ndarray:
        """Nanoseconds per op: as recorded where `original` holds (everywhere without it), ideal elsewhere."""
        took = pl.col("took_ns") if original is None else pl.when(original).then("took_ns").otherwise("ideal_ns")
        delay = pl.lit(0) if gaps is None else pl.col(gaps)
        return self.rows.select(pl.when("delay").then(delay).otherwise(took).fill_null(0).alias("ns"))["ns"].to_numpy()


@dataclass(frozen=True)
class Stage:
    """One stage's ops in order, what each waits for on other streams, and which are made as one call.

    Without waits everything is on one stream.
    """

    names: list[str]
    waits: dict[str, list[str]]
    batch: dict[str, int]

    def stream(self, name: str) -> int:
        """The stream of an op."""
        return STREAMS.get(name.split(":")[0], COMPUTE_STREAM) if any(self.waits.values()) else COMPUTE_STREAM

    def opens_call(self, index: int) -> bool:
        """Whether the op is the first of its call."""
        before = self.batch.get(self.names[index - 1]) if index else None
        return before is None or before != self.batch.get(self.names[index])

    def follows(self, index: int) -> list[str]:
        """What an op waits for, the op before it on its stream included."""
        name = self.names[index]
        earlier = [n for n in self.names[:index] if self.stream(n) == self.stream(name)]
        return [*self.waits[name], *earlier[-1:]]


def order_ops(first: pl.DataFrame, num_stages: int) -> dict[int, Stage]:
    """The publication's dependencies: compute, data and four message streams that wait for each other."""
    out = {}
    for stage in range(num_stages):
        rows = first.filter(pl.col("stage") == stage).sort("start_ts", "seq_id", "optype")
        names = rows["op"].to_list()
        compute = [n for n in names if n.split(":")[0] in ("forward-compute", "backward-compute")]
        deps: dict[str, list[str]] = {n: [] for n in names}
        for name in names:
            kind, number = name.split(":")[0], int(name.split(":")[1])
            if kind in ("forward-send", "backward-send"):
                deps[name].append(f"{kind.removesuffix('-send')}-compute:{number}")
            if kind in ("forward-recv", "backward-recv"):
                twin = kind.removesuffix("-recv") + "-compute"
                deps[f"{twin}:{number}"].append(name)
                if number:
                    deps[name].append(f"{twin}:{number - 1}")
        # The first backward transfer is posted after the last but one forward of the warm-up.
        begin = next(i for i, n in enumerate(compute) if n.startswith("backward"))
        for name in ("backward-recv:0", "backward-send:0"):
            if name in deps and begin >= 2:
                deps[name].append(compute[begin - 2])
        if "params-all-gather:0" in deps:
            deps["forward-compute:0"].append("params-all-gather:0")
        tail = ["gc:0", "layernorm-grads-all-reduce:0"] + [n for n in ("embedding-grads-all-reduce:0",) if n in deps]
        tail += [n for n in names if n.startswith("grads-reduce-scatter")]
        tail += ["optimizer-clip-main-grad:0", "optimizer:0"]
        for before, after in zip([compute[-1], *tail], tail, strict=False):
            deps[after].append(before)
        order = [n for n in names if n not in tail] + tail
        out[stage] = Stage(names=_sort_by_dependency(order, deps), waits=deps, batch={})
    return out


def order_calls(first: pl.DataFrame, num_stages: int) -> dict[int, Stage]:
    """For each stage its calls one after the other; messages with one start and duration are one call."""
    out = {}
    for stage in range(num_stages):
        rows = first.filter(pl.col("stage") == stage).sort("start_ts", "end_ts", "optype")
        key = pl.struct("start_ts", "duration", pl.col("optype").is_in(BATCHED)).rle_id()
        joint = rows.select(pl.when(pl.col("optype").is_in(BATCHED)).then(key).alias("call"))["call"]
        batch = {op: call for op, call in zip(rows["op"], joint, strict=True) if call is not None}
        out[stage] = Stage(names=rows["op"].to_list(), waits={op: [] for op in rows["op"]}, batch=batch)
    return out


def _sort_by_dependency(names: list[str], deps: dict[str, list[str]]) -> list[str]:
    """Recorded order, but never before what an op waits for: clocks of the streams differ by microseconds."""
    done: dict[str, None] = {}

    def visit(name: str) -> None:
        if name not in done:
            for before in deps[name]:
                visit(before)
            done[name] = None

    for name in names:
        visit(name)
    return list(done)


def write_template(program: Stage, stage: int, num_stages: int) -> list[dict]:
    """One stage's program: waits, the launch delay, the op itself, and a record others can wait for."""
    rows: list[dict] = []
    event = {name: i for i, name in enumerate(program.names)}
    for index, name in enumerate(program.names):
        optype, stream = name.split(":")[0], program.stream(name)
        about = {"stage": stage, "op": name, "stream": stream}
        others = [d for d in program.waits[name] if program.stream(d) != stream]
        rows.extend({**about, "kind": "wait", "event": event[d]} for d in others)
        if program.opens_call(index):
            rows.append({**about, "kind": "host", "delay": True})
        row = {**about, "kind": "compute", "batch": program.batch.get(name)}
        if optype in COMMUNICATION:
            row |= {"kind": COMMUNICATION[optype][0], "slot": COMMUNICATION[optype][1], "bytes": 0}
        elif optype in BATCHED:
            ahead = 1 if (optype.startswith("forward") == optype.endswith("send")) else -1
            row |= {"kind": optype[-4:], "slot": "pp", "peer": (stage + ahead) % num_stages, "bytes": 0}
        rows.append(row)
        if any(program.waits.values()):
            rows.append({**about, "kind": "record", "event": event[name]})
    return [{**row, "seq": i} for i, row in enumerate(rows)]


def build_job(trace: pl.DataFrame, name: str, *, published: bool = True) -> Job:
    """The graph of all recorded steps: one rank per worker and step, so that steps do not touch each other."""
    trace = trace.with_columns(
        pl.col("optype").cast(pl.String),
        pl.col("start_ts", "duration").cast(pl.Float64),
        pl.col("stage", "dp_rank").cast(pl.Int32),
    ).with_columns(
        (pl.col("optype") + ":" + pl.col("seq_id").cast(pl.String)).alias("op"),
        (pl.col("start_ts") + pl.col("duration")).alias("end_ts"),
    )
    steps, num_dp = trace["step"].unique().sort().to_list(), int(trace["dp_rank"].max()) + 1
    num_stages = int(trace["stage"].max()) + 1
    first = trace.filter((pl.col("dp_rank") == 0) & (pl.col("step") == steps[0]))
    order = order_ops(first, num_stages) if published else order_calls(first, num_stages)
    measured = _measure(trace, order)
    template = pl.DataFrame(
        [row for stage, program in order.items() for row in write_template(program, stage, num_stages)],
        schema={"stage": pl.Int32, "op": pl.String, "stream": pl.Int32, "kind": pl.String, "event": pl.Int32,
                "delay": pl.Boolean, "slot": pl.String, "bytes": pl.Int64, "peer": pl.Int32, "seq": pl.Int32,
                "batch": pl.Int32},
    )  # fmt: skip
    workers = (
        pl.DataFrame({"step": steps})
        .with_row_index("number")
        .join(pl.DataFrame({"stage": range(num_stages)}, schema={"stage": pl.Int32}), how="cross")
        .join(pl.DataFrame({"dp_rank": range(num_dp)}, schema={"dp_rank": pl.Int32}), how="cross")
    )
    size = num_stages * num_dp
    workers = workers.with_columns(
        (pl.col("number").cast(pl.Int32) * size + pl.col("stage") * num_dp + pl.col("dp_rank")).alias("rank")
    )
    ops = workers.join(template, on="stage").join(measured, on=["step", "stage", "dp_rank", "op"], how="left")
    ops = ops.sort("rank", "seq").with_columns(pl.col("delay").fill_null(False))
    timed = ~pl.col("kind").is_in(["wait", "record"])
    times = (pl.when(timed).then(c).alias(c) for c in ("took_ns", "ideal_ns", "delay_ns", "usual_ns"))
    rows = ops.select("optype", "stage", "dp_rank", "delay", *times)
    graph = make_graph(
        name,
        ops.select(pl.col("rank").alias("class"), "seq", "stream", "kind", pl.col("op").alias("name"), "event", "slot",
                   "bytes", "peer", "batch", pl.lit(0).alias("step"), pl.when(timed).then(0).alias("duration_ns")),
        workers.select("rank", pl.col("rank").alias("class"), pl.lit(0).alias("host"), pl.lit(0).alias("local")),
        _list_groups(len(steps), num_stages, num_dp),
    )  # fmt: skip
    check_structure(graph)
    return Job(graph=graph, program=compile_program(graph), rows=rows, steps=steps, num_workers=size)


def _measure(trace: pl.DataFrame, order: dict[int, Stage]) -> pl.DataFrame:
    """For every recorded op its own time without waiting for peers, its ideal time, and the gap before it."""
    worker = ["step", "stage", "dp_rank"]
    optype, shifted = pl.col("optype"), pl.col("stage") - 1
    # Ops that meet share this key; a message is named by the stage that is nearer to the first.
    lower = pl.when(optype.is_in(["forward-send", "backward-recv"])).then("stage").otherwise(shifted)
    meeting = (
        pl.when(optype.is_in(["params-all-gather", "grads-reduce-scatter"]))
        .then(pl.format("{}@{}", "op", "stage"))
        .when(optype == "embedding-grads-all-reduce")
        .then(pl.format("{}@{}", "op", "dp_rank"))
        .when(optype == "optimizer-clip-main-grad")
        .then("op")
        .when(optype.str.ends_with("-send") | optype.str.ends_with("-recv"))
        .then(pl.format("{}:{}@{}@{}", optype.str.slice(0, 8), "seq_id", "dp_rank", lower))
    )
    known = trace.with_columns(meeting.alias("meeting"))
    meets = ["step", "meeting"]
    last = pl.when(pl.col("meeting").is_not_null()).then(pl.col("start_ts").max().over(meets))
    # A message inside a call that also waits for another one ended when the earlier side saw its end.
    batched = optype.is_in(BATCHED) & any(program.batch for program in order.values())
    end = pl.when(batched).then(pl.col("end_ts").min().over(meets)).otherwise("end_ts")
    own = pl.when(last.is_null()).then("duration").otherwise(end - last)
    known = known.with_columns(pl.when(own <= -SKEW).then(0.0).otherwise(own).alias("took"))
    ideal = pl.when(optype.is_in(MEAN_TYPES)).then(pl.col("took").mean().over("optype"))
    known = known.with_columns(ideal.otherwise(pl.col("took").median().over("optype")).alias("ideal"))
    deps = pl.DataFrame(
        [(stage, name, before) for stage, program in order.items() for index, name in enumerate(program.names)
         for before in program.follows(index)],
        schema={"stage": pl.Int32, "op": pl.String, "before": pl.String}, orient="row",
    )  # fmt: skip
    ends = known.select(*worker, pl.col("op").alias("before"), pl.col("end_ts").alias("cleared"))
    cleared = known.select(*worker, "op").join(deps, on=["stage", "op"]).join(ends, on=[*worker, "before"])
    cleared = cleared.group_by(*worker, "op").agg(pl.col("cleared").max())
    begin = pl.col("start_ts").min().over("step")
    known = known.with_columns(begin.alias("begin")).join(cleared, on=[*worker, "op"], how="left")
    delay = pl.col("start_ts") - pl.coalesce("cleared", "begin")

    def nanoseconds(seconds: pl.Expr) -> pl.Expr:
        return (seconds.clip(0) * 1e9).round().cast(pl.Int64)

    # What a gap usually is, so that a step can be told from the other steps' gaps.
    usual = delay.median().over("stage", "dp_rank", "op")
    times = {"took_ns": pl.col("took"), "ideal_ns": pl.col("ideal"), "delay_ns": delay, "usual_ns": usual}
    return known.select(*worker, "op", "optype", *(nanoseconds(t).alias(name) for name, t in times.items()))


def _list_groups(num_steps: int, num_stages: int, num_dp: int) -> pl.DataFrame:
    grid = np.arange(num_steps * num_stages * num_dp).reshape(num_steps, num_stages, num_dp)
    ends = grid[:, [0, num_stages - 1]]
    tables = {
        ("dp", "dp"): grid.reshape(-1, num_dp),
        ("pp", "pp"): grid.transpose(0, 2, 1).reshape(-1, num_stages),
        ("embedding", "embedding"): ends.transpose(0, 2, 1).reshape(-1, 2),
        ("world", "unknown"): grid.reshape(num_steps, -1),
    }
    frames, first = [], 0
    for (slot, kind), table in tables.items():
        number = np.repeat(np.arange(first, first + len(table)), table.shape[1])
        place = np.tile(np.arange(table.shape[1]), len(table))
        frame = pl.DataFrame({"group": number, "rank": table.ravel(), "position": place})
        frames.append(frame.with_columns(pl.lit(slot).alias("slot"), pl.lit(kind).alias("kind")))
        first += len(table)
    return pl.concat(frames)


def compare(folder: Path, name: str) -> pl.DataFrame:
    """Both graphs of one job against the recording and every published figure: graph, what, published, ours."""
    published = json.loads((folder / f"result-{name}.json").read_text())
    trace = pl.read_parquet(folder / f"trace-{name}.parquet")
    rows: list[tuple[str, str, float, float]] = []
    for graph in ("published", "program order"):
        job = build_job(trace, name, published=graph == "published")
        recorded = np.array([published["step_t_base"][str(step)] for step in job.steps])
        for gaps, words in (("delay_ns", "own gaps"), ("usual_ns", "each gap at its median"), (None, "no gaps")):
            error = np.mean(np.abs(job.step_seconds(job.durations(gaps=gaps)) / recorded - 1)) * 100
            rows.append((graph, f"step time error %, {words}", 0.0, float(error)))
        rows += [(graph, *figure) for figure in find_slowdowns(job, published)]
    schema = {"graph": pl.String, "what": pl.String, "published": pl.Float64, "ours": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def find_slowdowns(job: Job, published: dict) -> list[tuple[str, float, float]]:
    """Published slowdowns beside ours: overall, and with only some ops at their recorded durations."""
    packed = job.step_seconds(job.durations(gaps=None)).mean()
    ideal = job.step_seconds(job.durations(gaps=None, original=pl.lit(False))).mean()
    rows = [
        ("ideal step time s", float(np.mean(list(published["step_t_noblk"].values()))), float(ideal)),
        ("slowdown overall", published["blocking_slowdown"], float(packed / ideal)),
    ]
    merged = {f"{way}-{end}": f"{way}-pp-comm" for way in ("forward", "backward") for end in ("send", "recv")}
    keys = {
        "optype": pl.col("optype").replace(merged),
        "stage": pl.col("stage").cast(pl.String),
        "dp_rank": pl.col("dp_rank").cast(pl.String),
    }
    for column, key in keys.items():
        for value, figure in published[f"blocking_decompose_by_{column}"].items():
            only = job.step_seconds(job.durations(gaps=None, original=key == value)).mean()
            rows.append((f"slowdown by {column} {value}", figure, float(only / ideal)))
    return rows


def main() -> None:
    """Print both jobs' comparison and the worst differences."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("PRISM_DATA", "../shared/data")) / ""
    folder = folder if (folder / "trace-ST.parquet").exists() else folder / "straggler"
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for name in ("ST", "SE"):
        begin = time.perf_counter()
        table = compare(folder, name)
        print(f"\n{name}: {time.perf_counter() - begin:.1f} s for {table.height} figures")
        for (graph,), rows in table.group_by("graph", maintain_order=True):
            print(f"  graph: {graph}")
            for _, what, published, ours in rows.iter_rows():
                if "dp_rank" not in what:
                    print(f"    {what:<45} published {published:8.4f}  ours {ours:8.4f}  apart {ours - published:+.4f}")
            slow = rows.filter(pl.col("what").str.starts_with("slowdown"))
            worst = ((slow["ours"] - slow["published"]).abs() * 100).max()
            print(f"    worst of {slow.height} slowdowns, data-parallel ranks included: {worst:.2f} points apart")


if __name__ == "__main__":
    main()
