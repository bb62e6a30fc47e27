"""Who is late at the borders of what is decided: turns, two that are alike, and groups that are as large as they must."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_late_decisions import PAIRS, SLOW, STEPS, TWO_STAGES, blame, find, gains, late_in, place, ring, take_turns

from prism.observe.findings import causes
from prism.observe.findings.case import Case
from prism.observe.findings.residuals import Residuals
from prism.observe.findings.scoring import Candidate, Scores, score
from prism.observe.findings.windows import Window
from prism.observe.parallelism.stages import StageMap

ALWAYS = Window(0, STEPS - 1)
FIVE = slice(3, 8)  # slow steps


def choose(patch: pytest.MonkeyPatch, case: Case, scores: Scores, longer: Any) -> str:
    """Who is said to be late: ranks, two that are named together, turns, or nobody."""
    patch.setattr(causes, "tell_late", lambda case, best, *_: [*map(str, sorted(best.members))])
    patch.setattr(causes, "tell_two", lambda case, one, other, margin: [f"{set(one.members | other.members)}"])
    patch.setattr(causes, "_find_turns", lambda *_: ["turns"])
    found: list[Any] = causes._choose(case, scores, ALWAYS if longer is None else None, longer)
    return " ".join(one if isinstance(one, str) else one[0] for one in found)


def longer_in(*steps: int) -> Any:
    return np.isin(np.arange(STEPS), steps) * 0.2


# -- one against turns


def test_a_host_that_is_late_in_nearly_all_slow_steps_is_ahead_of_the_few_in_which_others_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before it was late others were so for two steps, in which it was far ahead of them."""
    every = np.full((4, STEPS), -3.0)
    every[2, FIVE] = 50.0
    every[2, 1:3], every[0, 1], every[1, 2] = -40.0, 5.0, 5.0
    assert choose(monkeypatch, place(), gains(every.tolist()), longer_in(*range(1, 8))) == "2"
    every[2, 3] = every[2, 7] = -40.0
    every[0, 3] = every[1, 7] = 50.0
    assert choose(monkeypatch, place(), gains(every.tolist()), longer_in(*range(1, 8))) == "turns"


def test_steps_between_slow_ones_in_which_others_are_late_show_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    every, elsewhere = np.full((4, STEPS), -3.0), np.zeros((4, STEPS))
    every[2, [3, 5, 7]] = 50.0
    for quick, told in ((0.0, "2"), (200.0, "turns")):
        elsewhere[0, 4], elsewhere[1, 6] = quick, quick
        scores = replace(gains(every.tolist()), elsewhere=elsewhere)
        assert choose(monkeypatch, place(), scores, longer_in(3, 5, 7)) == told


def test_hosts_that_take_turns_are_told_where_none_of_them_is_late_for_two_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = np.where(np.indices((4, STEPS)).sum(axis=0) % 4 == 0, 50.0, -60.0)
    assert choose(monkeypatch, place(), gains(every.tolist()), longer_in(*range(STEPS))) == "turns"


def test_waits_in_a_pipeline_do_not_make_one_host_as_late_as_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causes, "_take_turns", lambda case, scores, replicas, longer: scores)
    every = np.full((4, STEPS), -3.0)
    every[2, [3, 5, 7]], every[0, 4], every[1, 6] = 50.0, 90.0, 90.0
    scores = replace(gains(every.tolist()), of_wait=np.maximum(every, 0.0))
    assert choose(monkeypatch, place(stages=TWO_STAGES), scores, longer_in(*range(3, 8))) == "turns"


@pytest.mark.parametrize(("each", "as_much"), [(3.0, True), (4.0, False)])
def test_that_one_of_four_is_later_in_each_step_is_chance_where_it_gains_less_than_the_choice(
    each: float, as_much: bool
) -> None:
    every = np.full((4, 6), -3.0)
    every[0], every[1] = 2.0, each
    assert causes._gains_as_much(every[0], every) is as_much


def test_work_of_turns_is_that_of_the_best_in_each_step_less_its_choice() -> None:
    turns = gains([[9.0, -3.0] * 2, [-3.0, 9.0] * 2])
    assert causes._sum_own_work(turns, slice(None)) == pytest.approx(4 * (9 - math.log(2)))
    assert causes._sum_own_work(turns, slice(1, 2)) == pytest.approx(9 - math.log(2))
    assert causes._sum_own_work(gains([[0.5] * 4, [0.6] * 4]), slice(None)) == 0.0


def test_on_one_host_its_ranks_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    case = place(("h0",) * 4)
    late = [[20.0, -3, -3, -3], [-3, 20.0, -3, -3], [-3, -3, 20.0, -3], [-3, -3, -3, 20.0], [20.0] * 4]
    members = [*([e] for e in range(4)), [0, 1, 2, 3]]
    scores = replace(gains(late, (0.5,) * 5), candidates=[Candidate(frozenset(m)) for m in members])
    taken = causes._take_turns(case, scores, None, np.ones(4))
    assert [sorted(c.members) for c in taken.candidates] == members[:4]
    assert take_turns([[-3.0] * 4] * 4 + [[20.0] * 4, [-3.0] * 4]) == [[0, 1], [2, 3]]


