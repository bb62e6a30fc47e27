"""Drive the solver by live ranks: virtual ranks run ahead until they need one, and are given its time of arrival."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from prism.errors import BadConfigError, GraphError
from prism.records.ops import COLLECTIVES, OPS, POINT_TO_POINT
from prism.simulate.graph import Graph
from prism.simulate.solving.folding import fold
from prism.simulate.solving.kernel import (
    FINISHED,
    LANE_AT,
    LANE_RANK,
    LANE_STATUS,
    LANE_STOP,
    LANE_TIME,
    LANE_WIDTH,
    NODE_NEXT,
    RANK_LANES,
    RUNNABLE,
    STACK_BOTTOM,
    STACK_SIZE,
    Chance,
    State,
    make_state,
    run,
)
from prism.simulate.solving.pricing import CostModel
from prism.simulate.solving.program import Program, compile_program
from prism.simulate.solving.slowdowns import Jitter, Slowdown
from prism.simulate.solving.wiring import Wires, connect, wire
from prism.simulate.structure import check_structure


class OnlineSolver:
    """Virtual peers of a few live ranks. Times are nanoseconds on one common clock that starts at 0.

    A live rank reports when it reaches a communication op and gets a ticket; `end_of` returns when the op completes,
    or None while that still depends on another live rank. Every op is run once, so the work is linear in the ops.
    """

    def __init__(
        self,
        graph: Graph,
        costs: CostModel,
        live: Sequence[int],
        *,
        slowdowns: Sequence[Slowdown] = (),
        eager_bytes: int = -1,
    ) -> None:
        missing = [rank for rank in live if not 0 <= rank < graph.num_ranks]
        if missing:
            raise BadConfigError(f"no rank {missing[0]} to run live; the ranks are 0 to {graph.num_ranks - 1}")
        check_structure(graph)
        apart = _set_apart(graph, live)
        self.live = tuple(live)
        self._program = compile_program(apart, eager_bytes=eager_bytes)
        ports = connect(apart, self._program, costs, slowdowns)
        folding = fold(ports)
        wiring = wire(apart, self._program, ports, costs, folding.cell, folding.colour)
        self._wires = wiring.wires
        self._solved = {rank: int(folding.cell[rank]) for rank in live}
        self._ports = {rank: _list_ports(self._program, self._wires, self._solved[rank]) for rank in live}
        inside = apart.groups.with_columns(pl.len().over("group").alias("size")).filter(
            pl.col("rank").is_in(list(live))
        )
        self._sizes = {(rank, slot): size for rank, slot, size in inside.select("rank", "slot", "size").iter_rows()}
        self._kinds = apart.ops["kind"].cast(pl.String).to_list()
        self._calls: dict[tuple[int, int], int] = {}
        self._num_tickets = 0
        num_live_ops = sum(len(self._program.port_ops_of(p)) for own in self._ports.values() for p in own.values())
        self._state = _make_live_state(self._program, self._wires, list(self._solved.values()), num_live_ops)
        self._first_ticket = len(self._state.lanes) - num_live_ops
        self._chance = Chance(Jitter().seed, 0.0, 0.0)
        run(self._wires, self._state, self._chance)

    def arrive(
        self, rank: int, kind: str, slot: str, time_ns: int, *, peer: int | None = None, shift: int | None = None
    ) -> int:
        """A live rank reaches its next `kind` op on `slot` at this time; returns the op's ticket."""
        role = kind if kind in POINT_TO_POINT else "collective"
        if shift is not None:
            shift %= self._sizes.get((rank, slot), 1)
        port = self._ports[rank].get((slot, role, peer if kind in POINT_TO_POINT else None, shift))
        call = self._calls.get((rank, -1 if port is None else port), 0)
        ops = np.zeros(0, np.int64) if port is None else self._program.port_ops_of(port)
        if port is None or call >= len(ops):
            raise GraphError(f"live rank {rank} calls {kind} #{call} on slot '{slot}', which the graph does not have")
        op = int(ops[call])
        expected = self._kinds[int(self._program.row[op])]
        if expected != kind:
            raise GraphError(f"live rank {rank} calls {kind} #{call} on slot '{slot}'; its peers are in {expected}")
        self._calls[rank, port] = call + 1
        ticket, self._num_tickets = self._num_tickets, self._num_tickets + 1
        lane = self._first_ticket + ticket
        state = self._state
        state.lanes[lane, [LANE_RANK, LANE_AT, LANE_STOP, LANE_TIME]] = self._solved[rank], op, op + 1, time_ns
        state.lanes[lane, LANE_STATUS] = RUNNABLE
        state.work[STACK_BOTTOM + state.work[STACK_SIZE]] = lane
        state.work[STACK_SIZE] += 1
        run(self._wires, state, self._chance)
        return ticket

    def end_of(self, ticket: int) -> int | None:
        """When the op of this ticket completes; None while a live rank has not arrived."""
        if not 0 <= ticket < self._num_tickets:
            raise BadConfigError(f"no ticket {ticket}; {self._num_tickets} were given")
        lane = self._state.lanes[self._first_ticket + ticket]
        # A lane that waits for its transfer is past its op too, so only the status shows it.
        return int(lane[LANE_TIME]) if lane[LANE_STATUS] in (FINISHED, RUNNABLE) else None


