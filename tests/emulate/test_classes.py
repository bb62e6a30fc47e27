"""From captured groups and calls to families, classes and the graph of all ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from captured import capture, entry, mesh
from hypothesis import given
from hypothesis import strategies as st

from prism.emulate.capture import Capture, CapturedGroup, cut_all
from prism.emulate.classes import Classes, choose_ranks, find_classes
from prism.emulate.families import find_families
from prism.emulate.stitch import StitchConfig, stitch
from prism.errors import GraphError, PrismError
from prism.simulate.solving.pricing import LinearCosts
from prism.simulate.solving.solver import SolveConfig, solve

CONFIG = StitchConfig(warmup=1, gpus_per_node=4, overlap=False)


@given(st.sampled_from([(8, 1, 2), (8, 2, 4), (16, 4, 2), (24, 2, 3)]))
def test_groups_that_only_members_made_are_completed_by_moving_them(shape: tuple[int, int, int]) -> None:
    world, stride, size = shape
    everywhere = mesh(world, "dp", stride, size, 1)
    own = [group for group in everywhere if 0 in group.ranks]
    seen = find_families([capture(0, world, [entry("barrier", group="0", op=0)], groups=own)])
    family = next(f for f in seen.families if f.slot == "dp")
    assert sorted(family.groups) == sorted(group.ranks for group in everywhere)


def test_groups_made_in_one_loop_fall_into_their_own_families() -> None:
    groups = [
        *mesh(8, "pp", 4, 2, 1),
        CapturedGroup("90", "EMBEDDING_GROUP", "train.py:9", (0, 4)),
        CapturedGroup("91", "EMBEDDING_GROUP", "train.py:9", (1, 5)),
    ]
    found = find_families([capture(0, 8, [entry("barrier", group="0", op=0)], groups=groups)])
    assert {f.slot: f.kind for f in found.families} == {"world": "dp", "pp": "pp", "embedding_group": "embedding"}
    assert len(found.by_name["90"].groups) == 2


def test_one_captured_rank_stands_for_all_if_no_rank_differs() -> None:
    one = capture(0, 6, [entry("all_reduce", group="0", bytes=400, op=0)])
    classes = _classes({0: one}, 6)
    assert classes.of_rank == (0,) * 6
    assert choose_ranks(classes, check=True, at_once=0) == [0, 5]
    assert choose_ranks(classes, check=False, at_once=4) == [0, 1, 2, 3]
    assert choose_ranks(classes, check=False, at_once=8) == list(range(6))


def _pipeline(world: int = 4) -> dict[int, object]:
    groups = mesh(world, "pp", 2, 2, 1)
    send = [
        entry("send", group="1", bytes=64, op=0, peer=1, gap_ns=1000),
        entry("recv", group="1", bytes=64, op=1, peer=1),
    ]
    recv = [
        entry("recv", group="1", bytes=64, op=0, peer=0),
        entry("send", group="1", bytes=64, op=1, peer=0, gap_ns=3000),
    ]
    return {0: capture(0, world, send, groups=groups), 2: capture(2, world, recv, groups=groups)}


def test_stages_of_a_pipeline_are_classes_and_their_replicas_follow() -> None:
    captures = _pipeline()
    classes = _classes(captures, 4)
    assert classes.of_rank == (0, 0, 1, 1)
    assert classes.twins([0, 2, 3]) == (0, 0, 2, 3)


def test_a_ring_is_one_class() -> None:
    groups = mesh(4, "cp", 1, 4, 1)

    def ring(rank: int) -> object:
        there, here = (rank + 1) % 4, (rank - 1) % 4
        calls = [
            entry("send", group="1", bytes=64, op=0, peer=there, batch=0),
            entry("recv", group="1", bytes=64, op=1, peer=here, batch=0),
        ]
        return capture(rank, 4, calls, groups=groups)

    captures = {rank: ring(rank) for rank in (0, 1)}
    classes = _classes(captures, 4)
    assert classes.of_rank == (0, 0, 0, 0)
    stitched = stitch(captures, CONFIG)
    assert solve(stitched.graph, LinearCosts(), SolveConfig(eager_bytes=1 << 40)).total_ns > 0


def test_the_stitched_pipeline_takes_compute_and_transfers_in_turn() -> None:
    stitched = stitch(_pipeline(), CONFIG)
    costs = LinearCosts(latency_ns=100, bytes_per_ns=64.0)
    solution = solve(stitched.graph, costs, SolveConfig(eager_bytes=1 << 40))
    assert stitched.graph.num_ranks == 4
    # 1000 on the first stage, 3000 on the second, and a message of 101 ns each way.
    assert solution.step_ns[-1] == 1000 + 3000 + 2 * 101


def test_a_rank_that_calls_more_than_its_twin_would_hang_on_a_cluster() -> None:
    shared = entry("all_reduce", group="0", bytes=400, op=1, source="train.py:7")
    special = [entry("barrier", group="0", op=0, source="train.py:6"), shared]
    captures = {0: capture(0, 8, special), 7: capture(7, 8, [shared])}
    stitched = stitch(captures, CONFIG)
    with pytest.raises(GraphError, match=r"rank 0 waits in barrier #0 of group world-0 \(train.py:6\); rank 1"):
        solve(stitched.graph, LinearCosts())


def test_an_unexplained_rank_asks_for_its_own_capture() -> None:
    groups = mesh(4, "pp", 1, 4, 1)
    first = capture(0, 4, [entry("send", group="1", bytes=64, op=0, peer=1)], groups=groups)
    second = capture(1, 4, [entry("recv", group="1", bytes=64, op=0, peer=0)], groups=groups)
    classes = _classes({0: first, 1: second}, 4)
    assert classes.of_rank[:2] == (0, 1)
    assert classes.unproved == (3,)


def test_one_group_per_stage_made_in_a_loop_tells_stages_apart() -> None:
    loop = [CapturedGroup(str(1 + s), "", "train.py:2", (2 * s, 2 * s + 1)) for s in range(4)]
    calls = {
        0: [entry("send", group="0", bytes=64, op=0, peer=2)],
        2: [entry("recv", group="0", bytes=64, op=0, peer=0), entry("send", group="0", bytes=64, op=1, peer=4)],
        4: [entry("recv", group="0", bytes=64, op=0, peer=2), entry("send", group="0", bytes=64, op=1, peer=6)],
        6: [entry("recv", group="0", bytes=64, op=0, peer=4)],
    }
    classes = _classes({r: capture(r, 8, made, groups=loop) for r, made in calls.items()}, 8)
    assert classes.of_rank == (0, 0, 1, 1, 1, 1, 2, 2)
    assert classes.unproved == ()


def test_a_server_of_parameters_and_its_workers_are_two_classes_that_meet() -> None:
    server = [entry("recv", group="0", bytes=8, op=r, peer=r) for r in (1, 2, 3)]
    captures = {0: capture(0, 4, server)}
    captures |= {r: capture(r, 4, [entry("send", group="0", bytes=8, op=0, peer=0)]) for r in (1, 2, 3)}
    stitched = stitch({0: captures[0], 1: captures[1]}, CONFIG, survey=captures)
    assert stitched.classes.of_rank == (0, 1, 1, 1)
    solve(stitched.graph, LinearCosts(latency_ns=10), SolveConfig(eager_bytes=1 << 40))


def test_ranks_that_differ_in_their_peers_alone_share_their_times() -> None:
    def swap(rank: int) -> object:
        peer = rank ^ 1
        calls = [entry("send", group="0", bytes=8, op=0, peer=peer), entry("recv", group="0", bytes=8, op=1, peer=peer)]
        return capture(rank, 4, calls)

    everyone = {r: swap(r) for r in range(4)}
    stitched = stitch({0: everyone[0]}, CONFIG, survey=everyone)
    assert len(stitched.classes.kinds()) == 1
    solve(stitched.graph, LinearCosts(latency_ns=10), SolveConfig(eager_bytes=1 << 40))


def test_some_ranks_of_a_butterfly_tell_the_peers_of_all() -> None:
    def exchange(rank: int) -> Capture:
        peers = [rank ^ bit for bit in (1, 2, 4, 8)]
        return capture(
            rank, 16, [entry(what, group="0", bytes=8, op=0, peer=p) for p in peers for what in ("send", "recv")]
        )

    stitched = stitch({0: exchange(0)}, CONFIG, survey={r: exchange(r) for r in (0, 5, 15)})
    assert len(stitched.classes.kinds()) == 1 and not stitched.classes.unproved
    solve(stitched.graph, LinearCosts(latency_ns=10), SolveConfig(eager_bytes=1 << 40))


def test_a_message_named_by_position_at_one_end_and_by_distance_at_the_other_arrives() -> None:
    def stage(rank: int) -> object:
        receive = [entry("recv", group="0", bytes=8, op=0, peer=rank - 1)] if rank > 0 else []
        send = [entry("send", group="0", bytes=8, op=1, peer=rank + 1)] if rank < 3 else []
        return capture(rank, 4, [*receive, *send])

    everyone = {r: stage(r) for r in range(4)}
    stitched = stitch({r: everyone[r] for r in (0, 1, 3)}, CONFIG, survey=everyone)
    assert stitched.classes.of_rank == (0, 1, 1, 2)
    # The first stage is alone in its class and names position 1; the two in the middle name who is one before them.
    assert stitched.classes.by_peer == (frozenset({"world"}), frozenset(), frozenset({"world"}))
    solve(stitched.graph, LinearCosts(latency_ns=10), SolveConfig(eager_bytes=1 << 40))


def test_messages_of_different_tags_do_not_wait_for_each_other() -> None:
    there = [entry("send", group="0", bytes=n, op=t, peer=1, tag=t) for t, n in ((1, 8), (2, 16))]
    here = [entry("recv", group="0", bytes=n, op=t, peer=0, tag=t) for t, n in ((2, 16), (1, 8))]
    stitched = stitch({0: capture(0, 2, there), 1: capture(1, 2, here)}, CONFIG)
    solve(stitched.graph, LinearCosts(latency_ns=10), SolveConfig(eager_bytes=1 << 40))


def test_iterations_need_not_be_alike() -> None:
    plain = [entry("all_reduce", group="0", bytes=4, op=0, source="a.py:1", gap_ns=100), entry("step")]
    logs = [*plain[:1], entry("broadcast", group="0", bytes=4, op=1, peer=0, source="a.py:2", gap_ns=50), entry("step")]
    changing = replace(capture(0, 2, [], times=0), entries=(*plain, *logs, *plain, *logs, *plain))
    stitched = stitch({0: changing}, CONFIG)
    solution = solve(stitched.graph, LinearCosts(latency_ns=10, bytes_per_ns=1e9))
    assert solution.step_ns.tolist() == [170, 110, 170, 110]
    assert stitched.iteration_signs == (0, 1, 0, 1)
    assert set(stitched.iteration_sources) == {"", "a.py:2"} or set(stitched.iteration_sources) == {""}


def test_without_an_optimizer_an_iteration_begins_at_its_backward_pass() -> None:
    calls = [entry("backward"), *(entry("all_reduce", group="0", bytes=n, op=0) for n in (4, 8, 4, 8))]
    parts = cut_all({0: replace(capture(0, 2, [], times=0), entries=tuple(calls * 4))})[0]
    assert [[e.bytes for e in part if e.is_communication] for part in parts] == [[4, 8, 4, 8]] * 3


def test_without_optimizer_and_backward_iterations_are_found_by_their_pattern() -> None:
    calls = [entry("all_reduce", group="0", bytes=n, op=i) for i, n in enumerate([99, *[4, 8] * 5])]
    parts = cut_all({0: replace(capture(0, 2, [], times=0), entries=tuple(calls))})[0]
    assert [[e.bytes for e in part] for part in parts] == [[4, 8]] * 4


@pytest.mark.parametrize(
    ("sizes", "found"),
    [([99, *[4] * 6, 2], [4] * 5), ([4, 7, 3, 9, 5], [7, 3, 9, 5])],
    ids=["a smaller last batch", "sizes that follow the data"],
)
def test_a_pattern_may_be_followed_by_other_calls(sizes: list[int], found: list[int]) -> None:
    calls = [entry("gather", group="0", bytes=n, op=i, source="serve.py:9") for i, n in enumerate(sizes)]
    calls.append(entry("barrier", group="0", op=len(sizes), source="serve.py:12"))
    parts = cut_all({0: replace(capture(0, 2, [], times=0), entries=tuple(calls))})[0]
    assert [[e.bytes for e in part] for part in parts] == [[n] for n in found]


def test_a_rank_without_an_optimizer_has_the_iterations_of_its_peers() -> None:
    trainer = capture(0, 2, [entry("send", group="0", bytes=8, op=0, peer=1)])
    evaluator = replace(
        capture(1, 2, [], times=0), entries=tuple([entry("recv", group="0", bytes=8, op=0, peer=0, gap_ns=7)] * 3)
    )
    assert [len(part) for part in cut_all({0: trainer, 1: evaluator})[1]] == [1, 1, 1]


def test_a_log_without_collectives_says_so() -> None:
    with pytest.raises(PrismError, match="never called a collective"):
        cut_all({0: capture(0, 2, [entry("step")])})


def _classes(captures: dict[int, object], world: int) -> Classes:
    streams = {rank: [e for part in parts for e in part] for rank, parts in cut_all(captures).items()}
    return find_classes(streams, find_families(captures.values()), world)


def test_every_measured_rank_keeps_its_own_times() -> None:
    def job(rank: int, gap: int) -> object:
        return capture(rank, 2, [entry("all_reduce", group="0", bytes=400, op=0, gap_ns=gap)])

    stitched = stitch({0: job(0, 1000), 1: job(1, 5000)}, CONFIG)
    solution = solve(stitched.graph, LinearCosts(latency_ns=10, bytes_per_ns=1e9))
    assert solution.step_ns[-1] == 5010


def test_classes_use_the_median_of_their_captured_members() -> None:
    def job(rank: int, gap: int) -> object:
        return capture(rank, 9, [entry("all_reduce", group="0", bytes=400, op=0, gap_ns=gap)])

    stitched = stitch({0: job(0, 1000), 4: job(4, 1200), 8: job(8, 9000)}, CONFIG)
    solution = solve(stitched.graph, LinearCosts(latency_ns=10, bytes_per_ns=1e9, network_bytes_per_ns=1e9))
    assert solution.step_ns[-1] == 1210
    assert stitched.compute_spread_pct > 50


def test_a_rank_that_works_longer_than_its_class_keeps_its_own_times() -> None:
    def job(rank: int, gap: int) -> object:
        return capture(rank, 9, [entry("all_reduce", group="0", bytes=400, op=0, gap_ns=gap)])

    stitched = stitch({0: job(0, 17_000_000), 4: job(4, 3_000_000), 8: job(8, 3_100_000)}, CONFIG)
    solution = solve(stitched.graph, LinearCosts(latency_ns=10, bytes_per_ns=1e9, network_bytes_per_ns=1e9))
    assert solution.step_ns[-1] == 17_000_010
    assert stitched.asymmetry and "rank 0 works 17.00 ms" in stitched.asymmetry[0]


@pytest.mark.parametrize("overlap", [True, False])
def test_asynchronous_ops_overlap_only_where_cores_are_spare(overlap: bool) -> None:
    calls = [
        entry("all_reduce", group="0", bytes=1000, op=0, gap_ns=500, lane=-1),
        entry("wait", op=0, gap_ns=2000),
    ]
    stitched = stitch({0: capture(0, 2, calls)}, StitchConfig(warmup=1, overlap=overlap))
    solution = solve(stitched.graph, LinearCosts(latency_ns=1000, bytes_per_ns=1e9))
    assert solution.step_ns[-1] == (2500 if overlap else 3500)


@pytest.mark.parametrize(("num_distances", "surveyed", "kept"), [(3, 5, 10), (7, 5, 7), (3, 2, 4)])
def test_partners_that_change_from_step_to_step_are_those_of_the_survey(
    num_distances: int, surveyed: int, kept: int
) -> None:
    distances = (1, 2, 4, 8, 16, 32, 64)[:num_distances]

    def gossip(rank: int, steps: int) -> Capture:
        calls = []
        for step in range(steps):
            peer = rank ^ distances[step % len(distances)]
            calls += [entry(what, group="0", bytes=8, op=2 * step, peer=peer) for what in ("send", "recv")]
            calls.append(entry("step"))
        return replace(capture(rank, 128, [], times=0), entries=tuple(calls))

    everyone = {r: gossip(r, surveyed) for r in range(128)}
    stitched = stitch({r: gossip(r, 11) for r in (0, 127)}, CONFIG, survey=everyone)
    # Iterations whose partners nobody else has shown are left out.
    assert stitched.num_iterations == kept
    solve(stitched.graph, LinearCosts(latency_ns=10), SolveConfig(eager_bytes=1 << 40))


def test_a_survey_of_the_first_iteration_alone_does_not_shorten_a_pipeline() -> None:
    def stage(rank: int, steps: int) -> Capture:
        first = [entry("send" if rank < 2 else "recv", group="0", bytes=4, op=0, peer=(rank + 2) % 4), entry("step")]
        plain = [replace(first[0], bytes=8), entry("step")]
        return replace(capture(rank, 4, [], times=0), entries=(*first, *plain * (steps - 1)))

    captures = {r: stage(r, 5) for r in (0, 2)}
    stitched = stitch(captures, CONFIG, survey={r: stage(r, 1) for r in range(4)})
    assert stitched.num_iterations == 4


def test_what_a_player_sends_after_its_learner_was_stopped_belongs_to_no_iteration_of_both() -> None:
    receive = [entry("recv", group="0", bytes=8, op=0, peer=1), entry("step")]
    learner = replace(capture(0, 2, [], times=0), entries=tuple(receive * 4))
    player = replace(capture(1, 2, [], times=0), entries=(entry("send", group="0", bytes=8, op=0, peer=0),) * 5)
    stitched = stitch({0: learner, 1: player}, CONFIG)
    assert stitched.num_iterations == 3
    solve(stitched.graph, LinearCosts(latency_ns=10), SolveConfig(eager_bytes=1 << 40))