def test_quick_steps_tell_who_takes_turns_too() -> None:
    turns, elsewhere = np.full((4, STEPS), -3.0), np.zeros((4, STEPS))
    turns[0, [2, 4, 6]] = 10.0
    elsewhere[1, [3, 5]], elsewhere[2, 7] = 20.0, 20.0
    slow = np.isin(np.arange(STEPS), [2, 4, 6])
    hosts = replace(gains(turns.tolist(), (0.5,) * 4), elsewhere=elsewhere, slow=slow)
    (told,) = causes._tell_uneven(place(lengths=SLOW), blame(0, 1, 2, 3), hosts)
    assert "3 different hosts in 6 steps" in told.finding.evidence


@pytest.mark.parametrize(("third", "kind"), [(0.15, "load_imbalance"), (0.05, "slow_step")])
def test_three_hosts_are_enough_to_show_uneven_load(third: float, kind: str) -> None:
    turns = np.full((3, STEPS), -3.0)
    for step in range(2, 8):
        turns[step % 3, step] = 10.0
    (told,) = causes._tell_uneven(place(lengths=SLOW), blame(0, 1, 2), gains(turns.tolist(), (0.5, 0.4, third)))
    assert told.finding.kind == kind


@pytest.mark.parametrize(
    ("members", "units"),
    [(((0,), (1,), (2,), (3,)), "ranks"), (((0, 1), (2, 3)), "hosts"), (((0, 2), (1, 3)), "replicas")],
)
def test_who_takes_turns_is_named(members: tuple[tuple[int, ...], ...], units: str) -> None:
    turns = np.full((len(members), STEPS), -3.0)
    for step in range(2, 8):
        turns[step % len(members), step] = 10.0
    scores = replace(gains(turns.tolist(), (0.5,) * 4), candidates=[Candidate(frozenset(m)) for m in members])
    (told,) = causes._tell_uneven(place(PAIRS, lengths=SLOW), blame(0, 1, 2, 3), scores)
    assert f": {len(members)} different {units} in 6 steps" in told.finding.evidence


@pytest.mark.parametrize(("kind", "told"), [("load_imbalance", 1), ("slow_step", 0)])
def test_uneven_load_of_slow_steps_is_told_where_nobody_was_always_late_and_pauses_are_not(
    monkeypatch: pytest.MonkeyPatch, kind: str, told: int
) -> None:
    turns = SimpleNamespace(finding=SimpleNamespace(kind=kind))
    monkeypatch.setattr(causes, "_choose", lambda *_: [])
    monkeypatch.setattr(causes, "_find_turns", lambda *_: [turns])
    monkeypatch.setattr(causes, "list_residuals", lambda *_, **__: iter([ring(np.zeros((4, STEPS)))]))
    assert causes.find_late(place(lengths=SLOW)) == [turns] * told


# -- two that are alike


@pytest.mark.parametrize(("third", "margin"), [(18.0, 2 / 20), (-3.0, 1.0)])
def test_two_that_gain_alike_are_as_sure_as_they_are_ahead_of_a_third(
    monkeypatch: pytest.MonkeyPatch, third: float, margin: float
) -> None:
    margins: list[float] = []
    monkeypatch.setattr(causes, "_find_uneven", lambda *_: None)
    monkeypatch.setattr(causes, "tell_two", lambda case, one, other, margin: margins.append(margin) or [])
    every = [[-3.0] * 4 + [gain] * 6 for gain in (third, 20.0, 19.0, -3.0)]
    causes._choose(place(), gains(every, (0.2,) * 4), None, longer_in(*range(4, 10)))
    assert margins == [pytest.approx(margin)]


@pytest.mark.parametrize(("stages", "larger", "told"), [(False, True, "{1, 2}"), (False, False, ""), (True, True, "")])
def test_of_two_that_are_always_late_one_is_last_by_design_but_for_those_of_a_larger_group(
    monkeypatch: pytest.MonkeyPatch, stages: bool, larger: bool, told: str
) -> None:
    asked = []
    monkeypatch.setattr(causes, "are_of_larger_group", lambda case, hosts: asked.append(hosts) or larger)
    case = place(stages=TWO_STAGES) if stages else place()
    every = [[gain] * STEPS for gain in (-3.0, 20.0, 19.0, -3.0)]
    assert choose(monkeypatch, case, gains(every, (0.2,) * 4), None) == told
    assert all(hosts == {"h1", "h2"} for hosts in asked)


# -- as many as there must be


def test_three_steps_tell_who_is_always_late(monkeypatch: pytest.MonkeyPatch) -> None:
    late = late_in(2, slice(None))[:, :3]
    assert find(monkeypatch, place(lengths=[1.0] * 3), ring(late)) == [("slow_compute", "h2", 0, 2)]


