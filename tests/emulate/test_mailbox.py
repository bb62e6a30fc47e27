"""Who is answered what: messages, parts of collectives, keys of the store, and waits in vain."""

from __future__ import annotations

from functools import partial
from typing import Any

from prism.emulate.exchange_server import StepLimit
from prism.emulate.inside.shares import join_shares
from prism.emulate.mailbox import Mailbox, Recording, Waiting
from prism.emulate.units import find_unit, summarize


class Asking:
    """Requests of ranks, and the answers that came."""

    def __init__(self, box: Mailbox, *ranks: int) -> None:
        self.box = box
        self.answers: dict[int, Any] = {}
        for rank in ranks:
            box.started(rank)

    def wait(self, rank: int, verb: str, channel: str, members: tuple[int, ...] = (), number: int = 0) -> None:
        waiting = Waiting(
            rank, verb, channel, number, members, "a.py:1", True, lambda answer: self.answers.update({rank: answer})
        )
        {"get": self.box.get, "collect": self.box.collect, "key": self.box.get_key}[verb](waiting)


def test_a_receiver_is_answered_when_the_message_comes() -> None:
    asking = Asking(Mailbox([0, 1]), 0, 1)
    asking.wait(1, "get", "w/0>1/0", (0,))
    assert asking.answers == {} and asking.box.standing() == {1}
    asking.box.post("w/0>1/0", 0, b"x")
    assert asking.answers == {1: ("ok", b"x")}


def test_a_collective_is_complete_when_all_that_run_together_gave_their_part() -> None:
    asking = Asking(Mailbox([0, 1]), 0, 1)
    asking.box.give(0, "w/reduce", 0, b"a")
    asking.wait(0, "collect", "w/reduce", (0, 1, 2))
    assert asking.answers == {}
    asking.box.give(1, "w/reduce", 0, b"a")
    assert asking.answers == {0: ("ok", ([b"a"], [0, 0, -1]))}


def test_in_an_all_to_all_each_member_gets_its_share_of_every_part() -> None:
    earlier = Recording(parts={"w/exchange": {0: {9: join_shares([b"nine", b"", b"!"])}}})
    asking = Asking(Mailbox([0, 1], earlier), 0, 1)
    asking.box.give(0, "w/exchange", 0, join_shares([b"a", b"bb", b""]))
    for position in (0, 1):
        reply = partial(asking.answers.__setitem__, position)
        waiting = Waiting(position, "collect", "w/exchange", 0, (0, 1, 9), "a.py:1", True, reply, position=position)
        asking.box.collect(waiting)
    asking.box.give(1, "w/exchange", 0, join_shares([b"ccc", b"d", b""]))
    assert asking.answers == {0: ("ok", [b"a", b"ccc", b"nine"]), 1: ("ok", [b"bb", b"d", b""])}


def test_ranks_that_do_not_run_are_answered_for_from_an_earlier_run() -> None:
    earlier = Recording(posts={"w/9>0/0": {0: b"m"}}, parts={"w/gather": {0: {0: b"old", 9: b"nine"}}})
    asking = Asking(Mailbox([0], earlier), 0)
    asking.wait(0, "get", "w/9>0/0", (9,), number=5)  # later iterations say what earlier ones said
    assert asking.answers.pop(0) == ("ok", b"m")
    asking.box.give(0, "w/gather", 0, b"new")
    asking.wait(0, "collect", "w/gather", (0, 9))
    assert asking.answers == {0: ("ok", ([b"new", b"nine"], [0, 1]))}


def test_a_later_call_is_answered_by_the_earlier_one_that_is_most_alike() -> None:
    save = {0: {0: b"plan of 0", 9: b"plan of 9"}, 1: {0: b"wrote 0", 9: b"wrote 9"}}
    asking = Asking(Mailbox([0], Recording(parts={"w/gather object": save})), 0)
    asking.box.give(0, "w/gather object", 2, b"plan of 0, longer")
    asking.wait(0, "collect", "w/gather object", (0, 9), number=2)
    assert asking.answers == {0: ("ok", ([b"plan of 0, longer", b"plan of 9"], [0, 1]))}


def test_a_deadlock_is_one_when_every_rank_waits() -> None:
    asking = Asking(Mailbox([0, 1]), 0, 1)
    asking.wait(0, "get", "w/1>0/0", (1,))
    assert not asking.box.find_deadlock()
    asking.wait(1, "get", "w/0>1/0", (0,))
    assert asking.box.find_deadlock()
    asking.box.break_deadlock()
    assert asking.answers[0][0] == "error" and "rank 0 waits at a.py:1 for rank 1" in asking.answers[0][1]


def test_a_rank_that_waits_for_a_stopped_one_is_stopped_too() -> None:
    asking = Asking(Mailbox([0, 1]), 0, 1)
    asking.wait(0, "get", "w/1>0/0", (1,))
    asking.box.ended(1, "done")
    assert asking.answers == {0: ("over", None)}
    asking.box.started(1)
    asking.wait(0, "get", "w/1>0/0", (1,))
    asking.box.ended(1, "crashed")
    assert asking.answers[0][0] == "error" and "which has ended" in asking.answers[0][1]


def test_a_rank_that_runs_alone_ends_when_it_needs_another() -> None:
    asking = Asking(Mailbox([0], lone=True), 0)
    asking.wait(0, "get", "w/1>0/0", (1,))
    assert asking.answers == {0: ("needs", 1)}


