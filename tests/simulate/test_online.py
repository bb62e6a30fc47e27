"""Live ranks driven op by op meet their virtual peers exactly when the offline solution says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshes import Mesh, build_mesh, meshes

from prism.errors import GraphError, InputError
from prism.simulate import GraphBuilder, LinearCosts, OnlineSolver, Slowdown, SolveConfig, solve

COSTS = LinearCosts()


def replay(graph, live: list[int], slowdowns=()) -> None:
    """Let live ranks come to their ops at the offline times, in time order, and compare every end."""
    offline = solve(graph, COSTS, SolveConfig(fold=False, note_ops=True, slowdowns=slowdowns))
    online = OnlineSolver(graph, COSTS, live, slowdowns=slowdowns)
    arrivals = []
    for rank in live:
        program = graph.ops.filter(graph.ops["class"] == graph.ranks["class"][rank]).to_dicts()
        times = {row["seq"]: row for row in offline.op_times(rank).iter_rows(named=True)}
        arrivals += [
            (times[op["seq"]]["start_ns"], op["seq"], rank, op, times[op["seq"]]["end_ns"])
            for op in program
            if op["slot"] is not None
        ]
    tickets = []
    for start, _, rank, op, end in sorted(arrivals, key=lambda a: a[:3]):
        peer = op["peer"] if op["kind"] in ("send", "recv") else None
        tickets.append((online.arrive(rank, op["kind"], op["slot"], start, peer=peer, shift=op["shift"]), end))
    assert tickets
    for ticket, end in tickets:
        assert online.end_of(ticket) == end


@settings(max_examples=25, deadline=None)
@given(meshes, st.sets(st.integers(0, 80), min_size=1, max_size=3), st.booleans())
def test_a_live_rank_that_behaves_as_in_the_graph_gets_the_offline_times(mesh: Mesh, picks: set[int], slow: bool):
    graph = build_mesh(mesh)
    live = sorted({pick % graph.num_ranks for pick in picks})
    others = [r for r in range(graph.num_ranks) if r not in live]
    slowdowns = [Slowdown(target="rank", id=others[0], speed=0.5)] if slow and others else []
    replay(graph, live, slowdowns)


def test_an_order_of_ops_on_one_stream_follows_from_the_ends_alone():
    graph = build_mesh(Mesh(dp=2, pp=2, tp=2, cp=1, microbatches=2, layers=1, batched=False, steps=2, seed=9))
    replay(graph, [3])


def test_a_late_live_rank_delays_its_virtual_peers():
    builder = GraphBuilder("pair")
    program = builder.program()
    for _ in range(2):
        program.compute("work", 100)
        program.barrier("dp")
    builder.ranks([0, 1], [0, 0], [0, 0], [0, 1])
    builder.group("dp", [0, 1])
    online = OnlineSolver(builder.build(), LinearCosts(latency_ns=10), [0])
    first = online.arrive(0, "barrier", "dp", 1_000)
    assert online.end_of(first) == 1_010
    # The peer left at 1,010 and is back after its 100 ns of work; the live rank came earlier this time.
    assert online.end_of(online.arrive(0, "barrier", "dp", 1_020)) == 1_120


def test_an_op_that_needs_another_live_rank_is_open_until_that_one_comes():
    builder = GraphBuilder("pair")
    program = builder.program()
    program.barrier("dp")
    builder.ranks([0, 1, 2], [0] * 3, [0] * 3, [0, 1, 2])
    builder.group("dp", [0, 1, 2])
    online = OnlineSolver(builder.build(), LinearCosts(latency_ns=10), [0, 2])
    first = online.arrive(0, "barrier", "dp", 5)
    assert online.end_of(first) is None
    second = online.arrive(2, "barrier", "dp", 50)
    assert online.end_of(first) == online.end_of(second) == 60


def test_a_live_rank_that_strays_from_the_graph_is_told_where():
    builder = GraphBuilder("pair")
    program = builder.program()
    program.all_reduce("dp", 8)
    builder.ranks([0, 1], [0, 0], [0, 0], [0, 1])
    builder.group("dp", [0, 1])
    graph = builder.build()
    with pytest.raises(GraphError, match="live rank 0 calls broadcast #0 on slot 'dp'; its peers are in all_reduce"):
        OnlineSolver(graph, COSTS, [0]).arrive(0, "broadcast", "dp", 0)
    online = OnlineSolver(graph, COSTS, [0])
    online.arrive(0, "all_reduce", "dp", 0)
    with pytest.raises(GraphError, match="calls all_reduce #1 on slot 'dp', which the graph does not have"):
        online.arrive(0, "all_reduce", "dp", 0)
    with pytest.raises(InputError, match="no rank 5 to run live"):
        OnlineSolver(graph, COSTS, [5])
    with pytest.raises(InputError, match="no ticket 7"):
        online.end_of(7)
