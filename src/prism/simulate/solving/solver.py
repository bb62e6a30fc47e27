"""Solve a graph: when every op of every rank starts and ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from prism.errors import BadConfigError
from prism.simulate.graph import Graph
from prism.simulate.solving.deadlock import explain_deadlock
from prism.simulate.solving.folding import fold, no_folding
from prism.simulate.solving.kernel import LANE_RANK, LANE_TIME, NUM_FINISHED, RANK_NOTES, Chance, State, make_state, run
from prism.simulate.solving.pricing import CostModel
from prism.simulate.solving.program import Ints, Program, compile_program, replace_durations
from prism.simulate.solving.slowdowns import Jitter, Slowdown
from prism.simulate.solving.wiring import Wiring, connect, wire
from prism.simulate.structure import check_structure


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthChange:
    """Transfers of an op kind, a slot or a kind of group priced as if their links were wider or narrower."""

    word: str
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveConfig:
    """How to solve: what disturbs the run, and how much of the result to keep."""

    fold: bool = True
    note_ops: bool = False  # keep the times of every op; spans, critical path and usage need them
    slowdowns: Sequence[Slowdown] = ()
    jitter: Jitter | None = None  # every rank draws for itself, so nothing folds
    bandwidth: Sequence[BandwidthChange] = ()
    eager_bytes: int = -1  # messages up to this size do not wait for their receiver


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The times of a run; ranks of one cell have the same times, and one of them was solved."""

    graph: Graph
    program: Program
    wiring: Wiring
    state: State
    step_end_ns: Ints = field(repr=False)

    @property
    def total_ns(self) -> int:
        """When the last op of the last rank ends."""
        return int(self.step_end_ns.max(initial=0))

    @property
    def step_ns(self) -> Ints:
        """What each step adds to the run, in the order of the step numbers."""
        return np.diff(np.maximum.accumulate(self.step_end_ns), prepend=0)

    @property
    def num_cells(self) -> int:
        """How many ranks had to be solved."""
        return len(self.wiring.representative)

    @property
    def rank_end_ns(self) -> Ints:
        """When each rank ends its program."""
        ends = np.zeros(self.num_cells, np.int64)
        np.maximum.at(ends, self.state.lanes[:, LANE_RANK], self.state.lanes[:, LANE_TIME])
        return ends[self.wiring.cell]

    def op_times(self, rank: int) -> pl.DataFrame:
        """Start, ready and end of each op of one rank, by its `seq`; needs `note_ops`."""
        if not len(self.state.times):
            raise BadConfigError("the times of single ops were not kept; solve with note_ops=True")
        solved = self.wiring.cell[rank]
        first = self.program.code.class_op_start[self.wiring.wires.rank_class[solved]]
        begin, stop = self.state.ranks[solved : solved + 2, RANK_NOTES]
        row = self.program.row[first : first + stop - begin]
        seq = self.graph.ops["seq"].to_numpy()[row]
        times = dict(zip(("start_ns", "ready_ns", "end_ns"), self.state.times[begin:stop].T, strict=True))
        frame = pl.DataFrame({"seq": seq, "row": row, **times})
        kinds = self.graph.ops.with_row_index("row").select(pl.col("row").cast(pl.Int64), "kind")
        timed = frame.filter(pl.col("row") >= 0).join(kinds, on="row", maintain_order="left")
        return timed.filter(~pl.col("kind").is_in(["record", "wait"])).drop("row").sort("seq")


def solve(graph: Graph, costs: CostModel, config: SolveConfig | None = None) -> Solution:
    """Check the graph, price its communication, fold symmetric ranks and find all times; a hang is a GraphError."""
    config = config or SolveConfig()
    check_structure(graph)
    program = compile_program(graph, eager_bytes=config.eager_bytes)
    return solve_compiled(graph, program, costs, config)