def test_the_store_is_one_for_all_ranks_and_counters_repeat_what_they_were() -> None:
    asking = Asking(Mailbox([0, 1]), 0, 1)
    use = asking.box.use_store
    asking.wait(0, "key", "go")
    assert use(0, "add", ["n", 1]) == ("ok", 1) and use(1, "add", ["n", 1]) == ("ok", 2)
    use(1, "set", ["go", b"1"])
    assert asking.answers == {0: ("ok", b"1")}
    alone = Mailbox([1], asking.box.recording)
    assert alone.use_store(1, "add", ["n", 1]) == ("ok", 2)
    assert alone.use_store(1, "check", [["go"]]) == ("ok", True)


def test_a_rank_that_runs_without_the_others_reads_from_a_counter_what_it_read_among_them() -> None:
    asking = Asking(Mailbox([0, 1]), 0, 1)
    for step in range(2):
        asking.box.use_store(1, "add", ["samples", 16])
        asking.box.use_store(0, "add", ["samples", 16])
        asking.wait(0, "key", "samples")
        assert asking.answers.pop(0) == ("ok", str(32 * (step + 1)).encode())
    alone = Asking(Mailbox([0], asking.box.recording), 0)
    for step in range(2):
        alone.box.use_store(0, "add", ["samples", 16])
        alone.wait(0, "key", "samples")
        assert alone.answers.pop(0) == ("ok", str(32 * (step + 1)).encode())


def test_only_one_rank_is_elected_by_compare_set() -> None:
    box = Mailbox([0, 1])
    assert box.use_store(1, "compare", ["leader", b"", b"1"]) == ("ok", b"1")
    assert box.use_store(0, "compare", ["leader", b"", b"0"]) == ("ok", b"1")
    assert box.use_store(0, "compare", ["absent", b"x", b"y"]) == ("ok", b"x")
    alone = Mailbox([0], box.recording)
    assert alone.use_store(0, "compare", ["leader", b"", b"0"]) == ("ok", b"1")


def test_a_key_is_read_anew_if_the_rank_that_writes_it_runs_again() -> None:
    first = Mailbox([0, 1])
    first.use_store(0, "set", ["folder", b"/tmp/first"])
    asking = Asking(Mailbox([0, 1], first.recording), 0, 1)
    asking.wait(1, "key", "folder")
    assert asking.answers == {}
    asking.box.use_store(0, "set", ["folder", b"/tmp/second"])
    assert asking.answers.pop(1) == ("ok", b"/tmp/second")
    asking = Asking(Mailbox([1], first.recording), 1)
    asking.wait(1, "key", "folder")
    assert asking.answers == {1: ("ok", b"/tmp/first")}


def test_a_wait_for_a_key_that_nobody_writes_ends_by_its_timeout_and_other_waits_go_on() -> None:
    asking = Asking(Mailbox([0, 1]), 0, 1)
    asking.wait(0, "key", "redy")
    asking.wait(1, "get", "w/0>1/0", (0,))
    asking.box.break_deadlock()
    assert list(asking.answers) == [0]
    assert asking.answers[0] == ("timeout", "rank 0 waits at a.py:1 for the store's key 'redy'")
    asking.box.post("w/0>1/0", 0, b"x")
    assert asking.answers[1] == ("ok", b"x")


def test_the_unit_is_the_shortest_that_was_seen_twice() -> None:
    assert find_unit("aaaa") == 1
    assert find_unit("aabaab") == 3
    assert find_unit("aaba") is None
    steps = summarize("aabaab", [1, 1, 4, 1, 1, 4], ["", "", "log.py:3"] * 2)
    assert (steps.unit, steps.plain_ms, steps.mean_ms) == (3, 1, 2)
    assert [(s.index, s.ms, s.source) for s in steps.special] == [(2, 4, "log.py:3")]


def test_iterations_go_on_until_the_unit_is_known() -> None:
    limit = StepLimit(first=1, fewest=2, most=8)
    decided = []
    for step, sign in enumerate("xabababab", 1):
        limit.note(step, sign)
        decided.append(limit.goes_on(step))
    assert decided.index(False) == 4  # after a b a b
    assert StepLimit(first=0, fewest=1, most=2).goes_on(5) is False


def test_a_collective_of_many_ranks_costs_little_for_each_of_them() -> None:
    """Counted, not timed: looks at what a member gave must grow with the members, not with their square."""
    looks = 0

    class Members(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            nonlocal looks
            looks += len(self)
            return super().__iter__()

    box = Mailbox(range(200))
    for rank in range(201):
        box.started(rank)
    box.ended(200, "ended")  # once a rank has ended, every wait is checked against it
    answers: list[Any] = []
    for rank in range(200):
        box.give(rank, "1/gather", 0, b"x")
        box.collect(Waiting(rank, "collect", "1/gather", 0, Members(range(200)), "train.py:1", True, answers.append))
    assert len(answers) == 200
    assert looks <= 4 * 200


def test_a_thread_that_waits_is_told_apart_from_the_rank() -> None:
    box = Mailbox([0, 1])
    box.started(0)
    box.collect(Waiting(0, "collect", "saving/gather", 0, (0, 1), "save.py:1", False, lambda answer: None))
    assert box.standing() == set()
    assert box.standing(any_thread=True) == {0}


def test_a_rank_that_takes_its_turn_later_is_not_stopped_with_the_first() -> None:
    box = Mailbox([0, 1])
    box.started(0)
    box.started(1)
    box.ended(0, "done", 100)
    assert not box.is_enough(64)  # it has still to come to the end of its own iteration
    assert box.is_enough(256)  # it ends none
