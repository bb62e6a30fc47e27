"""Who waits for whom with gloo: a send ends when its receiver takes it, and messages do not hold each other up.

Each pattern was run under torchrun with gloo: those that are to hang do, the others do not.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from captured import capture, entry

from prism.emulate.capture import CapturedEntry, CapturedGroup, cut_all
from prism.emulate.comparing import CallsDifferError
from prism.emulate.ordering import check_order


def _wait(op: int) -> CapturedEntry:
    return entry("wait", op=op)


def _message(what: str, peer: int, op: int, *, tag: int = 0, batch: int = -1) -> CapturedEntry:
    return entry(what, group="0", bytes=64, op=op, peer=peer, lane=-1, tag=tag, batch=batch)


def _blocking(what: str, peer: int, op: int) -> list[CapturedEntry]:
    return [_message(what, peer, op), _wait(op)]


def _verify(*ranks: list[CapturedEntry]) -> None:
    check_order({rank: capture(rank, len(ranks), calls) for rank, calls in enumerate(ranks)})


def test_two_ranks_that_send_before_they_receive_hang() -> None:
    with pytest.raises(CallsDifferError, match=r"rank [01] waits in send"):
        _verify(*([*_blocking("send", 1 - rank, 0), *_blocking("recv", 1 - rank, 1)] for rank in (0, 1)))


def test_a_ring_of_blocking_sends_hangs() -> None:
    with pytest.raises(CallsDifferError, match="waits in send"):
        _verify(*([*_blocking("send", (r + 1) % 4, 0), *_blocking("recv", (r - 1) % 4, 1)] for r in range(4)))


@pytest.mark.parametrize("first", ["send", "recv"])
def test_asynchronous_messages_in_either_order_do_not(first: str) -> None:
    second = "recv" if first == "send" else "send"
    _verify(*([_message(first, 1 - r, 0), _message(second, 1 - r, 1), _wait(0), _wait(1)] for r in (0, 1)))


def test_a_receive_that_was_asked_for_before_a_blocking_send_does_not() -> None:
    _verify(*([_message("recv", 1 - r, 0), *_blocking("send", 1 - r, 1), _wait(0)] for r in (0, 1)))


def test_batches_of_messages_in_unlike_orders_do_not() -> None:
    one = [_message("send", 1, 0, batch=0), _message("recv", 1, 1, batch=0), _wait(0), _wait(1)]
    two = [_message("recv", 0, 0, batch=0), _message("send", 0, 1, batch=0), _wait(0), _wait(1)]
    _verify(one, two)


def test_tags_received_in_another_order_than_sent_do_not() -> None:
    one = [_message("send", 1, 0, tag=1), _message("send", 1, 1, tag=2), _wait(0), _wait(1)]
    two = [_message("recv", 0, 0, tag=2), _wait(0), _message("recv", 0, 1, tag=1), _wait(1)]
    _verify(one, two)


def test_a_message_may_be_under_way_while_its_ranks_meet_in_a_collective() -> None:
    meet = [entry("all_reduce", group="0", bytes=64, op=1), _wait(1)]
    _verify([_message("send", 1, 0), *meet, _wait(0)], [*meet, *_blocking("recv", 0, 0)])


def test_a_blocking_send_before_a_collective_that_comes_before_the_receive_hangs() -> None:
    meet = [entry("all_reduce", group="0", bytes=64, op=1), _wait(1)]
    with pytest.raises(CallsDifferError, match="waits in"):
        _verify([*_blocking("send", 1, 0), *meet], [*meet, *_blocking("recv", 0, 0)])


def test_a_parameter_server_whose_step_lies_between_its_messages_does_not() -> None:
    step = entry("step")
    server = [*_blocking("recv", 1, 0), step, *_blocking("send", 1, 1)] * 3
    worker = [*_blocking("send", 0, 0), *_blocking("recv", 0, 1), step] * 3
    logs = {0: tuple(server[:-2]), 1: tuple(worker)}  # the server was stopped at its last step
    check_order({rank: replace(capture(rank, 2, [], times=0), entries=log) for rank, log in logs.items()})


def test_a_cycle_is_described_by_ranks_peers_and_lines() -> None:
    with pytest.raises(CallsDifferError) as raised:
        _verify(*([*_blocking("send", 1 - rank, 0), *_blocking("recv", 1 - rank, 1)] for rank in (0, 1)))
    assert str(raised.value) == (
        "this would hang on a cluster: rank 0 waits in send of 64 bytes to rank 1 (train.py:1); rank 1 waits in send of "
        "64 bytes to rank 0 (train.py:1); each waits for the next"
    )


def test_ranks_that_only_wait_for_the_cycle_are_not_named() -> None:
    first = _blocking("recv", 1, 0)
    circle = [[*_blocking("send", 3 - rank, 0), *_blocking("recv", 3 - rank, 1)] for rank in (1, 2)]
    with pytest.raises(CallsDifferError) as raised:
        _verify(first, *circle)
    assert "rank 1 waits in send" in str(raised.value) and "rank 0 waits" not in str(raised.value)


def test_a_call_of_another_thread_blocks_no_rank() -> None:
    train = entry("all_reduce", group="0", bytes=64, op=0)
    save = entry("all_gather", group="1", bytes=8, op=1, stream=1)
    saving = CapturedGroup("1", "saving", "train.py:2", ())
    orders = ([train, save], [save, train])  # when the thread comes to its call is a race
    captures = {rank: capture(rank, 2, calls, groups=[saving]) for rank, calls in enumerate(orders)}
    check_order(captures)
    assert all(len(parts) == 3 and len(parts[0]) == 2 for parts in cut_all(captures).values())


def test_a_main_thread_that_makes_those_calls_in_another_order_hangs() -> None:
    train, save = (entry("all_reduce", group=group, bytes=64, op=int(group)) for group in "01")
    group = CapturedGroup("1", "saving", "train.py:2", ())
    with pytest.raises(CallsDifferError, match="each waits for the next"):
        check_order({r: capture(r, 2, calls, groups=[group]) for r, calls in enumerate(([train, save], [save, train]))})
