"""Run chosen ranks again among virtual peers that simulate time, also with peers that fail."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl

from prism.emulate.capture import Capture
from prism.emulate.capturing import base_plan
from prism.emulate.emulation import Emulation
from prism.emulate.inside.pacing import Rule
from prism.emulate.inside.plan import FaultPlan, RunPlan
from prism.emulate.launch import Launcher, boot_script
from prism.emulate.slow_peers import slow_down
from prism.emulate.virtual_peers import VirtualPeers
from prism.errors import BadConfigError
from prism.records.ops import COLLECTIVES, POINT_TO_POINT
from prism.simulate.solving.overlap import solve_contended
from prism.simulate.solving.solver import Solution, SolveConfig

_MESSAGES = tuple(POINT_TO_POINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """What a live rank did among its virtual peers."""

    rank: int
    status: str
    reason: str
    step_ms: tuple[float, ...]
    predicted_ms: float
    diverged: int  # communication ops that the captured program did not have
    wall_s: float
    log: str

    @property
    def median_ms(self) -> float:
        """Its iteration time; 0 where it did not finish one."""
        return statistics.median(self.step_ms) if self.step_ms else 0.0


def run_live(emulation: Emulation, ranks: Sequence[int], faults: Sequence[FaultPlan] = ()) -> list[LiveRun]:
    """Run these ranks among virtual peers; faults are met as the backend would.

    CPU ranks run together and their peers react to each of them; on one GPU they take turns.
    """
    world = emulation.config.capture.launch.world_size
    for rank in (*ranks, *(f.rank for f in faults)):
        if not 0 <= rank < world:
            raise BadConfigError(f"rank {rank} does not exist; the ranks are 0 to {world - 1}")
    if next(iter(emulation.captures.values())).device == "cpu":
        return _run_together(emulation, ranks, faults)
    return [run for rank in ranks for run in _run_by_schedule(emulation, rank, faults)]


def _run_together(emulation: Emulation, ranks: Sequence[int], faults: Sequence[FaultPlan]) -> list[LiveRun]:
    config, prediction = emulation.config.capture, emulation.prediction
    peers = VirtualPeers(
        emulation.stitched,
        prediction.costs,
        ranks,
        num_steps=config.warmup + config.iterations,
        faults=faults,
        eager_bytes=prediction.eager_bytes,
    )
    with tempfile.TemporaryDirectory(prefix="prism-") as scratch:
        plan = _live_plan(emulation, faults, paced=True)
        return _launch(emulation, ranks, plan, Path(scratch), peers)


def _run_by_schedule(emulation: Emulation, rank: int, faults: Sequence[FaultPlan]) -> list[LiveRun]:
    """One rank on the GPU, whose stream is held by rules made from the solved peers."""
    prediction = emulation.prediction
    document: dict[str, object] = {"rules": [asdict(r) for r in make_rules(emulation, prediction.solution, rank)]}
    slow = [replace(fault, step=0) for fault in faults if fault.kind == "slow"]
    if slow:
        config = SolveConfig(note_ops=True, eager_bytes=prediction.eager_bytes)
        slowed = solve_contended(slow_down(emulation.stitched.graph, slow), prediction.costs, config)
        document["slow_rules"] = [asdict(rule) for rule in make_rules(emulation, slowed, rank)]
        document["slow_from"] = min(fault.step for fault in faults if fault.kind == "slow")
    with tempfile.TemporaryDirectory(prefix="prism-") as scratch:
        schedule = Path(scratch) / "schedule.json"
        schedule.write_text(json.dumps(document))
        return _launch(emulation, [rank], _live_plan(emulation, faults, schedule=str(schedule)), Path(scratch))


def _live_plan(
    emulation: Emulation, faults: Sequence[FaultPlan], *, schedule: str = "", paced: bool = False
) -> RunPlan:
    return replace(
        base_plan(emulation.config.capture),
        schedule=schedule,
        paced=paced,
        faults=tuple(faults),
        track_memory=False,
        live_ranks=(),
        recorded=True,
    )


def _launch(
    emulation: Emulation, ranks: Sequence[int], plan: RunPlan, folder: Path, peers: VirtualPeers | None = None
) -> list[LiveRun]:
    config = emulation.config.capture
    started = time.monotonic()
    with boot_script(config.launch, plan) as (boot, _):
        plan = replace(plan, live_ranks=tuple(ranks) if peers is not None else ())
        launcher = Launcher(boot, config.launch, plan, folder, recording=emulation.recording, peers=peers)
        captures = launcher.run(ranks)
    wall_s = time.monotonic() - started
    return [
        _describe(rank, captures.get(rank), launcher.log_of(rank), launcher.started[rank], emulation, wall_s)
        for rank in ranks
    ]


def _describe(
    rank: int, capture: Capture | None, log: str, code: int | None, emulation: Emulation, wall_s: float
) -> LiveRun:
    return LiveRun(
        rank=rank,
        status=capture.status if capture else "aborted",
        reason=capture.reason if capture else f"the process was aborted (exit code {code})",
        step_ms=_step_times(capture, emulation.config.capture.warmup) if capture else (),
        predicted_ms=float(np.median(emulation.prediction.step_ns)) / 1e6,
        diverged=capture.diverged if capture else 0,
        wall_s=wall_s,
        log=log,
    )


def _step_times(capture: Capture, warmup: int) -> tuple[float, ...]:
    walls = capture.step_walls_ns
    steps = [(b - a) / 1e6 for a, b in pairwise(walls)]
    return tuple(steps[min(max(warmup - 1, 0), max(len(steps) - 1, 0)) :])


def make_rules(emulation: Emulation, solution: Solution, rank: int) -> list[Rule]:
    """One rule per communication op of an iteration, in the order the program issues them."""
    own = _list_calls(solution, rank)
    steps = own["step"].unique().sort().to_list()
    arrivals = _find_arrivals(solution, rank, own)
    own = own.with_columns(pl.Series("arrival", arrivals))
    last = own.filter(pl.col("step") == steps[-1])
    before = own.filter(pl.col("step") == steps[-2]) if len(steps) > 1 else last.clear()
    order = emulation.stitched.issue_order[emulation.stitched.classes.of_rank[rank]]
    now, past = _by_issue(last, order), _by_issue(before, order)
    return [_rule(now, past, i) for i in range(len(now))]


def _by_issue(calls: pl.DataFrame, order: Sequence[int]) -> list[dict[str, int | str]]:
    rows = calls.to_dicts()
    return [row for _, row in sorted(zip(order, rows, strict=False), key=lambda pair: pair[0])]


def _rule(now: list[dict[str, int | str]], past: list[dict[str, int | str]], index: int) -> Rule:
    """The peers arrive `gap` after the end of the last op that ended before they arrived: their last common point."""
    call = now[index]
    arrival = int(call["arrival"])
    line = [*past, *now[:index]]
    best, back = None, 0
    for position, earlier in enumerate(line):
        end = int(earlier["end_ns"])
        if end <= arrival and (best is None or end >= best):
            best, back = end, len(line) - position
    return Rule(
        kind=str(call["kind"]),
        bytes=int(call["bytes"]),
        back=back,
        gap_ns=arrival - best if best is not None else 0,
        duration_ns=int(call["end_ns"]) - int(call["ready_ns"]),
    )


def _list_calls(solution: Solution, rank: int) -> pl.DataFrame:
    """A rank's communication ops with their times, and the number of each on its channel."""
    class_id = solution.graph.ranks["class"][rank]
    mine = pl.col("kind").cast(pl.String).is_in([*COLLECTIVES, *POINT_TO_POINT])
    ops = solution.graph.ops.filter((pl.col("class") == class_id) & mine)
    seats = dict(solution.graph.groups.filter(pl.col("rank") == rank).select("slot", "group").iter_rows())
    times = solution.op_times(rank).drop("kind")
    calls = ops.join(times, on="seq").with_columns(pl.col("kind").cast(pl.String), pl.col("bytes").fill_null(0))
    group = pl.col("slot").replace_strict(seats, return_dtype=pl.Int32).alias("group")
    calls = calls.with_columns(group)
    sizes = dict(solution.graph.groups.group_by("group").len().iter_rows())
    place = {
        (g, p): r
        for g, p, r in solution.graph.groups.select("group", "position", "rank").iter_rows()
        if g in seats.values()
    }
    own_place = {g: p for (g, p), r in place.items() if r == rank}
    other = [
        -1
        if row["kind"] not in _MESSAGES
        else place[
            row["group"],
            row["peer"] if row["peer"] is not None else (own_place[row["group"]] + row["shift"]) % sizes[row["group"]],
        ]
        for row in calls.select("kind", "group", "peer", "shift").to_dicts()
    ]
    role = pl.when(pl.col("kind").is_in(_MESSAGES)).then(pl.col("kind")).otherwise(pl.lit("collective")).alias("role")
    calls = calls.with_columns(pl.Series("other", other, pl.Int64), role)
    number = pl.int_range(pl.len()).over("group", "role", "other").alias("number")
    return calls.with_columns(number).select(
        "seq", "step", "kind", "role", "group", "other", "number", "bytes", "start_ns", "ready_ns", "end_ns"
    )


