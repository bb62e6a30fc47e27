"""Who is late, piece by piece and by hand: candidates, what they gain, how sure it is, and what is told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from test_finding_decisions import make_case

from prism.observe.findings import causes, telling
from prism.observe.findings.case import Case
from prism.observe.findings.residuals import Residuals
from prism.observe.findings.scoring import (
    PER_STEP,
    Candidate,
    Cause,
    Scores,
    _gain,
    _gain_rows,
    score,
    score_delays,
)  # fmt: skip
from prism.observe.findings.windows import Window
from prism.observe.parallelism.stages import NO_STAGES, StageMap

STEPS = 10
WINDOW = Window(2, 7, 0.2, 1.0)
SLOW = [1.0] * 2 + [1.2] * 6 + [1.0] * 2  # steps of the window
PAIRS = ("h0", "h0", "h1", "h1")
TWO_STAGES = StageMap(stage={0: 0, 1: 0, 2: 1, 3: 1}, chains=((0, 2), (1, 3)), confidence=1.0)


def place(hosts: Sequence[str] = ("h0", "h1", "h2", "h3"), lengths: Sequence[float] = (1.0,) * STEPS, stages: StageMap = NO_STAGES) -> Case:  # fmt: skip
    """Four ranks on these hosts."""
    case = make_case(lengths, stages=stages)
    return replace(case, endpoints=case.endpoints.with_columns(host=pl.Series(list(hosts))))


def blame(*members: int, gain: float = 100.0, window: Window = WINDOW, of_wait: float = 0.0, late_s: float = 0.1, stage: int | None = None) -> Cause:  # fmt: skip
    gains_in = frozenset(range(window.first, window.last + 1))
    return Cause(frozenset(members), window, gain, of_wait, late_s, stage, steps=gains_in)


# -- which steps are slow, and whether a cause explains them


def test_steps_are_longer_by_what_they_have_beyond_the_quick_ones() -> None:
    longer = causes._find_longer(place(lengths=[1.0] * 7 + [1.2] * 3))
    assert longer is not None and longer.tolist() == pytest.approx([0.0] * 7 + [0.2] * 3)


@pytest.mark.parametrize(
    ("lengths", "slow"),
    [
        ([1.0] * 9 + [1.2], None),  # a single one
        ([1.0] * 8 + [1.2] * 2, 2),
        ([1.0] * 7 + [1.02] * 3, None),  # within three in a hundred
        ([1.0] * 7 + [1.04] * 3, 3),
        ([0.92, 1.04, 0.95, 1.05, 0.98, 1.08, 1.01, 1.09, 1.03, 1.1], None),  # within their noise
        ([1.0] * 10, None),
    ],
)
@pytest.mark.parametrize("usual", [0.1, 1.0, 20.0])
def test_a_step_is_slow_beyond_chance_and_more_than_one_must_be(
    lengths: list[float], slow: int | None, usual: float
) -> None:
    longer = causes._find_longer(place(lengths=[usual * length for length in lengths]))
    assert (None if longer is None else int((longer > 0).sum())) == slow


@pytest.mark.parametrize("length", [1.5, 5.0])
@pytest.mark.parametrize(("first", "slow"), [(4, 3), (5, 8)])
def test_a_few_long_steps_at_the_start_are_a_program_that_compiles(first: int, slow: int, length: float) -> None:
    longer = causes._find_longer(place(lengths=[length] * first + [1.0] * 12 + [1.2] * 3))
    assert longer is not None and (longer > 0).sum() == slow


@pytest.mark.parametrize(("num", "slow"), [(3, 0), (6, 3)])
def test_steps_in_which_a_job_now_and_then_saves_are_longer_by_design(num: int, slow: int) -> None:
    case = place(lengths=[1.0, 1.0, 1.5] * 3 + [1.0])
    begin = [int(case.steps["start_ns"][i]) + 10_000_000 for i in (2, 5, 8, 0, 3, 6)[:num]]
    saves = pl.DataFrame({"start_ns": begin, "end_ns": [at + 10_000_000 for at in begin]})
    longer = causes._find_longer(replace(case, saves=saves))
    assert (0 if longer is None else int((longer > 0).sum())) == slow


@pytest.mark.parametrize(
    ("gain", "inside", "outside", "explains"),
    [(1.0, 0.5, 0.5, True), (1.0, 0.4, 0.5, False), (0.0, 0.5, 0.0, False), (-1.0, 0.5, 0.0, False)],
)
def test_a_cause_explains_slow_steps_where_half_of_their_time_is_in_its_window(
    gain: float, inside: float, outside: float, explains: bool
) -> None:
    longer = np.zeros(STEPS)
    longer[WINDOW.first], longer[WINDOW.last], longer[WINDOW.last + 1] = inside / 2, inside / 2, outside
    assert causes._explains(blame(0, gain=gain), longer) is explains


@pytest.mark.parametrize(("late", "explains"), [([2, 4, 6], True), ([2, 4], False)])
def test_slow_steps_in_which_somebody_else_was_late_are_not_explained(late: list[int], explains: bool) -> None:
    longer = np.zeros(STEPS)
    longer[2:8] = 0.02
    gain = np.full((1, STEPS), -3.0)
    gain[0, late] = 60.0
    scores = Scores([Candidate(frozenset([0]))], gain, 0 * gain, 0 * gain, 0 * gain, 0 * gain)
    cause = scores.settle(0, Window(2, 6, 0.0, 0.5))
    assert cause.gain > 0 and causes._explains(cause, longer) is explains


@pytest.mark.parametrize(
    ("slow", "explains"), [([8, 9], True), ([7, 8, 9], True), ([6, 7, 8, 9], False), ([7, 8], False)]
)
def test_the_last_two_steps_explain_slow_steps_but_for_the_one_it_began_in(slow: list[int], explains: bool) -> None:
    longer = np.zeros(STEPS)
    longer[slow] = 0.2
    assert causes._explains(blame(0, window=Window(slow[-2], slow[-1], 0.2, 1.0)), longer) is explains


@pytest.mark.parametrize(("of_wait", "explains"), [(99.0, True), (100.0, False)])
def test_a_stage_explains_slow_steps_by_its_work_and_not_by_waits(of_wait: float, explains: bool) -> None:
    longer = np.full(STEPS, 0.2)
    assert causes._explains(blame(0, 1, stage=0, of_wait=of_wait), longer) is explains
    assert causes._explains(blame(0, 1, of_wait=of_wait), longer)


def test_each_slow_step_halves_the_chance_that_it_was_another_of_two_hosts() -> None:
    longer = np.zeros(STEPS)
    longer[[2, 5, 7, 8]] = 0.1  # three of them inside
    assert causes._beat_chance(place(PAIRS), blame(0), longer) == pytest.approx(1 / (1 + 2 ** (1 - 3)))
    assert causes._beat_chance(place(), blame(0), longer) == pytest.approx(1 / (1 + 4.0 ** (1 - 3)))
    assert causes._beat_chance(place(), blame(0), None) == 1.0


# -- candidates


def test_ranks_hosts_of_several_and_stages_over_several_hosts_are_candidates() -> None:
    def members(case: Case) -> list[tuple[list[int], int | None]]:
        return [(sorted(c.members), c.stage) for c in causes._list_candidates(case)]

    ranks = [([e], None) for e in range(4)]
    assert members(place()) == ranks
    assert members(place(PAIRS)) == [*ranks, ([0, 1], None), ([2, 3], None)]
    assert members(place(PAIRS, stages=TWO_STAGES)) == [*ranks, ([0, 1], None), ([2, 3], None)]
    assert members(place(stages=TWO_STAGES)) == [*ranks, ([0, 1], 0), ([2, 3], 1)]
    alone = replace(TWO_STAGES, stage=dict.fromkeys(range(4), 0))
    assert members(place(stages=alone)) == ranks


def test_two_causes_are_apart_where_they_share_no_host() -> None:
    case = place(PAIRS)
    assert causes._apart(case, blame(0), blame(2, 3))
    assert not causes._apart(case, blame(0), blame(1))


def test_a_stage_is_whole_with_all_its_members_where_there_are_several() -> None:
    case = place(stages=TWO_STAGES)
    assert [telling.list_stages(case, m) for m in ([0, 1], [2, 3], [0], [0, 1, 2])] == [[0], [1], [], []]
    alone = replace(TWO_STAGES, stage=dict.fromkeys(range(4), 0))
    assert telling.list_stages(place(stages=alone), [0, 1, 2, 3]) == []
    deeper = replace(case, layout=replace(case.layout, pp=replace(case.layout.pp, value=4)))
    assert telling.list_stages(deeper, [2, 3]) == [2, 3]


# -- what is told


def test_what_a_late_host_costs_without_stages_is_what_others_wait_for_it_but_half_a_step_at_most() -> None:
    case, always = place(), Window(0, STEPS - 1, 0.0, 1.0)
    assert telling.price(case, blame(0, window=always, late_s=0.25)).lost_s == pytest.approx(0.25 * STEPS)
    assert telling.price(case, blame(0, window=always, late_s=0.9)).lost_s == pytest.approx(0.5 * STEPS)


def test_what_a_late_host_costs_is_a_share_of_its_own_steps() -> None:
    always = Window(0, STEPS - 1, 0.0, 1.0)
    found = telling.price(place(lengths=[2.0] * STEPS), blame(0, window=always, late_s=0.5))
    assert found.lost_s == pytest.approx(0.5 * STEPS)


def test_with_stages_the_job_is_solved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(telling, "tabulate_work", lambda case: "work")
    monkeypatch.setattr(telling, "price_slow_work", lambda *args, **more: asked.append((*args[1:], more)))
    telling.price(place(stages=TWO_STAGES), blame(3, 1))
    assert asked == [("work", [1, 3], WINDOW, {"by_design": False})]
    alone = replace(TWO_STAGES, stage=dict.fromkeys(range(4), 0))
    telling.price(place(stages=alone), blame(3, 1))
    assert len(asked) == 1


def test_lateness_is_told_in_milliseconds_or_as_more_work() -> None:
    assert telling.say_late(place(), blame(0, late_s=0.05)) == "comes 50.0 ms late to the calls of a step"
    assert telling.say_late(place(), blame(0, late_s=0.0)) == "works 20.0 % longer than usual"


@pytest.mark.parametrize(("gain", "late"), [(30.0, [0, 1]), (29.0, [0])])
def test_ranks_of_a_host_that_gain_a_third_as_much_are_late_with_it(gain: float, late: list[int]) -> None:
    listed = [blame(0), blame(1, gain=gain), blame(2, gain=500.0), blame(0, 1, gain=900.0)]
    assert telling.with_mates(place(PAIRS), blame(0), listed) == late


def test_a_host_of_which_one_rank_is_seen_is_late_as_a_whole() -> None:
    unseen = replace(blame(1, gain=-3.0), seen=False)
    assert telling.with_mates(place(PAIRS), blame(0), [blame(0), unseen]) == [0, 1]


def test_waits_of_a_pipeline_are_passed_on_to_its_replicas() -> None:
    best, rival = blame(0, of_wait=20.0), blame(3, gain=90.0, of_wait=90.0)
    assert causes._leave_passed_on(place(stages=TWO_STAGES), rival, best) == replace(rival, gain=20.0, of_wait=20.0)
    assert causes._leave_passed_on(place(), rival, best) == rival
    less = replace(rival, of_wait=10.0)
    assert causes._leave_passed_on(place(stages=TWO_STAGES), less, best) == less


@pytest.mark.parametrize(("late_s", "told"), [(0.021, ["h0"]), (0.019, [])])
def test_one_that_nobody_waits_for_is_not_reported(late_s: float, told: list[str]) -> None:
    longer = np.where(np.arange(STEPS) >= 4, 0.2, 0.0)
    every = [[-3.0] * 4 + [20.0] * 6, *[[-3.0] * STEPS] * 3]
    scores = replace(gains(every, (0.1, 0.0, 0.0, 0.0)), late_s=np.full((4, STEPS), late_s))
    found = causes._choose(place(lengths=[1.0] * 4 + [1.2] * 6), scores, None, longer)
    assert [p.finding.culprit.id for p in found] == told


def test_one_step_of_a_rival_that_is_far_out_takes_no_lead() -> None:
    longer = np.where(np.arange(STEPS) >= 4, 0.2, 0.0)
    every = [[-3.0] * 4 + [20.0] * 6, [-3.0] * 5 + [100.0] + [-3.0] * 4, *[[-3.0] * STEPS] * 2]
    found = causes._choose(place(lengths=[1.0] * 4 + [1.2] * 6), gains(every, (0.1, 0.0, 0.0, 0.0)), None, longer)
    assert [p.finding.culprit.id for p in found] == ["h0"]


@pytest.mark.parametrize(
    ("of_wait", "kinds"), [(0.0, ["load_imbalance"]), (7.5, ["load_imbalance"]), (8.0, []), (12.0, [])]
)
def test_in_a_pipeline_only_own_work_shows_that_hosts_take_turns(of_wait: float, kinds: list[str]) -> None:
    longer = np.full(4, 0.2)
    turns = gains([[9.0, -3.0] * 2, [-3.0, 9.0] * 2, [4.0] * 4, [4.0] * 4], (0.5, 0.5, 0.4, 0.4))
    turns = replace(turns, of_wait=np.full((4, 4), of_wait))
    found = causes._find_turns(place(lengths=[1.2] * 4, stages=TWO_STAGES), turns, longer)
    assert [p.finding.kind for p in found] == kinds


def test_a_host_none_of_whose_ranks_gains_is_named_by_its_members() -> None:
    listed = [blame(0, gain=-1.0), blame(1, gain=-2.0)]
    assert telling.with_mates(place(PAIRS), blame(0, 1), listed) == [0, 1]


def test_seconds_are_hosts_that_gain_nearly_as_much_each_once() -> None:
    case = place()
    listed = [blame(0), blame(1, gain=30.0), blame(2, gain=29.0), blame(3, gain=60.0)]
    rivals = [blame(3, gain=60.0), blame(1, gain=30.0), blame(1, gain=90.0), blame(2, gain=29.0),
              blame(2, gain=80.0, stage=1), blame(1, 2, gain=80.0)]  # fmt: skip
    found = telling.list_seconds(case, blame(0), listed, rivals)
    assert [(s.kind, s.culprit.id, s.score) for s in found] == [
        ("slow_compute", "h3", round(60 / 160, 3)),
        ("slow_compute", "h1", round(30 / 130, 3)),
    ]


def test_one_that_is_late_is_reported_with_what_it_costs_and_a_stage_by_its_number() -> None:
    case = place(lengths=SLOW)
    told = telling.tell_late(case, blame(1), [blame(1)], [], 0.8)
    assert (told.finding.kind, told.finding.culprit.id, told.finding.score) == ("slow_compute", "h1", 0.8)
    assert told.finding.evidence.startswith("comes 100.0 ms late to the calls of a step in 6 of 10 steps, and all")
    assert "80 % of what it explains nobody else does" in told.finding.evidence
    assert told.finding.lost_gpu_seconds == pytest.approx(6 * 0.2 * 4, rel=0.01)
    assert (told.gain, told.seconds) == (100.0, ())
    stage = telling.tell_late(case, blame(1, stage=1), [blame(1)], [], 0.8).finding
    assert (stage.kind, stage.culprit.type, stage.culprit.id) == ("stage_imbalance", "stage", "1")
    assert stage.evidence.startswith("stage 1 works 20.0 % longer in 6 of 10 steps; 80 %")


def test_a_late_host_that_is_a_whole_stage_lists_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "price", lambda case, cause: telling.Cost(1.0, "solved"))
    case = place(PAIRS, stages=TWO_STAGES)
    told = telling.tell_late(case, blame(2, 3), [blame(2), blame(3)], [], 0.8)
    assert [(s.kind, s.culprit.id, s.score) for s in told.seconds] == [("stage_imbalance", "1", 0.5)]
    part = telling.tell_late(case, blame(2), [blame(2), blame(3, gain=0.0)], [], 0.8)
    assert part.seconds == ()


def test_a_host_of_two_stages_of_which_some_ranks_are_seen_is_as_likely_as_that_one_of_them_is_heavy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(telling, "price", lambda case, cause: telling.Cost(1.0, "solved"))
    case = place(PAIRS, stages=TWO_STAGES)
    deeper = replace(case, layout=replace(case.layout, pp=replace(case.layout.pp, value=4)))
    unseen = replace(blame(3), seen=False)
    for ranks, sure in (([blame(2), blame(3)], 0.8), ([blame(2), unseen], 0.5)):
        told = telling.tell_late(deeper, blame(2, 3), ranks, [], 0.8)
        assert told.finding.score == sure
        assert [(s.culprit.id, s.score) for s in told.seconds] == [("2", 0.25), ("3", 0.25)]
    assert telling.tell_late(case, blame(2, 3), [blame(2), unseen], [], 0.8).finding.score == 0.8


def test_two_hosts_that_gain_alike_are_one_group() -> None:
    (told,) = telling.tell_two(place(), blame(1), blame(2), 0.5)
    found = told.finding
    assert (found.kind, found.culprit.type, found.culprit.id) == ("slow_compute", "group", "10.0.1.1,10.0.2.1")
    assert found.evidence.startswith("all others wait for h1 or h2, 100.0 ms of a step in all its calls")
    assert (found.score, told.gain) == (0.5, 100.0)
    assert found.end_ns - found.start_ns == 6 * 10**9
    assert telling.tell_two(place(), blame(1), blame(2), 0.49) == []
    assert telling.tell_two(place(), blame(0, 1), blame(2), 0.9) == []  # of three hosts
    assert telling.tell_two(place(PAIRS), blame(0), blame(2), 0.9) == []  # there are no others to wait
    assert len(telling.tell_two(place(("h0", "h1", "h2", "h2")), blame(0), blame(1), 0.9)) == 1


@pytest.mark.parametrize(("late_s", "told"), [(0.021, 1), (0.019, 0)])
def test_two_hosts_are_told_where_waiting_for_them_is_a_tenth_of_what_steps_are_longer_by(
    late_s: float, told: int
) -> None:
    longer = np.where(np.arange(STEPS) >= 4, 0.2, 0.0)
    every = [[-3.0] * 4 + [gain] * 6 for gain in (20.0, 19.0, -3.0, -3.0)]
    scores = replace(gains(every, (0.1, 0.1, 0.0, 0.0)), late_s=np.full((4, STEPS), late_s))
    found = causes._choose(place(lengths=[1.0] * 4 + [1.2] * 6), scores, None, longer)
    assert [p.finding.culprit.type for p in found] == ["group"] * told


def test_two_that_all_wait_for_alike_are_told_apart_by_their_own_work_alone() -> None:
    scores = gains(np.zeros((4, STEPS)).tolist())
    best, rival = (blame(e, gain=gain, of_wait=gain - 6 * 3) for e, gain in ((1, 2600.0), (2, 2500.0)))
    assert causes._may_be_either(scores, best, rival, None)
    assert not causes._may_be_either(scores, replace(best, gain=2700.0), rival, None)
    assert not causes._may_be_either(scores, best, replace(rival, gain=2000.0, of_wait=2000.0), None)
    assert causes._may_be_either(scores, best, replace(rival, gain=2590.0, of_wait=0.0), None)


# -- another host each time


def gains(values: Sequence[Sequence[float]], shares: Sequence[float] = (0.5, 0.4, 0.15, 0.0)) -> Scores:
    """By host and step; how late the hosts are, as shares of a step."""
    gain = np.array(values)
    share = np.repeat(np.array(shares[: len(gain)])[:, None], gain.shape[1], axis=1)
    nothing = np.zeros_like(gain)
    return Scores([Candidate(frozenset([e])) for e in range(len(gain))], gain, nothing, share, share, nothing)


def test_turns_gain_what_the_best_of_each_step_does_less_its_choice() -> None:
    hosts = gains([[-5, 9, -5, 9, -5], [-5, -5, 8, -5, -5]])
    uneven = causes._find_uneven(hosts)
    assert uneven is not None and uneven.members == {0, 1}
    assert (uneven.window.first, uneven.window.last) == (1, 3)
    assert uneven.gain == pytest.approx(9 + 8 + 9 - 3 * math.log(2))
    assert uneven.late_s == 0.5
    assert causes._find_uneven(gains([[9.0, 9.0]])) is None


def test_turns_count_the_quick_steps_between_slow_ones() -> None:
    hosts = gains([[-3, 9, -3, -3, -3], [-3, -3, -3, 8, -3]])
    elsewhere = np.array([[7.0, 0.0, 0.0, 0.0, 7.0], [0.0, 0.0, 6.0, 0.0, 0.0]])
    uneven = causes._find_uneven(replace(hosts, elsewhere=elsewhere))
    assert uneven is not None and (uneven.window.first, uneven.window.last) == (1, 3)
    assert uneven.gain == pytest.approx(8 + (6 - 3) + 8 - 3 * math.log(2))


@pytest.mark.parametrize(("quick", "kind"), [(20.0, "load_imbalance"), (3.0, "slow_step")])
@pytest.mark.parametrize("num", [2, 4])
def test_uneven_load_makes_someone_late_in_quick_steps_too_and_a_pause_does_not(
    num: int, quick: float, kind: str
) -> None:
    case = place(lengths=SLOW)
    turns = np.full((num, STEPS), -3.0)
    turns[0, [2, 4]], turns[1, [5, 7]] = 10.0, 10.0
    elsewhere = np.zeros((num, STEPS))
    elsewhere[1, [0, 1, 3, 6]] = quick
    elsewhere[0, 8:] = 0.5  # less than choosing one of them costs
    slow = np.isin(np.arange(STEPS), [2, 4, 5, 7])
    hosts = replace(gains(turns.tolist(), (0.5, 0.4, 0.4, 0.4)), elsewhere=elsewhere, slow=slow)
    (told,) = causes._tell_uneven(case, blame(0, 1, gain=60.0), hosts)
    assert told.finding.kind == kind
    first = 0 if kind == "load_imbalance" else 2  # it is there before the first slow step
    assert told.finding.start_ns == int(case.steps["start_ns"][first])
    assert told.finding.end_ns == int(case.steps["end_ns"][7])


def test_ranks_of_one_host_are_late_together_and_show_no_uneven_load() -> None:
    turns = np.full((4, STEPS), -3.0)
    turns[0, [2, 4, 6]], turns[2, [3, 5, 7]] = 10.0, 10.0
    hosts = gains(turns.tolist(), (0.5, 0.5, 0.5, 0.5))
    for names, kind in ((("h0", "h1", "h2", "h3"), "load_imbalance"), (PAIRS, "slow_step")):
        (told,) = causes._tell_uneven(place(names, lengths=SLOW), blame(0, 1, 2, 3), hosts)
        assert told.finding.kind == kind


def test_how_sure_uneven_load_is_goes_with_the_steps_in_which_another_is_last() -> None:
    turns = np.full((4, STEPS), -3.0)
    turns[0, 2:8] = 10.0
    turns[1, 3], turns[1, 8] = 11.0, 60.0  # the latter after they took turns
    (once,) = causes._tell_uneven(place(lengths=SLOW), blame(0, 1, 2, 3), gains(turns.tolist()))
    assert once.finding.score == pytest.approx(1 - math.exp(-1), abs=1e-3)
    turns[1, 3] = 60.0
    (clearly,) = causes._tell_uneven(place(lengths=SLOW), blame(0, 1, 2, 3), gains(turns.tolist()))
    assert clearly.finding.score == pytest.approx(1 - math.exp(-PER_STEP), abs=1e-3)


@pytest.mark.parametrize(
    ("third", "kind", "words"),
    [(0.15, "load_imbalance", "the others differ too"), (0.05, "slow_step", "all others come as ever")],
)
def test_uneven_load_shows_by_a_third_host_that_is_late_too(third: float, kind: str, words: str) -> None:
    case = place(lengths=SLOW)
    turns = np.full((4, STEPS), -3.0)
    for step in range(2, 8):
        turns[step % 4, step] = 10.0
    hosts = gains(turns.tolist(), (0.5, 0.4, third, 0.0))
    (told,) = causes._tell_uneven(case, blame(0, 1, 2, 3, gain=60.0), hosts)
    found = told.finding
    assert (found.kind, found.culprit.type, told.gain) == (kind, "job", 60.0)
    assert found.evidence.startswith(f"the last to come changes: 4 different hosts in 6 steps; {words}; without it")
    assert found.score == 0.99  # in four of the six steps another one than the best host is last


def test_turns_that_are_hardly_late_or_few_are_not_reported() -> None:
    hosts = gains([[10.0, -3.0] * 5, [-3.0, 10.0] * 5])
    late, case = blame(0, 1, window=Window(0, 2, 0.01, 1.0)), place(lengths=[1.2] * 3 + [1.0] * 7)
    assert len(causes._tell_uneven(case, late, hosts)) == 1
    assert causes._tell_uneven(case, replace(late, window=Window(0, 2, 0.0099, 1.0)), hosts) == []
    assert causes._tell_uneven(case, replace(late, window=Window(0, 1, 0.2, 1.0)), hosts) == []


@pytest.mark.parametrize(("longer", "told"), [(0.02, 0), (0.04, 1)])
def test_turns_are_reported_where_steps_are_longer_than_by_chance(longer: float, told: int) -> None:
    hosts = gains([[10.0, -3.0] * 5, [-3.0, 10.0] * 5])
    case = place(lengths=[1.0] * 2 + [1 + longer] * 6 + [1.0] * 2)
    assert len(causes._tell_uneven(case, blame(0, 1), hosts)) == told


@pytest.mark.parametrize(("fourth", "as_much"), [(0, True), (1, False)])
def test_one_that_is_not_the_last_where_most_is_gained_does_not_gain_as_much(fourth: int, as_much: bool) -> None:
    each = np.full((2, 4), -3.0)
    each[0, :3], each[fourth, 3] = (50.0, 51.0, 52.0), 60.0
    assert causes._gains_as_much(each[0], each) == as_much


def test_hosts_that_are_never_last_are_not_counted_and_turns_at_other_times_explain_nothing() -> None:
    turns = np.full((4, STEPS), -20.0)
    turns[0, 2:4], turns[1, 4:6], turns[2, 6:8], turns[3, 5] = 10.0, 10.0, 10.0, -1.0
    hosts = gains(turns.tolist())
    (told,) = causes._tell_uneven(place(lengths=SLOW), blame(0, 1, 2, 3), hosts)
    assert "3 different hosts in 6 steps" in told.finding.evidence
    longer = np.zeros(STEPS)
    longer[:2] = 0.5
    assert causes._find_turns(place(lengths=SLOW), hosts, longer) == []
    longer[2:8] = 0.5
    assert len(causes._find_turns(place(lengths=SLOW), hosts, longer)) == 1


def take_turns(gain: Sequence[Sequence[float]], replicas: Scores | None = None) -> list[list[int]]:
    """Who takes turns on two hosts of two ranks each; gains are of the four ranks, then of the two hosts."""
    case = place(PAIRS)
    members = [*([e] for e in range(4)), [0, 1], [2, 3]]
    scores = replace(gains(gain, (0.5,) * 6), candidates=[Candidate(frozenset(m)) for m in members])
    return [sorted(c.members) for c in causes._take_turns(case, scores, replicas, np.ones(4)).candidates]


def test_those_take_turns_whose_own_work_tells_most() -> None:
    hosts, ranks = [[0, 1], [2, 3]], [[0], [1], [2], [3]]
    low, high = [-3.0] * 4, [20.0] * 4
    assert take_turns([low, low, low, low, high, low]) == hosts
    assert take_turns([[20.0, -3, -3, -3], low, [-3, 20.0, -3, 20.0], [-3, -3, 20.0, -3], low, low]) == ranks
    chains = replace(gains([[40.0] * 4, low]), candidates=[Candidate(frozenset(c)) for c in ((0, 2), (1, 3))])
    assert take_turns([low, low, low, low, high, low], chains) == [[0, 2], [1, 3]]
    waits = replace(chains, of_wait=chains.gain)  # what a pipeline passes on is nobody's own work
    assert take_turns([low, low, low, low, high, low], waits) == hosts


def test_turns_of_which_always_the_same_one_is_last_are_not_reported() -> None:
    turns = np.full((4, STEPS), -3.0)
    turns[0, 2:8] = 10.0
    assert causes._tell_uneven(place(lengths=SLOW), blame(0, 1, 2, 3), gains(turns.tolist())) == []


def test_replicas_are_chains_and_all_chains_over_the_same_hosts() -> None:
    members = [sorted(c.members) for c in causes._list_replicas(place(PAIRS, stages=TWO_STAGES))]
    assert members == [[0, 2], [1, 3]]  # both chains pass the same hosts, which are all
    apart = [sorted(c.members) for c in causes._list_replicas(place(stages=TWO_STAGES))]
    assert apart == [[0, 2], [1, 3]]
    assert causes._list_replicas(place()) == []


def test_uneven_load_of_replicas_is_not_the_host_that_all_of_them_wait_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each host is a stage of both replicas: in every slow step all stages of one replica work longer."""
    work, starts = np.zeros((4, STEPS)), np.zeros((4, STEPS))
    for step in range(4, STEPS):
        chain = TWO_STAGES.chains[step % 2]
        work[list(chain), step] = 0.4
        starts[:2, step] = 0.4  # the ranks of the first stage come late to what they sum
    case = place(PAIRS, lengths=[1.0] * 4 + [1.3] * 6, stages=TWO_STAGES)
    found = find(monkeypatch, case, ring(work, per_work=True), ring(starts))
    assert [(kind, who) for kind, who, _, _ in found] == [("slow_step", "job-1")]