def test_three_slow_steps_are_explained_wherever_they_are() -> None:
    assert causes._explains(blame(0, window=Window(3, 5)), longer_in(3, 4, 5))
    assert not causes._explains(blame(0, window=Window(3, 4)), longer_in(3, 4))
    assert not causes._explains(blame(0, window=Window(8, 9)), longer_in(1, 2, 8, 9))


@pytest.mark.parametrize(("share", "steady"), [(0.5, True), (0.4, False)])
def test_a_stage_works_longer_in_half_of_its_steps_or_it_is_not_the_stage(share: float, steady: bool) -> None:
    assert causes._is_steady(blame(0, 1, window=Window(2, 7, 0.2, share), stage=0)) is steady
    assert causes._is_steady(blame(0, window=Window(2, 7, 0.2, share)))


@pytest.mark.parametrize(("of_wait", "awaited"), [(0.0, False), (0.5, True)])
def test_however_little_others_wait_for_a_cause_it_is_awaited(of_wait: float, awaited: bool) -> None:
    waits = Residuals(np.arange(4), np.full(4, -1), np.zeros((4, STEPS)), 0.01, of_hosts=True)
    scores = gains(np.zeros((4, STEPS)).tolist())
    assert causes._is_awaited(replace(scores, tables=[waits]), blame(0, of_wait=of_wait)) is awaited
    assert causes._is_awaited(scores, blame(0))


def test_replicas_on_the_same_hosts_are_late_together_where_others_are_on_other_hosts() -> None:
    chains = ((0, 2), (1, 3), (4, 6), (5, 7))
    case: Any = SimpleNamespace(hosts=["a", "a", "b", "b", "c", "c", "d", "d"], stages=SimpleNamespace(chains=chains))
    members = [sorted(c.members) for c in causes._list_replicas(case)]
    assert members == [*map(list, chains), [0, 1, 2, 3], [4, 5, 6, 7]]
    alone = StageMap(stage=dict.fromkeys(range(4), 0), chains=((0,), (1,), (2,), (3,)), confidence=1.0)
    assert causes._list_replicas(place(stages=alone)) == []


# -- what is scored


@pytest.mark.parametrize(("hop", "between"), [((2, 3), True), ((3, 2), True), ((0, 3), False), ((2, 0), False)])
def test_hops_between_two_gain_in_either_direction_and_no_others(hop: tuple[int, int], between: bool) -> None:
    table = Residuals(np.array([hop[0]]), np.array([hop[1]]), np.full((1, STEPS), 0.1), 0.01)
    scores = replace(gains([[0.0] * STEPS] * 4), tables=[table])
    alone = -3.0 * 6  # what a window of six steps costs
    assert scores.score_between(blame(2), blame(3)) == pytest.approx(alone + 6 * 10.0 * between)
    of_hosts = replace(scores, tables=[replace(table, of_hosts=True)])
    assert of_hosts.score_between(blame(2), blame(3)) == alone


def test_who_gains_nothing_is_not_the_best() -> None:
    assert gains([[0.0] * STEPS] * 4).find_best(None, 0.0) is None
    assert gains([[0.0] * STEPS, [1.0] * STEPS]).find_best(None, 0.0) is not None


def test_of_candidates_that_gain_alike_the_smallest_that_is_late_enough_is_the_best() -> None:
    scores = replace(gains([[5.0] * STEPS] * 3, (0.5, 0.4, 0.15)), candidates=[Candidate(frozenset(m)) for m in ([0, 1, 2], [0, 1], [0])])  # fmt: skip
    for least, members in ((0.1, {0}), (0.2, {0, 1}), (0.5, {0, 1, 2})):
        best = scores.find_best(None, least)
        assert best is not None and best.members == members
    assert scores.find_best(None, 0.6) is None


@pytest.mark.parametrize("length", [0.5, 4.0])
def test_how_late_one_is_is_a_share_of_a_usual_step_and_of_work_as_it_is(length: float) -> None:
    case, one = place(lengths=[length] * STEPS), [Candidate(frozenset([2]))]
    for per_work, share in ((False, 0.2 / length), (True, 0.2)):
        table = ring(late_in(2, slice(None)), per_work=per_work)
        assert score(case, one, [table], np.arange(4), None).share[0, 0] == pytest.approx(share)


def test_a_table_of_fewer_ends_than_candidates_have_is_searched_for_those_it_has() -> None:
    few = Residuals(np.array([1]), np.array([-1]), np.full((1, STEPS), 0.1), 0.01)
    everyone = [Candidate(frozenset(m)) for m in ([9], [1, 9], [1])]
    found = score(place(("h0",) * 4), everyone, [few], np.zeros(10, np.int64), None)
    assert found.gain[:, 0].tolist() == pytest.approx([-3.0, 7.0, 7.0])
    assert found.unseen == {9}
