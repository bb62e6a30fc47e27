"""Transfers that share links: cases worked out by hand, and agreement with the plain solver where nothing is shared."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from meshes import Mesh, build_mesh, meshes

from prism.errors import InputError
from prism.simulate import (
    Cluster,
    ClusterCosts,
    GraphBuilder,
    Jitter,
    LinearCosts,
    Slowdown,
    SolveConfig,
    find_critical_path,
    solve,
    solve_shared,
)
from prism.simulate.cluster import Nics
from prism.simulate.links import link_capacities

ONE_NIC = Cluster(name="one-nic", num_hosts=4, gpus_per_host=2, nics=Nics(count=1))
COSTS = ClusterCosts(ONE_NIC)
SIZE = 2**28


def senders(gaps: list[int], sizes: list[int]):
    """GPU i of host 0 sends to GPU i of host 1 after a gap; all messages leave through one NIC."""
    builder = GraphBuilder("shared")
    num = len(gaps)
    for gap, size in zip(gaps, sizes, strict=True):
        program = builder.program()
        program.compute("gap", gap)
        program.send("pp", size, peer=1)
    for size in sizes:
        builder.program().recv("pp", size, peer=0)
    builder.ranks(np.arange(2 * num), np.arange(2 * num), np.repeat([0, 1], num), np.tile(np.arange(num), 2))
    builder.groups("pp", [[i, num + i] for i in range(num)])
    return builder.build()


def price(size: int) -> int:
    return int(COSTS.price(["send"], np.array([size]), np.array([0]), [COSTS.place([0, 1], [0, 0])])[0])


CAPACITY = float(link_capacities(ONE_NIC)[0])


def test_a_lone_transfer_takes_its_price():
    assert solve_shared(senders([100], [SIZE]), COSTS).total_ns == 100 + price(SIZE)


def test_two_transfers_through_one_nic_share_it_evenly():
    # Together they move twice the bytes at the NIC's speed; what is latency in the price is hidden by the other.
    solution = solve_shared(senders([0, 0], [SIZE, SIZE]), COSTS)
    assert SIZE / price(SIZE) * 2 > CAPACITY
    assert solution.total_ns == pytest.approx(2 * SIZE / CAPACITY, abs=2)
    assert solution.rank_end_ns.tolist() == [solution.total_ns] * 4


def test_a_later_transfer_slows_the_first_only_while_both_run():
    late = price(SIZE) // 2
    rate = SIZE / price(SIZE)  # bytes per ns alone
    fair = CAPACITY / 2
    first_end = late + (SIZE - late * rate) / fair
    second_left = SIZE - (first_end - late) * fair
    ends = solve_shared(senders([0, late], [SIZE, SIZE]), COSTS).rank_end_ns
    assert ends[0] == pytest.approx(first_end, abs=2)
    assert ends[1] == pytest.approx(first_end + second_left / rate, abs=3)


def test_a_small_transfer_leaves_early_and_the_large_one_speeds_up_again():
    small, large = 2**24, 2**28
    rate = large / price(large)
    fair = CAPACITY / 2
    ends = solve_shared(senders([0, 0], [small, large]), COSTS).rank_end_ns
    wanted = small / price(small)  # the small one may want less than its half; the large one takes the rest
    pace = min(wanted, fair)
    small_end = small / pace
    large_pace = min(rate, CAPACITY - pace)
    assert ends[0] == pytest.approx(small_end, abs=2)
    assert ends[1] == pytest.approx(small_end + (large - small_end * large_pace) / rate, rel=1e-6)


def test_transfers_on_other_hosts_do_not_touch_each_other():
    builder = GraphBuilder("apart")
    send, receive = builder.program(), builder.program()
    send.send("pp", SIZE, peer=1)
    receive.recv("pp", SIZE, peer=0)
    builder.ranks(np.arange(4), [0, 1, 0, 1], [0, 1, 2, 3], [0, 0, 0, 0])
    builder.groups("pp", [[0, 1], [2, 3]])
    assert solve_shared(builder.build(), COSTS).total_ns == price(SIZE)


def test_two_collectives_of_different_groups_slow_each_other_on_shared_nics():
    builder = GraphBuilder("rings")
    program = builder.program()
    program.all_reduce("dp", SIZE)
    builder.ranks(np.arange(4), [0] * 4, [0, 0, 1, 1], [0, 1, 0, 1])
    builder.groups("dp", [[0, 2], [1, 3]])
    graph = builder.build()
    alone, shared = solve(graph, COSTS).total_ns, solve_shared(graph, COSTS).total_ns
    # A ring of two hosts sends its buffer once in each direction: two rings want twice that.
    assert shared == pytest.approx(max(alone, 2 * SIZE / CAPACITY), rel=1e-6)
    assert shared > 1.5 * alone


@settings(max_examples=12, deadline=None)
@given(meshes)
def test_inside_one_host_nothing_is_shared_and_all_times_agree(mesh: Mesh):
    graph = build_mesh(mesh, gpus_per_host=256)
    costs = ClusterCosts(Cluster(name="one", num_hosts=1, gpus_per_host=256, nics=Nics(count=1)))
    slow = [Slowdown(target="rank", id=0, speed=0.5, start_ns=10, end_ns=10**6)]
    plain = solve(graph, costs, SolveConfig(fold=False, note_ops=True, slowdowns=slow))
    shared = solve_shared(graph, costs, SolveConfig(note_ops=True, slowdowns=slow))
    np.testing.assert_array_equal(shared.state.times, plain.state.times)
    np.testing.assert_array_equal(shared.step_ns, plain.step_ns)


@settings(max_examples=12, deadline=None)
@given(meshes)
def test_sharing_never_makes_a_job_that_uses_the_network_faster(mesh: Mesh):
    graph = build_mesh(mesh, gpus_per_host=2)
    costs = ClusterCosts(Cluster(name="many", num_hosts=64, gpus_per_host=2, nics=Nics(count=1)))
    shared = solve_shared(graph, costs, SolveConfig(note_ops=True))
    assert shared.total_ns >= solve(graph, costs).total_ns - 100  # each change of pace rounds to a nanosecond
    assert find_critical_path(shared)["end_ns"][-1] == shared.total_ns


def test_what_sharing_cannot_do_is_refused():
    graph = senders([0], [8])
    with pytest.raises(InputError, match="without jitter and eager"):
        solve_shared(graph, COSTS, SolveConfig(jitter=Jitter(compute_sigma=0.1)))
    from prism.simulate.what_if.changes import Plan
    from prism.simulate.what_if.comparison import solve_plan

    with pytest.raises(InputError, match="give --cluster"):
        solve_plan(Plan(graph=graph, config=SolveConfig(note_ops=True)), LinearCosts(), contention=True)