# -- the whole, from residuals that are given


def ring(late_s: Any, **more: Any) -> Residuals:
    return Residuals(np.arange(4), np.full(4, -1), np.asarray(late_s, float), 0.01, **more)


def late_in(rank: int, steps: slice, seconds: float = 0.2) -> Any:
    late = np.zeros((4, STEPS))
    late[rank, steps] = seconds
    return late


def find(monkeypatch: pytest.MonkeyPatch, case: Case, *tables: Residuals) -> list[tuple[str, str, int, int]]:
    monkeypatch.setattr(causes, "list_residuals", lambda *_, **__: iter(tables))
    begin, step = case.steps["start_ns"].to_numpy(), case.steps["end_ns"].to_numpy()
    return [
        (p.finding.kind, p.finding.culprit.id, int(np.searchsorted(begin, p.finding.start_ns)),
         int(np.searchsorted(step, p.finding.end_ns)))
        for p in causes.find_late(case)
    ]  # fmt: skip


def test_a_rank_that_is_late_in_the_slow_steps_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = place(lengths=[1.0] * 6 + [1.2] * 4)
    assert find(monkeypatch, case, ring(late_in(2, slice(6, None)))) == [("slow_compute", "h2", 6, 9)]
    short = place(lengths=[1.0] * 7 + [1.2] * 3)
    assert find(monkeypatch, short, ring(late_in(2, slice(7, None)))) == [("slow_compute", "h2", 7, 9)]
    two = place(lengths=[1.0] * 8 + [1.2] * 2)
    assert find(monkeypatch, two, ring(late_in(2, slice(8, None)))) == [("slow_compute", "h2", 8, 9)]
    assert find(monkeypatch, case) == []
    assert find(monkeypatch, place(lengths=[1.0, 1.2]), ring(late_in(2, slice(1, None)))) == []


