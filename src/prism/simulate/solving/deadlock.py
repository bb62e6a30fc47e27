"""Explain why a run stopped: who waits for whom, and where in the program."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prism.errors import GraphError
from prism.simulate.graph import Graph, label_groups
from prism.simulate.solving.kernel import (
    BLOCKED_ON_TRANSFER,
    CALL_HEAD,
    FINISHED,
    LANE_AT,
    LANE_RANK,
    LANE_STATUS,
    LANE_STOP,
    RANK_LANES,
    State,
)
from prism.simulate.solving.program import CODE_MASK, RECORD, Program
from prism.simulate.solving.wiring import Wiring


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One lane that cannot go on, and the lanes that would have to move first."""

    lane: int
    text: str
    blockers: tuple[int, ...]


def explain_deadlock(graph: Graph, program: Program, wiring: Wiring, state: State) -> GraphError:
    """The error that names the ranks that wait for each other, or the one that never arrives."""
    stuck = np.flatnonzero(state.lanes[:, LANE_STATUS] != FINISHED)
    waits = {int(lane): _describe(graph, program, wiring, state, int(lane)) for lane in stuck}
    cycle = _find_cycle(waits)
    if cycle:
        return GraphError(f"deadlock: {'; '.join(waits[lane].text for lane in cycle)}; each waits for the next")
    alone = next((w for w in waits.values() if not w.blockers), next(iter(waits.values())))
    return GraphError(f"the run hangs: {alone.text}, and nobody comes")


def _find_cycle(waits: dict[int, Wait]) -> list[int]:
    """The lanes of one wait cycle, in order; empty when every chain ends at a lane that waits for nobody."""
    done: set[int] = set()
    for begin in waits:
        path: list[int] = []
        place: dict[int, int] = {}
        lane = begin
        while lane in waits and lane not in done:
            if lane in place:
                return path[place[lane] :]
            place[lane] = len(path)
            path.append(lane)
            onward = [b for b in waits[lane].blockers if b in waits and b not in done]
            if not onward:
                break
            lane = onward[0]
        done.update(path)
    return []


def _describe(graph: Graph, program: Program, wiring: Wiring, state: State, lane: int) -> Wait:
    code, wires = program.code, wiring.wires
    solved = int(state.lanes[lane, LANE_RANK])
    rank = int(wiring.representative[solved])
    if state.lanes[lane, LANE_STATUS] != BLOCKED_ON_TRANSFER:
        return _describe_record(graph, program, state, lane, rank)
    for op in _open_batch(program, state, lane):
        entry = int(wires.port_start[solved] + code.ops[op, 2])
        site = int(wiring.site[entry])
        call = int(wires.site_start[site] + code.ops[op, 3])
        if state.calls[call, CALL_HEAD] < 0:
            continue
        entries = wiring.site_entry[wiring.site_entry_start[site] : wiring.site_entry_start[site + 1]]
        blockers: list[int] = []
        missing: list[int] = []
        for other in entries:
            if other != entry:
                _find_blockers(program, wiring, state, int(other), int(code.ops[op, 3]), blockers, missing)
        row = graph.ops.row(int(program.row[op]), named=True)
        label = dict(label_groups(graph).select("group", "label").iter_rows())
        group = label[int(np.unique(graph.groups["group"].to_numpy())[wiring.group[site]])]
        what = f"{row['kind']} #{code.ops[op, 3]} of group {group}"
        place = f" ({row['source']})" if row["source"] else ""
        absent = f", which rank {missing[0]} never calls" if missing else ""
        return Wait(lane=lane, text=f"rank {rank} waits in {what}{place}{absent}", blockers=tuple(blockers))
    return Wait(lane=lane, text=f"rank {rank} waits", blockers=())


def _open_batch(program: Program, state: State, lane: int) -> range:
    """The ops of the batch in which a lane stands; the lane already points behind it."""
    after = int(state.lanes[lane, LANE_AT])
    first = after - 1
    while not program.code.ops[first, 0] >> 8:
        first -= 1
    return range(first, after)


def _find_blockers(
    program: Program, wiring: Wiring, state: State, entry: int, number: int, blockers: list[int], missing: list[int]
) -> None:
    """The lane on which another member would reach this call, if it has not yet."""
    solved = int(wiring.entry_rank[entry])
    port = int(wiring.port[entry])
    begin, stop = int(program.port_op_start[port]), int(program.port_op_start[port + 1])
    if begin + number >= stop:
        missing.append(int(wiring.representative[solved]))
        return
    op = int(program.port_ops[begin + number])
    first = int(program.code.class_lane_start[wiring.wires.rank_class[solved]])
    local = int(np.searchsorted(program.code.lane_begin, op, side="right")) - 1 - first
    lane = int(state.ranks[solved, RANK_LANES]) + local
    if state.lanes[lane, LANE_AT] <= op:
        blockers.append(lane)


def _describe_record(graph: Graph, program: Program, state: State, lane: int, rank: int) -> Wait:
    """A lane that waits for a point another lane of the same rank has not reached."""
    solved = state.lanes[lane, LANE_RANK]
    op = int(state.lanes[lane, LANE_AT])
    record = program.code.ops[op, 2]
    row = graph.ops.row(int(program.row[op]), named=True)
    place = f" ({row['source']})" if row["source"] else ""
    blockers = []
    for other in range(int(state.ranks[solved, RANK_LANES]), int(state.ranks[solved + 1, RANK_LANES])):
        ahead = program.code.ops[int(state.lanes[other, LANE_AT]) : int(state.lanes[other, LANE_STOP])]
        if np.any(((ahead[:, 0] & CODE_MASK) == RECORD) & (ahead[:, 2] == record)):
            blockers.append(other)
    return Wait(
        lane=lane,
        text=f"rank {rank} stream {row['stream']} waits for event {row['event']}{place}",
        blockers=tuple(blockers),
    )
