"""Whose recorded messages answer for ranks that are too dear to run."""

from __future__ import annotations

from prism.emulate.alike import find_alike
from prism.emulate.families import Families, Family
from prism.emulate.mailbox import Mailbox, Recording, Waiting


def _pipelines() -> Families:
    """Two stages of four ranks: 0 sends to 4, 1 to 5 and so on; and two tensor-parallel groups."""
    pp, tp = Family(slot="pp", kind="pp", size=2), Family(slot="tp", kind="tp", size=4)
    for rank in range(4):
        pp.add(f"pp{rank}", (rank, rank + 4))
    for first in (0, 4):
        tp.add(f"tp{first}", range(first, first + 4))
    return Families((pp, tp), {"pp0": pp, "tp0": tp})  # names of groups that others made are not known


def test_a_message_is_answered_by_the_one_between_the_same_positions() -> None:
    recording = Recording(posts={"pp0/0>4/0": {0: b"shapes"}, "pp0/4>0/0": {0: b"back"}})
    alike = find_alike(recording, _pipelines())
    assert alike("pp3/3>7/0") == "pp0/0>4/0"
    assert alike("pp3/7>3/0") == "pp0/4>0/0"


def test_other_positions_tags_and_calls_are_not_answered() -> None:
    alike = find_alike(Recording(posts={"pp0/0>4/0": {0: b"shapes"}}), _pipelines())
    assert alike("pp3/3>7/1") is None
    assert alike("tp4/4>5/0") is None
    assert alike("pp3/3>6/0") is None
    assert alike("pp3/broadcast/3") is None


def test_a_pair_that_is_in_two_families_is_not_answered() -> None:
    families = _pipelines()
    again = Family(slot="pp2", kind="pp", size=2)
    for rank in range(4):
        again.add(f"again{rank}", (rank, rank + 4))
    both = Families((*families.families, again), {**families.by_name, "again0": again})
    recording = Recording(posts={"pp0/0>4/0": {0: b"one"}, "again0/0>4/0": {0: b"other"}})
    assert find_alike(recording, both)("new/1>5/0") is None


def test_a_rank_that_others_answer_for_is_not_started() -> None:
    recording = Recording(posts={"pp0/0>4/0": {0: b"shapes"}})
    answers: list[object] = []
    for alike in (find_alike(recording, _pipelines()), lambda channel: None):
        box = Mailbox([5], recording, grows=True, alike=alike)
        box.started(5)
        box.get(Waiting(5, "get", "pp1/1>5/0", 0, (1,), "train.py:1", True, answers.append))
        answers.append(box.wanted())
    assert answers == [("ok", b"shapes"), [], [1]]