def test_a_rank_that_was_always_late_is_found_by_comparison_with_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    always = late_in(2, slice(None))
    assert find(monkeypatch, place(), ring(always)) == [("slow_compute", "h2", 0, 9)]
    assert find(monkeypatch, place(), ring(always), ring(np.zeros((4, STEPS)), of_past=True)) == [
        ("slow_compute", "h2", 0, 9)
    ]
    assert find(monkeypatch, place(), ring(0.4 * always)) == []  # less than a tenth of a step
    assert find(monkeypatch, place(), ring(np.zeros((4, STEPS)))) == []


def test_a_rank_that_always_begins_late_is_told_only_if_others_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    always, nothing = late_in(2, slice(None)), np.zeros((4, STEPS))
    assert find(monkeypatch, place(), ring(always), ring(nothing, of_hosts=True)) == []
    assert find(monkeypatch, place(), ring(always), ring(always, of_hosts=True)) == [("slow_compute", "h2", 0, 9)]


def test_who_is_late_beyond_chance_in_four_steps_of_ten_was_not_always_late(monkeypatch: pytest.MonkeyPatch) -> None:
    for num, told in ((4, []), (6, [("slow_compute", "h2", 0, 9)])):
        late = late_in(2, slice(None), 0.12) + late_in(2, slice(num), 0.3)
        assert find(monkeypatch, place(), replace(ring(late), scale_s=0.05)) == told