def scale_bandwidth(graph: Graph, program: Program, changes: Sequence[BandwidthChange]) -> Program:
    """The program with fewer bytes to price where links are wider, and measured transfers shortened alike."""
    if not changes:
        return program
    kind_of_slot = dict(graph.groups.select("slot", pl.col("kind").cast(pl.String)).unique().iter_rows())
    ops = graph.ops.select(pl.col("kind").cast(pl.String), "slot", "duration_ns")
    rows = program.ports.select("port", "slot")
    costs = program.costs.join(rows, on="port", maintain_order="left")

    def factor_of(frame: pl.DataFrame) -> pl.Series:
        out = np.ones(frame.height)
        pair = frame["slot"].replace_strict(kind_of_slot, default=None, return_dtype=pl.String)
        for change in changes:
            hit = (frame["kind"] == change.word) | (frame["slot"] == change.word) | (pair == change.word)
            out[hit.fill_null(False).to_numpy()] *= change.factor
        return pl.Series(out)

    durations = (ops["duration_ns"].fill_null(0) / factor_of(ops)).round().cast(pl.Int64).to_numpy()
    return replace(
        replace_durations(program, durations), costs=program.costs.with_columns(factor_of(costs).alias("widened"))
    )


def solve_compiled(graph: Graph, program: Program, costs: CostModel, config: SolveConfig) -> Solution:
    """Solve a graph that was checked and compiled before."""
    check_slowdowns(graph, config.slowdowns)
    program = scale_bandwidth(graph, program, config.bandwidth)
    ports = connect(graph, program, costs, config.slowdowns)
    folding = fold(ports) if config.fold and config.jitter is None else no_folding(ports)
    wiring = wire(graph, program, ports, costs, folding.cell, folding.colour)
    return run_wiring(graph, program, wiring, config)


def run_wiring(graph: Graph, program: Program, wiring: Wiring, config: SolveConfig) -> Solution:
    """Run the kernel on a wired graph."""
    jitter = config.jitter or Jitter()
    chance = Chance(jitter.seed, jitter.compute_sigma, jitter.communication_sigma)
    code, wires = program.code, wiring.wires
    state = make_state(code, wires, program.lane_nodes, len(program.steps), note=config.note_ops)
    run(wires, state, chance)
    solution = Solution(graph=graph, program=program, wiring=wiring, state=state, step_end_ns=state.step_end)
    if state.work[NUM_FINISHED] < len(state.lanes):
        raise explain_deadlock(graph, program, wiring, state)
    return solution


def sample_steps(graph: Graph, costs: CostModel, config: SolveConfig, num_seeds: int) -> Ints:
    """Step times under jitter, one row per seed; the first seed is the config's."""
    jitter = config.jitter or Jitter()
    check_structure(graph)
    check_slowdowns(graph, config.slowdowns)
    program = compile_program(graph, eager_bytes=config.eager_bytes)
    program = scale_bandwidth(graph, program, config.bandwidth)
    ports = connect(graph, program, costs, config.slowdowns)
    alone = no_folding(ports)
    wiring = wire(graph, program, ports, costs, alone.cell, alone.colour)
    rows = []
    for seed in range(jitter.seed, jitter.seed + num_seeds):
        drawn = replace(config, jitter=replace(jitter, seed=seed), note_ops=False)
        rows.append(run_wiring(graph, program, wiring, drawn).step_ns)
    return np.array(rows)


def check_slowdowns(graph: Graph, slowdowns: Sequence[Slowdown]) -> None:
    """Raise BadConfigError when a slowdown names a rank, group or host that is not there."""
    known = {
        "rank": graph.ranks["rank"],
        "group": graph.groups["group"],
        "host": graph.ranks["host"],
    }
    have = {name: set(values.to_list()) for name, values in known.items()} if slowdowns else {}
    for slow in slowdowns:
        if slow.id not in have[slow.target]:
            last = max(have[slow.target], default=-1)
            raise BadConfigError(f"no {slow.target} {slow.id} in graph '{graph.name}'; the last one is {last}")
