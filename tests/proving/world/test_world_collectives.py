"""Rings, trees and schedules of the made world against what NCCL and the schedules' authors say."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from proving.benchmarks.world.collectives import build_group, double_tree_parents, ring_orders, tree_parents
from proving.benchmarks.world.execution import Health, Run
from proving.benchmarks.world.fabric import FabricConfig, build_fabric
from proving.benchmarks.world.programs import ddp_buckets, transformer_parameters
from proving.benchmarks.world.schedules import (
    Compute,
    Work,
    interleaved,
    one_forward_one_backward,
    solve_order,
    zero_bubble,
)
from proving.benchmarks.world.sharing import run_alone, run_together

MB = 1024 * 1024


def make_fabric(**about):
    return build_fabric(FabricConfig(**{"num_hosts": 8, **about}), np.random.default_rng(1))


def make_run(hosts=(3, 0, 5, 2), health=None, **about):
    return Run(make_fabric(**about), list(hosts), health or Health(), np.random.default_rng(2), 0.0)


def test_every_channel_is_one_ring_over_all_ranks():
    orders = ring_orders([list(range(h * 8, h * 8 + 8)) for h in range(5)], 8)
    for order in orders:
        assert sorted(order) == list(range(40))
    assert len({order[0] for order in orders}) == 8  # each channel enters a host at a GPU of its own


def test_a_rail_ring_leaves_each_host_once_per_channel_and_stays_on_its_rail():
    run = make_run()
    ring = run.group(list(range(32)), "dp", 8).ring
    assert len(ring.src) == 4 * 8
    assert (ring.src % 8 == ring.dst % 8).all()
    assert sorted(ring.src) == sorted(ring.dst) == sorted(h * 8 + nic for h in (3, 0, 5, 2) for nic in range(8))


def test_a_group_of_one_gpu_per_host_uses_that_gpus_nic():
    run = make_run(nics_per_host=4)
    ring = run.group([5, 13, 21], "dp", 2).ring
    assert set(ring.src % 4) == {2}


def test_the_binary_tree_alternates_leaves_and_inner_nodes():
    # The tree of 14 that NCCL's source draws: odd nodes are leaves, 13 hangs from 12 because 14 is out of bounds.
    parents = tree_parents(14)
    assert parents.tolist() == [-1, 2, 4, 2, 8, 6, 4, 6, 0, 10, 12, 10, 8, 12]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 13, 16])
def test_both_trees_span_all_hosts_with_at_most_two_children(count):
    for parents in double_tree_parents(count):
        assert (parents < 0).sum() == 1
        for node in range(count):
            seen = set()
            while parents[node] >= 0:
                assert node not in seen
                seen.add(node)
                node = parents[node]
        assert np.bincount(parents[parents >= 0]).max() <= 2


@pytest.mark.parametrize("count", [4, 6, 8, 12, 16])
def test_leaves_of_one_tree_are_inner_nodes_of_the_other(count):
    first, second = double_tree_parents(count)
    inner = [set(p[p >= 0].tolist()) for p in (first, second)]
    assert len(inner[0] & inner[1]) <= 2  # only the roots' neighbours are inner nodes twice


@pytest.mark.parametrize(("operation", "turns"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)])
def test_a_ring_moves_the_bytes_that_its_algorithm_needs(operation, turns):
    run = make_run()
    group = run.group(list(range(32)), "dp", 8)
    drive(run.collective(group, operation, 800 * MB, np.zeros(32)))
    columns = run.bursts.columns()
    assert columns["payload"].sum() == pytest.approx(
        turns * 31 / 32 * 800 * MB * 4, rel=1e-6
    )  # four hops between hosts


def test_a_tree_sends_every_byte_up_and_down_each_edge():
    run = make_run()
    group = run.group(list(range(32)), "dp", 8)
    drive(run.collective(group, "all_reduce", 4 * MB, np.zeros(32)))
    assert run.bursts.columns()["payload"].sum() == pytest.approx(4 * MB * 3 * 2, rel=1e-6)


def test_a_late_rank_holds_back_all_others_and_its_own_hops_most():
    run = make_run()
    group = run.group(list(range(32)), "dp", 8)
    ready = np.zeros(32)
    ready[12] = 0.5
    ends = drive(run.collective(group, "reduce_scatter", 800 * MB, ready))
    columns = run.bursts.columns()
    assert (ends > 0.5).all()
    early = columns["start"] < 0.4
    assert early.any()
    assert columns["payload"][early].sum() < 0.5 * columns["payload"].sum()
    assert (columns["end"][~early] > 0.5).all()


def test_a_rank_that_never_comes_leaves_only_what_others_could_send():
    run = make_run()
    group = run.group(list(range(32)), "dp", 8)
    ready = np.zeros(32)
    ready[12] = np.inf
    ends = drive(run.collective(group, "all_reduce", 800 * MB, ready))
    columns = run.bursts.columns()
    assert np.isinf(ends).all()
    assert 0 < columns["payload"].sum() < 0.25 * (2 * 31 / 32 * 800 * MB * 4)
    silent = group.ring.channel[(group.ring.src_rank == 12) | (group.ring.dst_rank == 12)]
    assert len(silent) == 2  # the missing rank ends its host's part of one ring and begins that of another
    assert len(columns["start"]) == 32 - len(silent)


def test_bucket_sizes_follow_torch():
    parameters = transformer_parameters(24, 1024, 50304)
    buckets = ddp_buckets(parameters)
    assert sum(buckets) == 4 * sum(parameters)
    assert MB <= buckets[0] < 25 * MB
    assert all(size >= 25 * MB for size in buckets[1:-1])


def test_one_forward_one_backward_is_megatrons():
    names = ["".join(f"{w.name}{w.microbatch}" for w in one_forward_one_backward(s, 3, 4)) for s in range(3)]
    assert names == ["F0F1F2B0F3B1B2B3", "F0F1B0F2B1F3B2B3", "F0B0F1B1F2B2F3B3"]


def test_interleaved_warms_up_with_both_chunks():
    work = interleaved(0, 2, 4, 2)
    assert work[:4] == [Work("F", 0, 0), Work("F", 1, 0), Work("F", 0, 1), Work("F", 1, 1)]
    assert work[5] == Work("B", 0, 1)
    assert len(set(work)) == len(work) == 16


def test_zero_bubble_splits_the_backward_pass():
    for stage in range(4):
        work = zero_bubble(stage, 4, 8)
        assert len(set(work)) == len(work) == 24
        for microbatch in range(8):
            assert work.index(Work("B", microbatch)) < work.index(Work("W", microbatch))


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_work_is_solved_after_what_it_needs(stages):
    plan = solve_order([one_forward_one_backward(s, stages, 6) for s in range(stages)], 1, blocking=True)
    done, sent = set(), set()
    for item in plan:
        if isinstance(item, Compute):
            assert item.before in done | {-1}
            assert {item.arrival, item.sent} <= sent | {-1}
            done.add(item.node)
        else:
            assert {item.node, item.posted} <= done | {-1}
            sent.add(item.number)
    assert len(done) == stages * 12
    assert len(sent) == (stages - 1) * 12


def test_two_jobs_on_one_uplink_take_turns_fairly():
    ends = []

    def job(run, group):
        end = yield from run.collective(group, "all_reduce", 1000 * MB, np.zeros(16))
        ends.append(end.max())

    about = {"kind": "tree", "nics_per_host": 1, "hosts_per_leaf": 2, "shared_uplinks": True}
    runs = [make_run(hosts, **about) for hosts in ((0, 2), (1, 3))]
    jobs = [job(run, run.group(list(range(16)), "dp", 2)) for run in runs]
    run_together(jobs)
    alone = make_run((0, 2), **about)
    run_alone(job(alone, alone.group(list(range(16)), "dp", 2)))
    assert ends[0] == pytest.approx(2 * ends[2], rel=0.05)
    assert ends[1] == pytest.approx(2 * ends[2], rel=0.05)


def test_hosts_of_a_group_are_joined_in_the_order_of_ranks():
    fabric = make_fabric()
    places = [(h, g) for h in (4, 1, 6) for g in range(8)]
    group = build_group(fabric, places, list(range(24)), "dp", channels=1, number=1)
    hosts = [(int(a) // 8, int(b) // 8) for a, b in zip(group.ring.src, group.ring.dst, strict=True)]
    assert hosts == [*pairwise((4, 1, 6)), (6, 4)]


def drive(program):
    """Run one collective on links of its own."""
    try:
        claim = next(program)
        while True:
            claim = program.send(claim.begin + claim.seconds)
    except StopIteration as stop:
        return stop.value