def test_where_another_is_late_in_each_step_the_load_is_uneven(monkeypatch: pytest.MonkeyPatch) -> None:
    late = np.zeros((4, STEPS))
    for step in range(4, STEPS):
        late[step % 4, step], late[(step + 1) % 4, step], late[(step + 2) % 4, step] = 0.3, 0.2, 0.1
    case = place(lengths=[1.0] * 4 + [1.3] * 6)
    assert find(monkeypatch, case, ring(late)) == [("load_imbalance", "job-1", 4, 9)]


def test_the_best_stretch_of_a_candidate_counts_and_not_what_it_loses_before() -> None:
    longer = np.where(np.arange(STEPS) >= 6, 0.2, 0.0)
    scores = gains([[-3.0] * 6 + [10.0] * 4, [1.0] * STEPS, [-3.0] * STEPS, [-3.0] * STEPS], (0.2, 0.2, 0.0, 0.0))
    (told,) = causes._choose(place(lengths=[1.0] * 6 + [1.2] * 4), scores, None, longer)
    assert (told.finding.culprit.id, told.gain) == ("h0", 40.0)


def test_who_was_always_late_by_less_than_a_tenth_of_a_step_is_not_reported() -> None:
    always, every = Window(0, STEPS - 1, 0.0, 1.0), np.full((4, STEPS), -3.0)
    every[1] = 20.0
    for share, told in ((0.1, 1), (0.09, 0)):
        found = causes._choose(place(), gains(every.tolist(), (0.0, share, 0.0, 0.0)), always, None)
        assert isinstance(found, list) and len(found) == told