def _find_arrivals(solution: Solution, rank: int, own: pl.DataFrame) -> list[int]:
    """When the last of the other members reaches each op."""
    cells = solution.wiring.cell
    members = {
        group: [r for r in ranks if r != rank]
        for group, ranks in solution.graph.groups.group_by("group").agg("rank").iter_rows()
    }
    starts: dict[int, dict[tuple[str, int, int, int], int]] = {}

    def calls_of(peer: int) -> dict[tuple[str, int, int, int], int]:
        if peer not in starts:
            table = _list_calls(solution, peer)
            keys = table.select("role", "group", "other", "number", "start_ns").iter_rows()
            starts[peer] = {(role, group, other, number): start for role, group, other, number, start in keys}
        return starts[peer]

    out = []
    for row in own.to_dicts():
        if row["role"] == "collective":
            # Ranks of one cell have the same times, so one of each is asked.
            peers = {int(cells[r]): r for r in members[row["group"]]}.values()
            key = ("collective", row["group"], -1, row["number"])
            found = [calls_of(peer).get(key) for peer in peers]
        else:
            opposite = "recv" if row["role"] == "send" else "send"
            found = [calls_of(row["other"]).get((opposite, row["group"], rank, row["number"]))]
        known = [start for start in found if start is not None]
        out.append(max(known, default=row["start_ns"]))
    return out
