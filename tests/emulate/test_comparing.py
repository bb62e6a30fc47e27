"""Calls that do not meet are named with the rank that differs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from captured import capture, entry

from prism.emulate.capture import Capture, CapturedGroup
from prism.emulate.comparing import CallsDifferError, check_calls

REDUCE = entry("all_reduce", group="0", bytes=400, op=0, source="train.py:7")


def test_ranks_that_call_alike_pass() -> None:
    check_calls({r: capture(r, 4, [REDUCE]) for r in range(4)})


def test_the_odd_rank_in_the_middle_is_named() -> None:
    extra = [REDUCE, entry("barrier", group="0", op=1, source="train.py:9")]
    captures = {r: capture(r, 8, extra if r == 5 else [REDUCE]) for r in range(8)}
    with pytest.raises(
        CallsDifferError, match=r"rank 5 calls barrier \(train.py:9\) where ranks 0, 1, 2, 3 and 3 more"
    ):
        check_calls(captures)


def test_another_size_and_another_root_are_named() -> None:
    twice = replace(REDUCE, bytes=800)
    with pytest.raises(CallsDifferError, match=r"rank 2 calls all_reduce of 800 bytes .* call all_reduce of 400 bytes"):
        check_calls({r: capture(r, 4, [twice if r == 2 else REDUCE]) for r in range(4)})

    def send_out(root: int) -> list[object]:
        return [entry("broadcast", group="0", bytes=8, op=0, peer=root)]

    with pytest.raises(CallsDifferError, match="rank 3 calls broadcast of 8 bytes with root 2"):
        check_calls({r: capture(r, 4, send_out(2 if r == 3 else 0)) for r in range(4)})


def test_another_type_of_elements_and_another_reduction_are_named() -> None:
    halves = replace(REDUCE, values="bfloat16 SUM")
    for other in ("float16 SUM", "bfloat16 MAX"):
        captures = {r: capture(r, 4, [replace(halves, values=other) if r == 2 else halves]) for r in range(4)}
        with pytest.raises(
            CallsDifferError, match=f"wrong values.* rank 2 calls all_reduce of {other}.* ranks 0, 1, 3"
        ):
            check_calls(captures)


def test_single_bytes_may_be_a_view_of_other_elements() -> None:
    numbers = entry("broadcast", group="0", bytes=400, op=0, peer=0)
    captures = {r: capture(r, 4, [numbers if r == 2 else replace(numbers, values="int64")]) for r in range(4)}
    check_calls(captures)


def test_a_rank_that_skips_a_call_in_every_step_is_named() -> None:
    captures = {r: capture(r, 4, [REDUCE] if r == 1 else [REDUCE, REDUCE]) for r in range(4)}
    with pytest.raises(CallsDifferError, match="rank 1 never calls all_reduce of 400 bytes #3"):
        check_calls(captures)


def test_a_rank_that_was_stopped_a_little_earlier_is_no_fault() -> None:
    captures = {r: capture(r, 4, [REDUCE]) for r in range(4)}
    captures[2] = replace(captures[2], entries=captures[2].entries[:-2])
    check_calls(captures)


def test_a_group_that_only_some_ranks_make_is_named() -> None:
    pair = CapturedGroup("1", "undefined", "train.py:3", (0, 1))
    captures = {r: capture(r, 4, [REDUCE], groups=[pair] if r != 3 else []) for r in range(4)}
    with pytest.raises(CallsDifferError, match="rank 3 does not make the group of ranks 0, 1"):
        check_calls(captures)
    own = replace(pair, name="a1b2c3")  # c10d hashes the names of groups that only their members make
    check_calls({r: capture(r, 4, [REDUCE], groups=[own] if r < 2 else []) for r in range(4)})


def test_a_rank_that_makes_other_groups_is_named_though_all_ranks_then_wait() -> None:
    pairs = [CapturedGroup("1", "", "train.py:3", (0, 2)), CapturedGroup("2", "", "train.py:3", (1, 3))]
    whole = CapturedGroup("1", "", "train.py:3", (0, 1, 2, 3))
    captures = {r: capture(r, 4, [REDUCE], groups=[whole] if r == 3 else pairs) for r in range(4)}
    with pytest.raises(CallsDifferError, match=r"rank 3 makes a group of ranks 0, 1, 2, 3 \(train.py:3\)"):
        check_calls({r: replace(c, status="hung") for r, c in captures.items()})


def test_a_call_that_others_were_stopped_before_is_compared_with_what_they_call_instead() -> None:
    captures = {r: capture(r, 4, [REDUCE]) for r in range(4)}
    extra = entry("all_reduce", group="0", bytes=4, source="train.py:5")
    captures[2] = replace(captures[2], entries=captures[2].entries[:2], unmet=(extra,))
    with pytest.raises(CallsDifferError, match=r"rank 2 calls all_reduce of 4 bytes \(train.py:5\)"):
        check_calls(captures)


def _message(rank: int, what: str, peer: int, size: int = 8, tag: int = 0) -> Capture:
    return capture(rank, 2, [entry(what, group="0", bytes=size, op=0, peer=peer, tag=tag)])


def test_messages_match_by_source_target_and_tag() -> None:
    check_calls({0: _message(0, "send", 1, tag=3), 1: _message(1, "recv", 0, tag=3)})
    with pytest.raises(CallsDifferError, match="rank 0 sends 8 bytes .* to rank 1, which expects 16 bytes"):
        check_calls({0: _message(0, "send", 1), 1: _message(1, "recv", 0, size=16)})
    with pytest.raises(CallsDifferError, match="rank 0 sends .* to rank 1 with tag 3, which makes only 0 receives"):
        check_calls({0: _message(0, "send", 1, tag=3), 1: _message(1, "recv", 0, tag=4)})


def test_a_receiver_that_ran_for_more_iterations_is_no_fault() -> None:
    sender, receiver = _message(0, "send", 1), _message(1, "recv", 0)
    longer = replace(receiver, entries=receiver.entries * 4)
    check_calls({0: sender, 1: longer})
    with pytest.raises(CallsDifferError, match="makes only 3 sends"):
        check_calls({0: replace(sender, status="ended"), 1: longer})


def _exchange(rank: int, world: int, *, capped: bool = False) -> Capture:
    """Rank r sends 8 times (r + t) % 3 bytes to rank t."""
    sends = tuple(8 * ((rank + other) % 3) for other in range(world))
    takes = sends  # the rule is symmetric
    if capped:
        sends = tuple(min(size, 8) for size in sends)
    call = replace(entry("all_to_all", group="0", bytes=sum(sends), op=0, sizes=sends), takes=takes)
    return capture(rank, world, [call])


def test_an_exchange_whose_parts_are_not_those_expected_is_named() -> None:
    check_calls({r: _exchange(r, 6) for r in range(6)})
    with pytest.raises(CallsDifferError, match=r"rank 4 and others disagree in all_to_all #0 .* 16 bytes"):
        check_calls({r: _exchange(r, 6, capped=r == 4) for r in range(6)})