def test_the_last_step_of_a_window_counts() -> None:
    always, every = Window(0, STEPS - 1, 0.0, 1.0), np.full((4, STEPS), -3.0)
    every[0], every[1] = 10.0, 4.0
    every[0, -1] = -200.0
    (told,) = causes._choose(place(), gains(every.tolist(), (0.2, 0.2, 0.0, 0.0)), always, None)
    assert told.finding.culprit.id == "h1"


def test_one_long_pause_of_a_host_does_not_hide_that_others_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    late = np.zeros((4, STEPS))
    for step in range(4, STEPS):
        late[step % 4, step], late[(step + 1) % 4, step], late[(step + 2) % 4, step] = 0.3, 0.2, 0.1
    late[1, 6] = 30.0
    case = place(lengths=[1.0] * 4 + [1.3] * 2 + [31.0] + [1.3] * 3)
    assert [kind for kind, *_ in find(monkeypatch, case, ring(late))] == ["load_imbalance"]


def test_turns_that_no_single_host_gains_from_are_sure() -> None:
    turns = np.full((4, STEPS), -20.0)
    for step in range(2, 8):
        turns[step % 4, step] = 10.0
    (told,) = causes._tell_uneven(place(lengths=SLOW), blame(0, 1, 2, 3, gain=2.0), gains(turns.tolist()))
    assert told.finding.score == 0.99


