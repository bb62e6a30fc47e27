"""Who is answered what: messages, parts of collectives, keys of the store, and waits in vain."""

from __future__ import annotations

from typing import Any

from prism.emulate.exchange_server import StepLimit
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


def test_whoever_waits_for_a_rank_that_was_stopped_is_stopped_too() -> None:
    asking = Asking(Mailbox([0, 1]), 0, 1)
    asking.wait(0, "get", "w/1>0/0", (1,))
    asking.box.ended(1, "done")
    assert asking.answers == {0: ("over", None)}
    asking.box.started(1)
    asking.wait(0, "get", "w/1>0/0", (1,))
    asking.box.ended(1, "crashed")
    assert asking.answers[0][0] == "error" and "which has ended" in asking.answers[0][1]


def test_a_lone_rank_is_told_that_it_needs_another() -> None:
    asking = Asking(Mailbox([0], lone=True), 0)
    asking.wait(0, "get", "w/1>0/0", (1,))
    assert asking.answers == {0: ("needs", 1)}


def test_the_store_is_one_for_all_ranks_and_counters_repeat_what_they_were() -> None:
    asking = Asking(Mailbox([0, 1]), 0, 1)
    asking.wait(0, "key", "go")
    assert asking.box.add_key(0, "n", 1) == ("ok", 1) and asking.box.add_key(1, "n", 1) == ("ok", 2)
    asking.box.set_key("go", b"1")
    assert asking.answers == {0: ("ok", b"1")}
    alone = Mailbox([1], asking.box.recording)
    assert alone.add_key(1, "n", 1) == ("ok", 2)
    assert alone.has_keys(["go"])


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
