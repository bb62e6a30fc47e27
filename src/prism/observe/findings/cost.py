"""The cost of a culprit: the job is solved with it and without it.

The job is modelled as an execution graph from what was observed: stages, replicas, micro-batches, the work of each
rank, how long transfers take. `prism.simulate` computes how long a step is, and how long it would be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from prism.observe import levels
from prism.observe.findings.case import Case, Floats
from prism.observe.findings.windows import Window
from prism.observe.findings.work_table import WorkTable, tabulate_work

if TYPE_CHECKING:
    from prism.simulate.builder import ProgramBuilder
    from prism.simulate.graph import Graph

_MOST_REPLICAS = levels.MIN_STATISTICS  # of a stage that are solved; more identical ones change nothing
_MOST_MICROBATCHES = 256
_TRUSTED = levels.SHARE_MINOR  # a solved cost that differs from a measured one by more is replaced by it
_BYTES = 1 << 20  # of every message; their durations are given
_REPRODUCES = 0.05  # of a step: a solved step is usually off by so much


@dataclass(frozen=True)
class JobModel:
    """One step of a pipelined job, in nanoseconds: rows are stages, columns replicas."""

    forward: Floats
    backward: Floats
    passing: Floats  # one message to the next stage
    reducing: Floats  # all gradients, by stage
    microbatches: int

    def step_ns(self) -> float:
        """How long the step is, solved; the solver is imported once a job has something to solve."""
        from prism.simulate.solving.pricing import LinearCosts
        from prism.simulate.solving.solver import SolveConfig, solve

        return float(solve(self._write(), LinearCosts(), SolveConfig(eager_bytes=2 * _BYTES, note_ops=False)).total_ns)

    def _write(self) -> Graph:
        from prism.simulate.builder import GraphBuilder

        stages, replicas = self.forward.shape
        builder = GraphBuilder("observed")
        for s in range(stages):
            for r in range(replicas):
                self._write_rank(builder.program(), s, r)
        ranks = np.arange(stages * replicas)
        builder.ranks(ranks, ranks, ranks, np.zeros_like(ranks))
        grid = ranks.reshape(stages, replicas)
        for s in range(stages - 1):
            builder.groups(f"pp{s}", grid[s : s + 2].T, kind="pp")
        if replicas > 1:
            builder.groups("dp", grid, kind="dp")
        return builder.build()

    def _write_rank(self, program: ProgramBuilder, stage: int, replica: int) -> None:
        """One forward, one backward."""
        program.step = 0
        last, replicas = self.forward.shape[0] - 1, self.forward.shape[1]
        ahead = min(last - stage, self.microbatches)
        order = "F" * ahead + "FB" * (self.microbatches - ahead) + "B" * ahead
        up, down = (int(self.passing[min(s, last - 1), replica]) if last else 0 for s in (stage, max(stage - 1, 0)))
        for phase in order:
            ahead_of, behind = (stage > 0, stage < last) if phase == "F" else (stage < last, stage > 0)
            if ahead_of:
                slot, side, took = (f"pp{stage - 1}", 0, down) if phase == "F" else (f"pp{stage}", 1, up)
                program.recv(slot, _BYTES, peer=side, duration_ns=took)
            program.compute(phase, int((self.forward if phase == "F" else self.backward)[stage, replica]))
            if behind:
                slot, side, took = (f"pp{stage}", 1, up) if phase == "F" else (f"pp{stage - 1}", 0, down)
                program.send(slot, _BYTES, peer=side, duration_ns=took)
        if replicas > 1:
            program.collective("all_reduce", "dp", _BYTES, duration_ns=int(self.reducing[stage]))


def model_job(case: Case, table: WorkTable) -> tuple[JobModel, dict[int, tuple[int, int]]] | None:
    """A model of the healthy job, and the cell (stage, replica) of each endpoint; None without a pipeline."""
    if table.num_stages < 2 or "forward" not in table.phases or "turn" not in table.phases:
        return None
    last = table.num_stages - 1
    forward, backward = _work_of(table, "forward"), _work_of(table, "backward")
    turn = _work_of(table, "turn")[last]
    # What the first stage does before its first message is more than a forward, so it is assumed to be like the others;
    # the last stage shows a forward and a backward in one, of which a backward is two thirds.
    middle = forward[1:last]
    usual = float(np.nanmedian(middle)) if len(middle) and not np.isnan(middle).all() else turn / 3
    forward[0] = usual
    forward[last] = min(turn / 3, usual) if len(middle) else turn / 3
    backward[last] = turn - forward[last]
    known = backward[1:last]
    backward[0] = float(np.nanmedian(known)) if len(known) and not np.isnan(known).all() else 2 * usual
    forward = np.where(np.isnan(forward), usual, forward)
    backward = np.where(np.isnan(backward), 2 * forward, backward)
    chains = case.stages.chains
    replicas = min(_MOST_REPLICAS, max(1, len(chains)))
    cell = {e: (case.stages.stage[e], i % replicas) for i, chain in enumerate(chains) for e in chain}
    pipe = case.messages.filter((pl.col("kind") == "pp") & (pl.col("step") >= 0))
    per_step = pipe.group_by("pair", "step").len()["len"].median()
    took = (pipe["end_ns"] - pipe["start_ns"]).median()
    model = JobModel(
        forward=np.repeat(forward[:, None], replicas, axis=1),
        backward=np.repeat(backward[:, None], replicas, axis=1),
        passing=np.full((table.num_stages, replicas), float(took or 0)),  # type: ignore[arg-type]
        reducing=_reducing(case, table.num_stages),
        microbatches=int(np.clip(round(float(per_step or 1)), 1, _MOST_MICROBATCHES)),  # type: ignore[arg-type]
    )
    return _fit_microbatches(model, float(np.quantile(case.length_s, 0.25)) * 1e9), cell


def _fit_microbatches(model: JobModel, step_ns: float) -> JobModel:
    """Fewer micro-batches where the step would be far longer than observed: ranks that share a NIC send as one."""
    solved = model.step_ns()
    if solved <= 1.15 * step_ns:
        return model
    return replace(model, microbatches=max(1, round(model.microbatches * step_ns / solved)))


def _work_of(table: WorkTable, phase: str) -> Floats:
    """Nanoseconds of a usual rank by stage, nan where not seen."""
    values = table.phases.get(phase)
    out = np.full(table.num_stages, np.nan)
    for s in range(table.num_stages):
        known = values[table.stage == s] if values is not None else np.empty(0)
        known = known[~np.isnan(known)]
        if len(known):
            out[s] = float(np.quantile(known, 0.25)) * 1e9
    return out


def _reducing(case: Case, stages: int) -> Floats:
    """Nanoseconds that the gradients of each stage take in a step, one message of a pair after the other."""
    shared = case.messages.filter(pl.col("kind").is_in(["dp", "embedding"]) & (pl.col("step") >= 0))
    took = shared.group_by("src", "pair", "step").agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("took"))
    stage = pl.Series([case.stages.stage.get(e, 0) for e in took["src"].to_list()], dtype=pl.Int64)
    # Hops that start early wait for a late rank: the shortest of a step shows what the transfer itself takes.
    quickest = took.with_columns(stage.alias("stage")).group_by("stage", "step").agg(pl.col("took").min())
    usual = quickest.group_by("stage").agg(pl.col("took").median())
    out = np.zeros(stages)
    for s, t in usual.iter_rows():
        out[s] = float(t)
    return out


@dataclass(frozen=True)
class Cost:
    """What each GPU lost in seconds, and how that is known.

    `margin` is the probability of the job with the culprit against the job without it, by how well each of the two
    reproduces the length of the observed steps; 1 where that does not tell.
    """

    lost_s: float
    words: str
    margin: float = 1.0
    explained: float = 1.0  # of what steps are longer by while it lasts, solved; 1 where that is not known


def price_slow_work(case: Case, table: WorkTable, members: list[int], window: Window, *, by_design: bool) -> Cost:
    """The cost of ranks that work longer by the window's mean; `by_design` if the observed work is the longer one."""
    modelled = model_job(case, table)
    if modelled is None:
        return settle(case, window, None)
    model, cell = modelled
    changed = replace(model, forward=model.forward.copy(), backward=model.backward.copy())
    factor = 1 / (1 + window.mean) if by_design else 1 + window.mean
    cells = {cell[e] for e in members if e in cell}
    if not cells:
        return settle(case, window, None)
    for s, r in cells:
        changed.forward[s, r] *= factor
        changed.backward[s, r] *= factor
    slow, healthy = (model, changed) if by_design else (changed, model)
    return _compare(case, window, slow, healthy, by_design=by_design)


