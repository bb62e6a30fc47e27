"""The solver's inner loop on programs small enough to work out by hand, every time of every op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from prism.simulate import Graph, GraphBuilder, Jitter, LinearCosts, Slowdown, SolveConfig, solve
from prism.simulate.solving.kernel import draw_factor

COSTS = LinearCosts(latency_ns=10, bytes_per_ns=1.0)
Writer = Callable[[Any], object]


def build(*writers: Writer) -> Graph:
    """One rank per writer, each with a program of its own, and one group `pp` of all of them."""
    builder = GraphBuilder("hand")
    for rank, write in enumerate(writers):
        program = builder.program()
        write(program)
        builder.rank(rank, program, local=rank)
    builder.group("pp", range(len(writers)))
    return builder.build()


def times(graph: Graph, rank: int, **settings: Any) -> list[tuple[int, int, int]]:
    """Start, ready and end of every op of a rank."""
    solution = solve(graph, COSTS, SolveConfig(note_ops=True, **settings))
    return list(solution.op_times(rank).select("start_ns", "ready_ns", "end_ns").iter_rows())


def test_ops_of_one_stream_follow_each_other_and_streams_run_beside_each_other() -> None:
    graph = build(lambda p: (p.compute("a", 7), p.host("b", 5), p.compute("c", 9, stream=1), p.compute("d", 1)))
    assert times(graph, 0) == [(0, 0, 7), (7, 7, 12), (0, 0, 9), (12, 12, 13)]


def test_a_record_frees_all_streams_that_wait_for_it_and_no_other() -> None:
    def write(p: Any) -> None:
        p.compute("long", 50)
        first = p.record(stream=0)
        p.compute("longer", 30)
        second = p.record(stream=0)
        for stream, event in ((1, first), (2, first), (3, second)):
            p.wait(event, stream=stream)
            p.compute("after", stream, stream=stream)
        p.compute("late", 90, stream=4)
        p.wait(first, stream=4)
        p.compute("on", 1, stream=4)

    named = dict(zip(["long", "longer", "1", "2", "3", "late", "on"], times(build(write), 0), strict=True))
    assert named["1"] == (50, 50, 51) and named["2"] == (50, 50, 52)
    assert named["3"] == (80, 80, 83)
    assert named["on"] == (90, 90, 91)  # the record was there long before


def test_a_collective_of_three_starts_with_the_last_and_lasts_as_long_as_the_dearest() -> None:
    def member(work: int) -> Writer:
        return lambda p: (p.compute("a", work), p.barrier("pp"))

    graph = build(member(5), member(40), member(20))
    ends = [times(graph, rank)[1] for rank in range(3)]
    assert [(start, ready) for start, ready, _ in ends] == [(5, 40), (40, 40), (20, 40)]
    assert len({end for _, _, end in ends}) == 1 and ends[0][2] >= 40 + COSTS.latency_ns


def test_a_message_waits_for_its_receiver_and_an_eager_one_does_not() -> None:
    graph = build(
        lambda p: (p.compute("a", 3), p.send("pp", 40, peer=1), p.compute("b", 5)),
        lambda p: (p.compute("a", 20), p.recv("pp", 40, peer=0), p.compute("b", 5)),
    )
    assert times(graph, 0) == [(0, 0, 3), (3, 20, 70), (70, 70, 75)]
    assert times(graph, 1) == [(0, 0, 20), (20, 20, 70), (70, 70, 75)]
    assert times(graph, 0, eager_bytes=40) == [(0, 0, 3), (3, 3, 53), (53, 53, 58)]
    assert times(graph, 1, eager_bytes=40) == [(0, 0, 20), (20, 20, 53), (53, 53, 58)]
    assert times(graph, 1, eager_bytes=39) == times(graph, 1)  # the limit is the largest eager message


def test_a_receiver_that_waits_for_an_eager_message_is_woken_at_its_end() -> None:
    graph = build(
        lambda p: (p.compute("a", 100), p.send("pp", 40, peer=1)),
        lambda p: (p.recv("pp", 40, peer=0), p.compute("b", 5)),
    )
    assert times(graph, 1, eager_bytes=64) == [(0, 100, 150), (150, 150, 155)]


def test_a_batch_goes_on_when_its_last_transfer_ended() -> None:
    def middle(p: Any) -> None:
        p.compute("a", 10)
        with p.batch():
            p.send("pp", 20, peer=0)
            p.send("pp", 200, peer=2)
            p.recv("pp", 30, peer=0)
        p.compute("b", 1)

    def left(p: Any) -> None:
        with p.batch():
            p.recv("pp", 20, peer=1)
            p.send("pp", 30, peer=1)
        p.compute("b", 1)

    graph = build(left, middle, lambda p: (p.compute("a", 15), p.recv("pp", 200, peer=1)))
    assert times(graph, 1) == [(0, 0, 10), (10, 10, 40), (10, 15, 225), (10, 10, 50), (225, 225, 226)]
    assert times(graph, 0) == [(0, 10, 40), (0, 10, 50), (50, 50, 51)]
    assert times(graph, 2) == [(0, 0, 15), (15, 15, 225)]


def test_a_ring_that_folds_to_one_rank_delivers_to_itself_inside_its_batch() -> None:
    builder = GraphBuilder("ring")
    program = builder.program()
    with program.batch():
        program.send("pp", 20, shift=1)
        program.recv("pp", 20, shift=-1)
    program.compute("b", 1)
    for rank in range(4):
        builder.rank(rank, program, local=rank)
    builder.group("pp", range(4))
    assert times(builder.build(), 2) == [(0, 0, 30), (0, 0, 30), (30, 30, 31)]
    assert times(builder.build(), 2, fold=False) == [(0, 0, 30), (0, 0, 30), (30, 30, 31)]


def test_messages_of_one_pair_meet_in_the_order_of_their_calls() -> None:
    graph = build(
        lambda p: (p.send("pp", 10, peer=1), p.compute("a", 100), p.send("pp", 50, peer=1)),
        lambda p: (p.recv("pp", 10, peer=0), p.recv("pp", 50, peer=0), p.compute("b", 1)),
    )
    assert times(graph, 1) == [(0, 0, 20), (20, 120, 180), (180, 180, 181)]


def test_measured_members_keep_their_own_times_whoever_comes_last() -> None:
    def member(work: int, took: int) -> Writer:
        return lambda p: (p.compute("a", work), p.collective("all_reduce", "pp", 8, duration_ns=took))

    graph = build(member(10, 33), member(60, 44), member(20, 0))
    assert [times(graph, rank)[1] for rank in range(3)] == [(10, 60, 93), (60, 60, 104), (20, 60, 60)]


def test_slow_windows_stretch_compute_and_not_the_host_and_a_slow_group_its_transfers() -> None:
    graph = build(
        lambda p: (p.compute("a", 100), p.host("b", 100), p.send("pp", 40, peer=1)),
        lambda p: p.recv("pp", 40, peer=0),
    )
    rank = Slowdown(target="rank", id=0, speed=0.5)
    assert times(graph, 0, slowdowns=[rank]) == [(0, 0, 200), (200, 200, 300), (300, 300, 350)]
    group = Slowdown(target="group", id=0, speed=0.5)
    assert times(graph, 1, slowdowns=[group]) == [(0, 200, 300)]
    late = Slowdown(target="group", id=0, speed=0.5, start_ns=210, end_ns=230)
    assert times(graph, 1, slowdowns=[late]) == [(0, 200, 260)]  # 10 + 20 at half speed + 30


def test_a_slow_group_stretches_measured_and_eager_transfers_too() -> None:
    slow = [Slowdown(target="group", id=0, speed=0.5)]
    measured = build(
        lambda p: p.collective("all_reduce", "pp", 8, duration_ns=33),
        lambda p: (p.compute("a", 60), p.collective("all_reduce", "pp", 8, duration_ns=44)),
    )
    assert [times(measured, rank, slowdowns=slow)[-1][2] for rank in (0, 1)] == [126, 148]
    eager = build(lambda p: p.send("pp", 40, peer=1), lambda p: p.recv("pp", 40, peer=0))
    assert times(eager, 1, slowdowns=slow, eager_bytes=64) == [(0, 0, 100)]


def test_steps_end_with_their_last_rank() -> None:
    def steps(first: int, second: int) -> Writer:
        def write(p: Any) -> None:
            p.compute("a", first)
            p.compute("b", second)

        return write

    solution = solve(build(steps(10, 5), steps(4, 30)), COSTS)
    assert solution.step_ns.tolist() == [34] and solution.rank_end_ns.tolist() == [15, 34]


def test_jitter_of_compute_and_of_transfers_are_drawn_apart() -> None:
    graph = build(
        lambda p: (p.compute("a", 1000), p.send("pp", 990, peer=1), p.host("h", 1000)),
        lambda p: (p.compute("a", 1000), p.recv("pp", 990, peer=0), p.compute("b", 1000)),
    )
    calm = times(graph, 1)
    compute = times(graph, 1, jitter=Jitter(compute_sigma=0.2, seed=3))
    network = times(graph, 1, jitter=Jitter(communication_sigma=0.2, seed=3))
    assert calm == [(0, 0, 1000), (1000, 1000, 2000), (2000, 2000, 3000)]
    assert compute[0][2] != 1000 and compute[1][2] - compute[1][1] == 1000
    assert network[0] == calm[0] and network[2][2] - network[2][0] == 1000
    assert network[1][2] - network[1][1] == round(1000 * draw_factor(3, 0.2, np.int64(0), np.int64(-1)))


def test_factors_are_lognormal_of_mean_one_and_differ_by_every_key() -> None:
    sigma = 0.4
    drawn = np.log([draw_factor(1, sigma, np.int64(i), np.int64(7)) for i in range(4000)])
    assert drawn.mean() == pytest.approx(-sigma * sigma / 2, abs=4 * sigma / 4000**0.5)
    assert drawn.std() == pytest.approx(sigma, rel=0.05)
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.06
    assert ((drawn + sigma * sigma / 2 > 0).mean()) == pytest.approx(0.5, abs=0.04)
    keys = [(1, 0, 7), (2, 0, 7), (1, 1, 7), (1, 0, 8)]
    assert len({draw_factor(seed, sigma, np.int64(one), np.int64(two)) for seed, one, two in keys}) == 4
    assert draw_factor(1, 0.0, np.int64(5), np.int64(6)) == 1.0
