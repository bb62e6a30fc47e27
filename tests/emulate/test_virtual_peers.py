"""Virtual peers in the solver: they wait for live ranks, and live ranks for them."""

from __future__ import annotations

import threading

import pytest
from captured import capture, entry, mesh

from prism.emulate.capture import CapturedEntry
from prism.emulate.inside.plan import FaultPlan
from prism.emulate.slow_peers import slow_down
from prism.emulate.stitch import StitchConfig, Stitched, stitch
from prism.emulate.virtual_peers import NOT_HELD, VirtualPeers
from prism.errors import GraphError
from prism.simulate.graph import repeat_graph
from prism.simulate.solving.pricing import LinearCosts
from prism.simulate.solving.solver import solve
from prism.simulate.verification import verify

COSTS = LinearCosts(latency_ns=100, bytes_per_ns=1.0)  # an all-reduce of 900 bytes takes 1,000 ns and a little
WORK_NS = 5_000


def _ddp(world: int = 4) -> Stitched:
    """Ranks that compute 5 microseconds, then all-reduce."""
    step = [entry("all_reduce", group="0", bytes=900, op=0, gap_ns=WORK_NS)]
    return stitch({0: capture(0, world, step)}, StitchConfig(warmup=1, gpus_per_node=4, overlap=False))


def _durations(peers: VirtualPeers, rank: int, arrivals_ns: list[int]) -> list[int]:
    zero = peers.begin(rank)
    out = []
    for arrival in arrivals_ns:
        due = peers.due_ns(peers.issue(rank, "all_reduce", "0", -1, zero + arrival))
        assert due is not None
        out.append(due - zero)
    return out


def test_an_early_live_rank_waits_for_its_peers_and_a_late_one_delays_them() -> None:
    stitched = _ddp()
    transfer = solve(stitched.graph, COSTS).step_ns[0] - WORK_NS
    first, second = _durations(VirtualPeers(stitched, COSTS, [0], num_steps=2), 0, [0, 50_000])
    assert first == WORK_NS + transfer  # its peers came later
    assert second == 50_000 + transfer  # they waited for it


def test_calls_that_the_captured_program_did_not_have_are_not_held() -> None:
    peers = VirtualPeers(_ddp(), COSTS, [0], num_steps=2)
    zero = peers.begin(0)
    assert peers.issue(0, "broadcast", "0", 0, zero) == NOT_HELD
    assert peers.issue(0, "all_reduce", "absent", -1, zero) == NOT_HELD
    assert peers.issue(0, "all_reduce", "0", -1, zero) != NOT_HELD


def test_live_ranks_start_together_and_wait_for_each_other() -> None:
    peers = VirtualPeers(_ddp(), COSTS, [0, 2], num_steps=2)
    found: list[list[int]] = []
    other = threading.Thread(target=lambda: found.append(_durations(peers, 2, [70_000])))
    other.start()
    assert _durations(peers, 0, [0])[0] > 70_000
    other.join()
    assert found[0][0] > 70_000


def test_a_peer_gets_slow_at_its_step_and_not_before() -> None:
    stitched = _ddp()
    graph = repeat_graph(stitched.graph, 2)
    plain = solve(graph, COSTS).step_ns
    slow = solve(slow_down(graph, [FaultPlan(kind="slow", rank=2, step=3, factor=10)]), COSTS).step_ns
    assert list(slow[:2]) == list(plain[:2])
    assert list(slow[2:]) == [step + 9 * WORK_NS for step in plain[2:]]
    assert slow_down(graph, [FaultPlan(kind="hang", rank=2, step=3)]) is graph


def test_messages_that_leave_without_their_receiver_do_not_hang() -> None:
    groups = mesh(2, "pp", 1, 2, 1)

    def crossing(rank: int) -> list[CapturedEntry]:
        return [entry(what, group="1", bytes=64, op=i, peer=1 - rank) for i, what in enumerate(("send", "recv"))]

    captures = {rank: capture(rank, 2, crossing(rank), groups=groups) for rank in (0, 1)}
    graph = stitch(captures, StitchConfig(warmup=1, overlap=False)).graph
    verify(graph, eager_bytes=64)
    with pytest.raises(GraphError, match="waits in send"):
        verify(graph)


def test_a_live_rank_that_never_arrives_does_not_hold_the_other_forever() -> None:
    peers = VirtualPeers(_ddp(), COSTS, [0, 2], num_steps=2, timeout_s=0.05)
    zero = peers.begin(0)
    assert peers.due_ns(peers.issue(0, "all_reduce", "0", -1, zero)) is None