def price_slow_pairs(case: Case, pairs: list[tuple[int, int, str]], window: Window, extra_s: float) -> Cost:
    """The cost of pairs (src, dst, kind) whose transfers are longer by the window's mean.

    `extra_s` is what the slowest of them adds to its own step: all that is known of a job without a pipeline.
    """
    modelled = model_job(case, tabulate_work(case)) if case.stages.chains and not case.work.is_empty() else None
    if modelled is None:
        return settle(case, window, extra_s * 1e9, "by its longest transfers")
    model, cell = modelled
    slow = replace(model, passing=model.passing.copy(), reducing=model.reducing.copy())
    for src, dst, kind in pairs:
        if src in cell and dst in cell and kind == "pp":
            slow.passing[min(cell[src][0], cell[dst][0]), cell[src][1]] = model.passing[0, 0] * (1 + window.mean)
        elif src in cell:
            slow.reducing[cell[src][0]] = model.reducing[cell[src][0]] + extra_s * 1e9
    return _compare(case, window, slow, model, overlaps=True)


def settle(case: Case, window: Window, saved_ns: float | None, how: str = "job solved again") -> Cost:
    """The cost of a window from what a step would save, checked against the steps outside, if any."""
    inside = case.length_s[window.first : window.last + 1]
    outside = np.concatenate([case.length_s[: window.first], case.length_s[window.last + 1 :]])
    measured = float((inside - np.median(outside)).clip(0).sum()) if len(outside) >= 3 else None
    total = float(inside.sum())
    if saved_ns is not None:
        solved = min(saved_ns / 1e9, 0.95 * float(np.median(inside))) * len(inside)
        if measured is None or abs(solved - measured) <= _TRUSTED * max(measured, 1e-9):
            return Cost(solved, f"without it steps would be {100 * solved / total:.1f} % shorter ({how})")
    if measured is not None:
        return Cost(
            measured,
            f"without it steps were {100 * measured / total:.1f} % shorter (as the job's other steps are)",
        )
    share = window.mean / (1 + window.mean)
    return Cost(share * total, f"without it steps may be up to {100 * share:.1f} % shorter (a bound, not solved)")


