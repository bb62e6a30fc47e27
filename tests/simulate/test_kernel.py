"""The solver's inner loop on programs small enough to work out by hand, every time of every op."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from prism.simulate import Graph, GraphBuilder, Jitter, LinearCosts, Slowdown, SolveConfig, solve
from prism.simulate.solving.kernel import NUM_FINISHED, STACK_SIZE, draw_factor

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


def reference_factor(seed: int, sigma: float, one: int, two: int) -> float:
    """The same draw in Python's own integers: splitmix64 twice, then Box and Muller."""
    mask = 2**64 - 1
    bits = (seed * 0x9E3779B97F4A7C15 + one * 0xD1B54A32D192ED03 + two * 0x8CB92BA72F3D8DD7) & mask
    uniform = []
    for _ in range(2):
        bits = (bits + 0x9E3779B97F4A7C15) & mask
        x = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        x ^= x >> 31
        uniform.append(((x >> 11) + 0.5) / 2**53)
    normal = math.sqrt(-2 * math.log(uniform[0])) * math.cos(2 * math.pi * uniform[1])
    return math.exp(sigma * normal - sigma**2 / 2)


@pytest.mark.parametrize("key", [(0, 0, 0), (1, 2, 3), (7, 8191, 12), (2**31, 5, 10**6)])
def test_factors_are_those_of_splitmix64(key: tuple[int, int, int]) -> None:
    seed, one, two = key
    drawn = draw_factor(seed, 0.3, np.int64(one), np.int64(two))
    assert drawn == pytest.approx(reference_factor(seed, 0.3, one, two), rel=1e-14)


def test_compute_takes_its_time_times_the_factor_of_its_rank_and_op() -> None:
    graph = build(lambda p: p.compute("a", 0), lambda p: (p.compute("a", 10**9), p.compute("b", 10**9)))
    spans = times(graph, 1, jitter=Jitter(compute_sigma=0.2, seed=3))
    possible = [round(1e9 * draw_factor(3, 0.2, np.int64(1), np.int64(at))) for at in range(6)]
    assert [possible.count(end - start) for start, _, end in spans] == [1, 1]


def test_streams_that_wait_first_are_woken_by_the_record_they_wait_for() -> None:
    def write(p: Any) -> None:
        p.compute("x", 20, stream=7)
        early = p.record(stream=7)
        p.compute("y", 30, stream=7)
        late = p.record(stream=7)
        p.compute("z", 5, stream=7)
        for stream, event in ((0, early), (1, late), (2, early)):
            p.wait(event, stream=stream)
            p.compute("after", 1 + stream, stream=stream)

    found = sorted(times(build(write, write), 1))
    assert found == [(0, 0, 20), (20, 20, 21), (20, 20, 23), (20, 20, 50), (50, 50, 52), (50, 50, 55)]


def test_a_record_at_the_very_beginning_holds_nobody() -> None:
    def write(p: Any) -> None:
        event = p.record(stream=0)
        p.compute("a", 9)
        p.wait(event, stream=1)
        p.compute("b", 4, stream=1)

    assert times(build(write), 0) == [(0, 0, 9), (0, 0, 4)]


def test_a_program_of_one_op_is_noted() -> None:
    assert times(build(lambda p: p.compute("only", 6)), 0) == [(0, 0, 6)]


def test_every_step_ends_with_the_rank_that_is_last_in_it() -> None:
    def steps(*lengths: int) -> Writer:
        def write(p: Any) -> None:
            for number, length in enumerate(lengths):
                p.step = number
                p.compute("a", length)
                p.compute("b", 1)

        return write

    solution = solve(build(steps(10, 5, 7), steps(4, 30, 1)), COSTS)
    assert solution.step_end_ns.tolist() == [11, 36, 38] and solution.step_ns.tolist() == [11, 25, 2]


@pytest.mark.parametrize("turn", [1, -1])
def test_a_member_without_a_measured_time_pays_the_price_and_measured_ones_their_own(turn: int) -> None:
    members: list[Writer] = [
        lambda p: p.collective("all_reduce", "pp", 80, duration_ns=0),
        lambda p: (p.compute("a", 10), p.collective("all_reduce", "pp", 80, duration_ns=500)),
        lambda p: (p.compute("a", 20), p.collective("all_reduce", "pp", 80)),
    ]
    graph = build(*members[::turn])
    priced = build(*[lambda p: (p.compute("a", 20), p.collective("all_reduce", "pp", 80))] * 3)
    price = times(priced, 0)[-1][2] - 20
    assert price > 0
    found = [times(graph, rank)[-1] for rank in range(3)]
    assert found[::turn] == [(0, 20, 20), (10, 20, 520), (20, 20, 20 + price)]