def _set_apart(graph: Graph, live: Sequence[int]) -> Graph:
    """Give each live rank a class of its own that holds only its communication, each op on its own."""
    talks = pl.col("kind").is_in([*COLLECTIVES, *POINT_TO_POINT])
    fresh = int(graph.ops["class"].max() or 0) + 1  # type: ignore[arg-type]
    ops, moved = [graph.ops], {}
    for i, rank in enumerate(live):
        own = graph.ops.filter((pl.col("class") == graph.ranks["class"][rank]) & talks)
        if own.is_empty():
            raise BadConfigError(f"rank {rank} never communicates; there is nothing to run live")
        null = pl.lit(None, pl.Int32)
        ops.append(
            own.with_columns(pl.lit(fresh + i, pl.Int32).alias("class"), null.alias("batch"), null.alias("event"))
        )
        moved[rank] = fresh + i
    changed = pl.col("rank").replace_strict(moved, default=pl.col("class"), return_dtype=pl.Int32).alias("class")
    joined = OPS.conform(pl.concat(ops), graph.name).sort("class", "seq")
    return replace(graph, ops=joined, ranks=graph.ranks.with_columns(changed))


def _list_ports(program: Program, wires: Wires, solved: int) -> dict[tuple[str, str, int | None, int | None], int]:
    """A solved rank's ports by what a caller knows of them."""
    own = program.ports.filter(pl.col("class_index") == int(wires.rank_class[solved]))
    return {(s, r, p, h): n for s, r, p, h, n in own.select("slot", "role", "peer", "shift", "port").iter_rows()}


def _make_live_state(program: Program, wires: Wires, solved: list[int], num_live_ops: int) -> State:
    """A state whose live lanes never run by themselves, with a spare lane and node for each live op."""
    state = make_state(program.code, wires, program.lane_nodes, len(program.steps), note=False)
    held = np.zeros(len(state.lanes), bool)
    for rank in solved:
        held[state.ranks[rank, RANK_LANES] : state.ranks[rank + 1, RANK_LANES]] = True
    runnable = np.flatnonzero(~held)[::-1]
    lanes = np.vstack([state.lanes, np.zeros((num_live_ops, LANE_WIDTH), np.int64)])
    nodes = np.vstack([state.nodes, np.zeros((num_live_ops, state.nodes.shape[1]), np.int64)])
    nodes[:, NODE_NEXT] = np.arange(1, len(nodes) + 1)
    work = np.zeros(STACK_BOTTOM + len(lanes), np.int64)
    work[STACK_SIZE] = len(runnable)
    work[STACK_BOTTOM : STACK_BOTTOM + len(runnable)] = runnable
    return state._replace(lanes=lanes, nodes=nodes, work=work)