# -- the scorer


@pytest.mark.parametrize(
    ("rival", "lead"),
    [(None, 1.0), (blame(1, gain=0.0), 1.0), (blame(1, gain=60.0, of_wait=20.0), (100 - 60) / (100 - 20)),
     (blame(1, gain=60.0, of_wait=50.0), (100 - 60) / (100 - 40)), (blame(1, gain=100.0, of_wait=90.0), 0.0)],
)  # fmt: skip
def test_a_lead_is_the_share_of_what_two_do_not_gain_alike(rival: Cause | None, lead: float) -> None:
    assert blame(0, gain=100.0, of_wait=40.0).lead(rival) == pytest.approx(lead)


def test_all_that_wait_alike_have_no_lead() -> None:
    assert blame(0, gain=602.0, of_wait=616.0).lead(blame(1, gain=601.0, of_wait=615.0)) < 0.5


def test_a_candidate_is_settled_over_the_steps_of_a_window_of_which_the_best_counts_as_the_next() -> None:
    gain = np.array([[1.0, 2.0, 4.0, 8.0, 16.0]])
    late_s = np.array([[9.0, 1.0, 5.0, 3.0, 9.0]])
    scores = Scores([Candidate(frozenset([7]), 3)], gain, gain / 2, late_s, gain / 100, 0 * gain)
    settled = scores.settle(0, Window(1, 3, 0.0, 0.5))
    assert settled == blame(7, gain=10.0, window=Window(1, 3, 0.04, 0.5), of_wait=5.0, late_s=3.0, stage=3)
    assert scores.settle(0, Window(3, 3, 0.0, 1.0)).gain == 8.0  # the only step counts as it is