@pytest.mark.parametrize("receiver_first", [True, False])
def test_an_eager_message_ends_when_its_sender_measured_it(receiver_first: bool) -> None:
    graph = build(
        lambda p: (p.compute("a", 30), p.send("pp", 8, peer=1, duration_ns=100)),
        lambda p: (p.compute("a", 10 if receiver_first else 50), p.recv("pp", 8, peer=0, duration_ns=77)),
    )
    begin = 10 if receiver_first else 50
    assert times(graph, 0, eager_bytes=8)[-1] == (30, 30, 130)
    assert times(graph, 1, eager_bytes=8)[-1] == (begin, max(begin, 30), 130)


def test_an_eager_message_that_has_come_long_ago_is_ready_when_its_receiver_is() -> None:
    graph = build(
        lambda p: p.send("pp", 8, peer=1),
        lambda p: (p.compute("a", 500), p.recv("pp", 8, peer=0), p.compute("b", 1)),
    )
    assert times(graph, 1, eager_bytes=8) == [(0, 0, 500), (500, 500, 500), (500, 500, 501)]


def test_calls_of_two_sites_are_kept_apart_however_many_there_are() -> None:
    builder = GraphBuilder("sites")
    for rank in range(2):
        program = builder.program()
        for turn in range(4):
            program.compute("a", 100 * rank + turn)
            program.barrier("pp")
            program.send("dp", 10 + turn, peer=1) if rank == 0 else program.recv("dp", 10 + turn, peer=0)
        builder.rank(rank, program, local=rank)
    builder.group("pp", range(2))
    builder.group("dp", range(2))
    now, expected = 0, []
    barrier = times(build(lambda p: p.barrier("pp"), lambda p: p.barrier("pp")), 0)[0][2]
    for turn in range(4):
        meet = now + 100 + turn
        expected += [(meet, meet + barrier), (meet + barrier, meet + barrier + COSTS.latency_ns + 10 + turn)]
        now = expected[-1][1]
    found = [(ready, end) for _, ready, end in times(builder.build(), 1)]
    assert [found[i] for i in range(12) if i % 3] == expected


class PlacementCosts:
    """A price that is the number of its placement and of its size, so that a mix-up shows."""

    def place(self, hosts: list[int], locals_: list[int]) -> int:
        return len(set(hosts))

    def price(self, kinds: Any, sizes: Any, placement: Any, placements: Any) -> Any:
        return 1000 * (np.asarray(placement) + 1) + np.asarray(sizes)


def test_ranks_of_one_program_pay_the_price_of_their_own_placement() -> None:
    builder = GraphBuilder("placements")
    program = builder.program()
    for size in (8, 16, 24):
        program.collective("broadcast", "pp", size, root=0)
    for rank, host in enumerate((0, 0, 1, 2)):
        builder.rank(rank, program, host=host, local=rank % 2 if host == 0 else 0)
    builder.group("pp", [0, 1])
    builder.group("pp", [2, 3])
    ends = []
    for rank in (0, 2):
        solution = solve(builder.build(), PlacementCosts(), SolveConfig(note_ops=True))
        ends.append(np.diff([0, *solution.op_times(rank)["end_ns"].to_list()]).tolist())
    assert sorted(ends) == [[1008, 1016, 1024], [2008, 2016, 2024]]


@pytest.mark.parametrize("places", list(permutations(range(3))))
def test_a_batch_with_two_receives_is_woken_once_by_the_last_of_them(places: tuple[int, int, int]) -> None:
    collector, early, late = places

    def gather(p: Any) -> None:
        with p.batch():
            p.recv("pp", 10, peer=early)
            p.recv("pp", 10, peer=late)
        p.compute("b", 3)
        p.send("pp", 5, peer=early)

    writers: list[Writer] = [
        gather,
        lambda p: (p.compute("a", 40), p.send("pp", 10, peer=collector), p.recv("pp", 5, peer=collector)),
        lambda p: (p.compute("a", 90), p.send("pp", 10, peer=collector)),
    ]
    graph = build(*(writers[places.index(rank)] for rank in range(3)))
    assert times(graph, collector) == [(0, 40, 60), (0, 90, 110), (110, 110, 113), (113, 113, 128)]
    assert times(graph, early) == [(0, 0, 40), (40, 40, 60), (60, 113, 128)]


def test_the_work_list_is_empty_and_every_lane_counted_at_the_end() -> None:
    solution = solve(build(lambda p: (p.compute("a", 1), p.compute("b", 1, stream=1)), lambda p: p.host("c", 2)), COSTS)
    assert solution.state.work[NUM_FINISHED] == 3 and solution.state.work[STACK_SIZE] == 0
