"""Compute is slower while a collective is under way: both use the GPU's multiprocessors and its memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.simulate.graph import Graph
from prism.simulate.solving.kernel import END, RANK_NOTES, READY, START
from prism.simulate.solving.pricing import CostModel
from prism.simulate.solving.program import CODE_MASK, COLLECTIVE, COMPUTE, Ints, compile_program, replace_durations
from prism.simulate.solving.solver import Solution, SolveConfig, solve_compiled
from prism.simulate.structure import check_structure

# How much longer compute takes beside a collective: the mean of GPT and Llama models on nodes of four A100, H100, MI210
# and MI250 (Lee et al., "Characterizing Compute-Communication Overlap", arXiv 2507.03114, 2025); the largest was 1.4.
SLOWER = 1.189
_ROUNDS = 2  # longer compute overlaps more; a kernel that is overlapped in part is right to 1 % after two

Floats = NDArray[np.float64]


def solve_contended(
    graph: Graph, costs: CostModel, config: SolveConfig | None = None, *, slower: float = SLOWER
) -> Solution:
    """Solve with compute lengthened by `slower` for as long as a collective of the same rank is under way."""
    noted = replace(config or SolveConfig(), note_ops=True)
    check_structure(graph)
    program = compile_program(graph, eager_bytes=noted.eager_bytes)
    solution = solve_compiled(graph, program, costs, noted)
    alone = graph.ops["duration_ns"].fill_null(0).to_numpy()
    for _ in range(_ROUNDS if slower > 1 else 0):
        share = share_overlapped(solution)
        if not share.any():
            break
        # A share of the lengthened time, in which less work is done.
        durations = np.round(alone / (1 - share * (1 - 1 / slower))).astype(np.int64)
        ops = graph.ops.with_columns(
            pl.when(pl.col("duration_ns").is_not_null()).then(pl.Series(durations)).alias("duration_ns")
        )
        solution = solve_compiled(replace(graph, ops=ops), replace_durations(program, durations), costs, noted)
    return solution


def share_overlapped(solution: Solution) -> Floats:
    """Of every row of OPS: the share of its time in which its rank also runs a collective; 0 but for compute."""
    program, state, classes = solution.program, solution.state, solution.wiring.wires.rank_class
    out = np.zeros(solution.graph.ops.height)
    for class_index, cell in zip(*np.unique(classes, return_index=True), strict=True):
        begin, stop = state.ranks[cell : cell + 2, RANK_NOTES]
        first = program.code.class_op_start[class_index]
        kind = program.code.ops[first : first + stop - begin, 0] & CODE_MASK
        times, row = state.times[begin:stop], program.row[first : first + stop - begin]
        running = times[kind == COLLECTIVE]
        busy = (kind == COMPUTE) & (times[:, END] > times[:, START])
        if len(running) and busy.any():
            start, end = times[busy, START], times[busy, END]
            out[row[busy]] = _covered(running[:, READY], running[:, END], start, end) / (end - start)
    return out


def _covered(begins: Ints, ends: Ints, start: Ints, end: Ints) -> Floats:
    """How much of each interval from `start` to `end` lies in the union of those from `begins` to `ends`."""
    order = np.argsort(begins, kind="stable")
    begins, latest = begins[order], np.maximum.accumulate(ends[order])
    fresh = np.concatenate([[True], begins[1:] > latest[:-1]])
    last = np.concatenate([np.flatnonzero(fresh)[1:] - 1, [len(begins) - 1]])
    low, high = begins[fresh], latest[last]
    at = np.stack([low, high], axis=1).ravel()
    total = np.stack([np.cumsum(high - low) - (high - low), np.cumsum(high - low)], axis=1).ravel()
    covered: Floats = np.interp(end, at, total) - np.interp(start, at, total)
    return covered