@pytest.mark.parametrize(
    ("gain", "window"),
    [([-1, 5, -2, 6, -1], (1, 3, 2 / 3)), ([5, -9, 4, -1, 6], (2, 4, 2 / 3)), ([3, -1, -9], (0, 0, 1.0)),
     ([-3, -1, -9], (1, 1, 0.0)), ([-3, 1, 1], (1, 2, 1.0)), ([0.5, 0.4, -1], (0, 1, 1.0))],
)  # fmt: skip
def test_the_window_of_a_candidate_is_where_it_gains_most(gain: list[float], window: tuple[int, int, float]) -> None:
    found = gains([gain]).find_window(0)
    assert (found.first, found.last, found.share) == (window[0], window[1], pytest.approx(window[2]))


def test_some_candidates_are_taken_with_their_rows() -> None:
    taken = gains([[1.0], [2.0], [3.0]]).take([2, 0])
    assert taken.gain.tolist() == [[3.0], [1.0]] and [sorted(c.members) for c in taken.candidates] == [[2], [0]]


def test_rows_gain_by_how_much_nearer_they_are_to_their_middle_than_to_zero() -> None:
    values = np.array([[1.0, np.nan, -1.0], [3.0, 2.0, -2.0], [2.0, 4.0, 5.0]])
    gain, late = _gain_rows(values, np.array([0, 1, 2]))
    assert late.tolist() == [2.0, 2.0, 0.0]
    assert gain.tolist() == [(1 - 1) + (3 - 1) + (2 - 0), (2 - 0) + (4 - 2), 0.0]
    assert _gain_rows(values, np.array([], np.int64))[0].tolist() == [0.0] * 3


def test_a_hop_counts_for_its_sender_and_its_receiver_but_not_for_those_who_have_both() -> None:
    late = np.zeros((4, 2))
    late[1] = 0.1  # the hop from 1 to 2
    table = Residuals(np.arange(4), (np.arange(4) + 1) % 4, late, 0.01)
    gain, seconds = _gain(table, [[1], [2], [0], [1, 2], [0, 1]], either_end=True)
    assert gain[0].tolist() == pytest.approx([10.0] * 2) and seconds[0].tolist() == pytest.approx([0.1] * 2)
    assert gain[1:3].tolist() == [[0.0] * 2] * 2
    assert gain[3].tolist() == [0.0] * 2  # what is between its members does not tell that they are late
    assert gain[4].tolist() == pytest.approx([10.0] * 2)
    late[[0, 3]] = 0.1
    all_but_one, _ = _gain(table, [[0]], either_end=False)
    assert all_but_one[0].tolist() == pytest.approx([20.0] * 2)  # both of its hops, and it receives one of them
    late[2] = 0.1
    neighbours, _ = _gain(table, [[0, 3]], either_end=False)
    assert neighbours[0].tolist() == pytest.approx([20.0] * 2)  # not the hop between the two
    late[2] = 0.0
    late[[0, 3]] = 0.0
    plain, _ = _gain(table, [[1], [2], [3]], either_end=False)
    assert plain[0].tolist() == [0.0] * 2  # its other hop, from 0 to 1, is not late


