"""The solver against a plain one, folded against unfolded, and small cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshes import Mesh, build_mesh, meshes, solve_plainly

from prism.errors import BadConfigError, InputError
from prism.simulate import GraphBuilder, Jitter, LinearCosts, Slowdown, SolveConfig, repeat_graph, sample_steps, solve

COSTS = LinearCosts()
UNFOLDED = SolveConfig(fold=False, note_ops=True)
FOLDED = SolveConfig(note_ops=True)


@settings(max_examples=25, deadline=None)
@given(meshes, st.dictionaries(st.integers(0, 80), st.sampled_from([0.25, 0.5, 2.0]), max_size=3))
def test_agrees_with_a_plain_solver_op_by_op(mesh: Mesh, speeds: dict[int, float]):
    graph = build_mesh(mesh)
    speeds = {rank % graph.num_ranks: speed for rank, speed in speeds.items()}
    slow = [Slowdown(target="rank", id=rank, speed=speed) for rank, speed in speeds.items()]
    truth = solve_plainly(graph, COSTS, speeds)
    solution = solve(graph, COSTS, SolveConfig(fold=False, note_ops=True, slowdowns=slow))
    assert solution.total_ns == max(truth.values())
    for rank in range(graph.num_ranks):
        for row in solution.op_times(rank).iter_rows(named=True):
            assert row["end_ns"] == truth[rank, row["seq"]], (rank, row)


slowdowns = st.lists(
    st.builds(
        Slowdown,
        target=st.sampled_from(["rank", "group", "host"]),
        id=st.integers(0, 1),
        speed=st.sampled_from([0.3, 0.5, 0.9, 1.5]),
        start_ns=st.integers(0, 10**6),
        end_ns=st.integers(2 * 10**6, 10**7),
    ),
    max_size=4,
)


@settings(max_examples=40, deadline=None)
@given(meshes, slowdowns, st.integers(0, 10**6), st.sampled_from([-1, 10**5, 10**7]))
def test_folded_times_equal_unfolded_times_exactly(mesh: Mesh, slow: list[Slowdown], pick: int, eager: int):
    graph = build_mesh(mesh)
    hosts = graph.ranks["host"].max() + 1
    sizes = {"rank": graph.num_ranks, "group": graph.groups["group"].n_unique(), "host": hosts}
    slow = [
        Slowdown(
            target=s.target, id=(s.id + pick) % sizes[s.target], speed=s.speed, start_ns=s.start_ns, end_ns=s.end_ns
        )
        for s in slow
    ]
    whole = solve(graph, COSTS, SolveConfig(fold=False, note_ops=True, slowdowns=slow, eager_bytes=eager))
    folded = solve(graph, COSTS, SolveConfig(note_ops=True, slowdowns=slow, eager_bytes=eager))
    assert folded.num_cells <= whole.num_cells
    np.testing.assert_array_equal(folded.rank_end_ns, whole.rank_end_ns)
    np.testing.assert_array_equal(folded.step_ns, whole.step_ns)
    for rank in range(graph.num_ranks):
        assert folded.op_times(rank).equals(whole.op_times(rank))


def test_a_symmetric_job_folds_to_one_cell_per_stage():
    graph = build_mesh(Mesh(dp=4, pp=3, tp=4, cp=3, microbatches=2, layers=1, batched=True, steps=1, seed=1))
    assert solve(graph, COSTS).num_cells == 3


def test_a_slow_rank_unfolds_only_what_it_touches():
    graph = build_mesh(Mesh(dp=8, pp=2, tp=4, cp=1, microbatches=2, layers=1, batched=True, steps=1, seed=1))
    slow = [Slowdown(target="rank", id=5, speed=0.5)]
    cells = solve(graph, COSTS, SolveConfig(slowdowns=slow)).num_cells
    # Same stage or not, same tensor position or not, same replica or not.
    assert 2 < cells <= 8


def two_ranks(write_first, write_second):
    builder = GraphBuilder("pair")
    first, second = builder.program(), builder.program()
    write_first(first)
    write_second(second)
    builder.rank(0, first)
    builder.rank(1, second, local=1)
    builder.group("pp", [0, 1])
    return builder.build()


TEN = LinearCosts(latency_ns=10, bytes_per_ns=1.0)


def test_a_transfer_starts_when_the_later_side_comes():
    graph = two_ranks(
        lambda p: (p.compute("a", 100), p.send("pp", 40, peer=1), p.compute("b", 5)),
        lambda p: (p.compute("a", 30), p.recv("pp", 40, peer=0), p.compute("b", 7)),
    )
    solution = solve(graph, TEN, FOLDED)
    assert solution.op_times(1)["start_ns"].to_list() == [0, 30, 150]
    assert solution.op_times(1)["ready_ns"].to_list() == [0, 100, 150]
    assert solution.rank_end_ns.tolist() == [155, 157]


def test_an_eager_send_does_not_wait_for_its_receiver():
    graph = two_ranks(
        lambda p: (p.send("pp", 40, peer=1), p.compute("b", 5)),
        lambda p: (p.compute("a", 1000), p.recv("pp", 40, peer=0)),
    )
    assert solve(graph, TEN).rank_end_ns.tolist() == [1055, 1050]
    assert solve(graph, TEN, SolveConfig(eager_bytes=64)).rank_end_ns.tolist() == [55, 1000]


def test_transfers_of_a_batch_start_alone_and_end_together():
    def exchange(p, other, work):
        p.compute("a", work)
        with p.batch():
            p.send("pp", 40, peer=other)
            p.recv("pp", 90, peer=other)

    def answer(p, other, work):
        p.compute("a", work)
        with p.batch():
            p.recv("pp", 40, peer=other)
            p.send("pp", 90, peer=other)

    graph = two_ranks(lambda p: exchange(p, 1, 20), lambda p: answer(p, 0, 50))
    solution = solve(graph, TEN, FOLDED)
    assert solution.op_times(0)["end_ns"].to_list() == [20, 100, 150]
    assert solution.rank_end_ns.tolist() == [150, 150]


def test_a_wait_holds_for_the_last_record_before_it_and_no_later_one():
    builder = GraphBuilder("events")
    program = builder.program()
    program.compute("a", 100)
    event = program.record(stream=0)
    program.wait(event, stream=1)
    program.compute("b", 7, stream=1)
    program.compute("c", 500)
    builder.rank(0, program)
    solution = solve(builder.build(), TEN, FOLDED)
    assert solution.op_times(0)["start_ns"].to_list() == [0, 100, 100]


def test_a_measured_transfer_takes_its_own_time_on_each_rank():
    graph = two_ranks(
        lambda p: (p.compute("a", 10), p.collective("all_reduce", "pp", 8, duration_ns=33)),
        lambda p: (p.compute("a", 60), p.collective("all_reduce", "pp", 8, duration_ns=44)),
    )
    assert solve(graph, TEN).rank_end_ns.tolist() == [93, 104]


def test_an_uneven_all_to_all_lasts_as_long_as_its_busiest_member():
    graph = two_ranks(
        lambda p: p.all_to_all("pp", 200, sizes=[100, 100]),
        lambda p: p.all_to_all("pp", 900, sizes=[800, 100]),
    )
    # Rank 0 receives 900 bytes, as many as rank 1 sends: half of them cross, as in an even exchange of 900.
    assert solve(graph, TEN).rank_end_ns.tolist() == [460, 460]


def test_a_slow_window_stretches_only_the_work_inside_it():
    builder = GraphBuilder("window")
    program = builder.program()
    program.compute("a", 100)
    program.compute("b", 100)
    builder.rank(0, program)
    graph = builder.build()
    slow = Slowdown(target="rank", id=0, speed=0.5, start_ns=50, end_ns=150)
    # 50 ns at full speed, 100 ns that do 50, then the last 100.
    assert solve(graph, TEN, SolveConfig(slowdowns=[slow])).total_ns == 250
    pause = Slowdown(target="rank", id=0, speed=0.0, start_ns=120, end_ns=1000)
    assert solve(graph, TEN, SolveConfig(slowdowns=[pause])).total_ns == 1080


def test_steps_add_up_to_the_run():
    graph = repeat_graph(build_mesh(Mesh(2, 2, 2, 1, 2, 1, False, 2, 3)), 3)
    solution = solve(graph, COSTS)
    assert len(solution.step_ns) == 6
    assert solution.step_ns.sum() == solution.total_ns
    assert (solution.step_ns > 0).all()


def test_jitter_repeats_with_its_seed_and_keeps_the_mean():
    builder = GraphBuilder("jitter")
    program = builder.program()
    for _ in range(4000):
        program.compute("a", 1000)
    builder.rank(0, program)
    graph = builder.build()
    config = SolveConfig(jitter=Jitter(compute_sigma=0.3, seed=5))
    assert solve(graph, COSTS, config).total_ns == solve(graph, COSTS, config).total_ns
    # The mean of 4,000 lognormal draws of sigma 0.3 has a standard error of 0.5 %.
    assert solve(graph, COSTS, config).total_ns == pytest.approx(4_000_000, rel=0.02)


def test_jitter_makes_steps_longer_where_ranks_wait_for_the_slowest():
    graph = build_mesh(Mesh(3, 1, 3, 1, 3, 2, False, 1, 3))
    calm = solve(graph, COSTS).step_ns[0]
    steps = sample_steps(graph, COSTS, SolveConfig(jitter=Jitter(compute_sigma=0.2, communication_sigma=0.1)), 30)
    assert steps.shape == (30, 1)
    assert len(np.unique(steps)) == 30
    assert np.median(steps) > calm


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"speed": -1.0}, "from 0 up"),
        ({"speed": float("nan")}, "from 0 up"),
        ({"speed": 0.0}, "never finishes"),
        ({"speed": 0.5, "start_ns": 10, "end_ns": 10}, "before it starts"),
    ],
)
def test_an_absurd_slowdown_is_refused(values: dict, words: str):
    with pytest.raises(BadConfigError, match=words):
        Slowdown(target="rank", id=0, **values)


def test_a_slowdown_of_an_absent_rank_names_the_last_one():
    graph = two_ranks(lambda p: p.compute("a", 1), lambda p: p.compute("a", 1))
    with pytest.raises(InputError, match="no rank 7 in graph 'pair'; the last one is 1"):
        solve(graph, TEN, SolveConfig(slowdowns=[Slowdown(target="rank", id=7, speed=0.5)]))