def _compare(
    case: Case, window: Window, slow: JobModel, healthy: JobModel, *, by_design: bool = False, overlaps: bool = False
) -> Cost:
    """The cost of a culprit, and how much better the job with it reproduces the steps of the window than without it.

    Steps outside the window show what the model is off by anyway. There are none where the work is so `by_design`, and
    where a culprit is there all the time the two cannot be told apart by the length of steps. What `overlaps` with work
    lengthens steps by its own time at most, so steps that are shorter than solved do not count against it.
    """
    with_it, without = slow.step_ns(), healthy.step_ns()
    cost = settle(case, window, max(0.0, with_it - without))
    observed = float(np.median(case.length_s[window.first : window.last + 1])) * 1e9
    longer = case.slower_by(window.first, window.last)
    if longer is None and not by_design:
        return cost
    usual = without if longer is None else observed / (1 + longer)
    if overlaps:
        with_it = min(with_it, max(without, without + observed - usual))
    if longer is not None and observed - usual > _REPRODUCES * observed:
        cost = replace(cost, explained=min((with_it - without) / (observed - usual), 1.0))
    off = [abs(observed - usual - (solved - without)) / observed for solved in (with_it, without)]
    if min(off) > _TRUSTED:
        return cost  # The model reproduces these steps neither with the culprit nor without.
    return replace(cost, margin=1 / (1 + float(np.exp(np.clip((off[0] - off[1]) / _REPRODUCES, -50.0, 50.0)))))