def test_rows_are_found_by_their_ends_whatever_their_order() -> None:
    sender, receiver = np.array([2, 0, 3, 1]), np.array([3, 1, 0, 2])
    late = np.zeros((4, 1))
    late[[0, 3]] = 0.1  # from 2 to 3, and from 1 to 2
    gain, _ = _gain(Residuals(sender, receiver, late, 0.01), [[0], [1], [2], [3]], either_end=False)
    assert gain[:, 0].tolist() == pytest.approx([0.0, 0.0, 20.0, 0.0])
    few, _ = _gain(Residuals(np.array([0]), np.array([-1]), late[:1], 0.01), [[3], [0]], either_end=True)
    assert few[:, 0].tolist() == pytest.approx([0.0, 10.0])


def test_delays_of_a_place_are_judged_inside_its_window() -> None:
    delays = np.zeros((3, 6))
    delays[:2, 2:5] = 0.3
    inside, wider = (score_delays(delays, [0, 1], Window(2, last, 0.3, 1.0), 1.0) for last in (4, 5))
    assert wider == pytest.approx(inside - PER_STEP)


def test_what_hosts_gain_is_kept_apart_and_shares_of_work_are_not_seconds() -> None:
    case, everyone = place(PAIRS), [Candidate(frozenset(m)) for m in ([0], [2], [2, 3], [0, 2])]
    host = np.array([0, 0, 1, 1])
    waits = Residuals(np.arange(2), np.full(2, -1), np.array([[0.0] * STEPS, [0.1] * STEPS]), 0.01, of_hosts=True)
    found = score(case, everyone, [waits], host, None)
    assert found.gain[:, 0].tolist() == pytest.approx([-PER_STEP, 10 - PER_STEP, 10 - PER_STEP, -PER_STEP])
    assert found.of_wait[:, 0].tolist() == pytest.approx([0.0, 10.0, 10.0, 0.0])
    assert found.late_s[:, 0].tolist() == pytest.approx([0.0, 0.1, 0.1, 0.0])
    work = score(case, everyone, [ring(late_in(2, slice(None)), per_work=True)], host, None)
    assert work.share[1, 0] == pytest.approx(0.2) and work.late_s[1, 0] == 0.0
    assert work.of_wait.max() == 0.0


def test_what_a_pipeline_waits_for_is_gained_by_all_of_it() -> None:
    stages = replace(place().stages, stage={0: 0, 1: 0, 2: 1, 3: 1})
    case, everyone = replace(place(), stages=stages), [Candidate(frozenset([e])) for e in (0, 2)]
    starts, work = ring(late_in(0, slice(None))), ring(late_in(0, slice(None)), per_work=True)
    found = score(case, everyone, [starts, work], np.arange(4), np.ones(STEPS))
    assert found.of_wait[:, 0].tolist() == pytest.approx([20.0, 0.0])
    assert found.gain[:, 0].tolist() == pytest.approx([40 - PER_STEP, -PER_STEP])
    assert score(case, everyone, [starts, work], np.arange(4), None).of_wait.max() == 0.0  # always so, by design


def test_a_stage_waits_as_its_best_part_does() -> None:
    stages = StageMap(stage={0: 0, 1: 0, 2: 1, 3: 1}, chains=((0, 2), (1, 3)), confidence=1.0)
    everyone = [Candidate(frozenset([0])), Candidate(frozenset([1])), Candidate(frozenset([0, 1]), 0)]
    hop = Residuals(np.array([0]), np.array([1]), np.full((1, STEPS), 0.2), 0.01)
    found = score(place(stages=stages), everyone, [hop], np.arange(4), np.ones(STEPS))
    assert found.of_wait[:, 0].tolist() == pytest.approx([20.0, 20.0, 20.0])


def test_only_slow_steps_gain_and_nobody_is_later_than_they_are_longer() -> None:
    longer = np.where(np.arange(STEPS) >= 7, 0.15, 0.0)
    found = score(place(), [Candidate(frozenset([2]))], [ring(late_in(2, slice(None)))], np.arange(4), longer)
    assert found.gain[0].tolist() == pytest.approx([-PER_STEP] * 7 + [20 - PER_STEP] * 3)
    assert found.late_s[0].tolist() == pytest.approx([0.0] * 7 + [0.15] * 3)
    weak = score(place(), [Candidate(frozenset([2]))], [ring(late_in(2, slice(None), 0.02))], np.arange(4), longer)
    assert weak.share.max() == 0.0  # what gains less than a step costs shows no amount


@pytest.mark.parametrize(
    ("gain", "stretch"),
    [
        ([-3, 9, 8, 9, -3, -3, -3, -3, 40, -3], (1, 3)),  # 40 in one step are no turns
        ([9, -3, 8, 9, -3], (0, 3)),
        ([-3, 9, -3], (1, 1)),
        ([-3, -1, -3], (1, 1)),
    ],
)
def test_turns_are_a_stretch_that_gains_without_its_best_step(gain: list[int], stretch: tuple[int, int]) -> None:
    found = causes._find_stretch(np.array(gain, np.float64))
    assert (found.first, found.last) == stretch
