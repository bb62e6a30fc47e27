"""Which of the candidates is said to be late, from gains that are given by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from prism.observe.findings import causes, telling
from prism.observe.findings.residuals import Residuals
from prism.observe.findings.scoring import Candidate, Cause, Scores
from prism.observe.findings.waits import are_of_larger_group
from prism.observe.findings.windows import Window

STEPS = 12


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Four hosts of one rank each; a finding is the members and the steps of its cause."""
    monkeypatch.setattr(causes, "tell_late", lambda case, cause, causes, rivals, margin: _say(cause))
    names = [f"node-{i}" for i in range(4)]
    own = {name: {i} for i, name in enumerate(names)}
    return SimpleNamespace(hosts=names, own_by_host=own, stages=SimpleNamespace(stage={}, chains=[]), meets=False)


def _say(cause: Cause) -> tuple[list[int], int, int]:
    return sorted(cause.members), cause.window.first, cause.window.last


def _gains(*late: int, first: int, last: int) -> Scores:
    """Some ranks gain in some steps, the others do not."""
    gain = np.full((4, STEPS), -3.0)
    gain[list(late), first : last + 1] = 50.0
    amounts = np.where(gain > 0, 0.2, 0.0)
    nothing = np.zeros_like(gain)
    return Scores([Candidate(frozenset([rank])) for rank in range(4)], gain, nothing, amounts, amounts, nothing)


def _longer(first: int, last: int) -> Any:
    longer = np.zeros(STEPS)
    longer[first : last + 1] = 0.2
    return longer


def test_the_one_that_explains_the_slow_steps_is_late(case: Any) -> None:
    assert causes._choose(case, _gains(2, first=4, last=8), None, _longer(4, 8)) == [([2], 4, 8)]


def test_one_that_is_slow_now_and_then_is_as_late_as_in_its_slow_steps() -> None:
    scores = _gains(2, first=2, last=9)
    during = np.arange(STEPS) % 4 == 2
    scores = replace(scores, late_s=np.where(during, scores.late_s, 0.0), slow=during)
    assert scores.settle(2, Window(2, 9, 0.0, 1.0)).late_s == 0.2


def test_two_long_steps_at_the_start_of_a_program_are_no_cause(case: Any) -> None:
    assert causes._choose(case, _gains(2, first=0, last=1), None, _longer(0, 1)) == []


def test_one_pause_of_a_whole_stage_does_not_hide_the_rank_that_is_late_for_longer(case: Any) -> None:
    scores = _gains(2, first=4, last=8)
    stage = np.full(STEPS, -3.0)
    stage[4] = 2000.0
    gain, share = np.vstack([scores.gain, stage]), np.vstack([scores.share, np.where(stage > 0, 0.5, 0.0)])
    candidates = [*scores.candidates, Candidate(frozenset([2, 3]), stage=1)]
    scores = Scores(candidates, gain, 0 * gain, share, share, 0 * gain)
    assert causes._choose(case, scores, None, _longer(4, 8)) == [([2], 4, 8)]


def test_a_few_odd_steps_of_a_stage_do_not_hide_the_rank_that_is_late_in_all(case: Any) -> None:
    scores = _gains(2, first=1, last=10)
    stage = np.full(STEPS, -3.0)
    stage[1:11], stage[[2, 5, 8]] = 1.0, 900.0
    gain, share = np.vstack([scores.gain, stage]), np.vstack([scores.share, np.where(stage > 0, 0.5, 0.0)])
    candidates = [*scores.candidates, Candidate(frozenset([0, 1]), stage=0)]
    scores = Scores(candidates, gain, 0 * gain, share, share, 0 * gain)
    assert causes._choose(case, scores, None, _longer(1, 10)) == [([2], 1, 10)]


_LATER = [1.0] * 7 + [1.2, 1.3, 1.3, 1.3]


@pytest.mark.parametrize(
    ("length", "saving", "longer"),
    [
        (_LATER, [], [7, 8, 9, 10]),
        (_LATER, [8], [7, 8, 9, 10]),  # What began in the step before lasts.
        (_LATER, [9, 10], [7, 8, 9, 10]),
        (_LATER, [7, 8], [9, 10]),
        (_LATER, [3, 4, 7, 8], [7, 8, 9, 10]),
        # The second step of each save is longer.
        ([1.0, 1.0, 1.3, 1.0, 1.0, 1.0, 1.3, 1.0, 1.4, 1.4], [1, 2, 5, 6], [8, 9]),
    ],
)
def test_a_step_that_saves_is_slow_by_what_it_takes_longer_than_others_at_the_same_place_of_a_save(
    length: list[float], saving: list[int], longer: list[int]
) -> None:
    marked = np.isin(np.arange(len(length)), saving)
    case: Any = SimpleNamespace(length_s=np.array(length), saving=marked)
    found = causes._find_longer(case)
    assert found is not None and np.flatnonzero(found).tolist() == longer


def test_saves_that_take_longer_by_one_amount_or_another_make_no_step_slow() -> None:
    length, saving = np.ones(40), np.arange(40) % 5 == 4
    length[saving] = 1 + np.array([0.09, 0.06, 0.055, 0.1, 0.06, 0.08, 0.065, 0.05])
    case: Any = SimpleNamespace(length_s=length, saving=saving)
    assert causes._find_longer(case) is None


def test_ranks_of_one_host_that_are_late_in_turns_are_no_uneven_load(case: Any) -> None:
    """Two hosts of two ranks: of one host now this rank is the latest and now that one."""
    case.hosts, case.own_by_host = ["a", "a", "b", "b"], {"a": {0, 1}, "b": {2, 3}}
    scores = _gains(2, 3, first=2, last=9)
    gain = scores.gain.copy()
    gain[2, 2:10:2], gain[3, 3:10:2] = 400.0, 400.0
    ((members, first, last),) = causes._choose(case, replace(scores, gain=gain), None, _longer(2, 9))
    assert set(members) <= {2, 3} and (first, last) == (2, 9)


@pytest.mark.parametrize(("num", "amounts", "uneven"), [(4, 0.5, False), (8, 0.5, True), (10, 0.01, False)])
def test_many_long_steps_of_many_lengths_are_uneven_load_and_others_may_be_pauses(
    case: Any, num: int, amounts: float, uneven: bool
) -> None:
    """Of two hosts another one is late each time."""
    gain = np.where(np.indices((2, STEPS)).sum(axis=0) % 2, 50.0, -3.0)
    share = np.where(gain > 0, np.random.default_rng(5).uniform(1 - amounts, 1 + amounts, gain.shape), 0.0)
    hosts = [Candidate(frozenset([rank])) for rank in range(2)]
    turns = Scores(hosts, gain, 0 * gain, share, share, 0 * gain, slow=np.ones(STEPS, np.bool_))
    assert causes._is_work_uneven(case, turns, slice(0, num)) is uneven


def test_one_that_is_late_in_quick_steps_too_is_not_behind_turns(case: Any) -> None:
    """Steps that are not longer count for turns, so they count for the one that they are compared with."""
    scores = _gains(2, first=4, last=8)
    gain, elsewhere = scores.gain.copy(), np.zeros_like(scores.gain)
    gain[2, 5:8], elsewhere[2, 5:8] = -3.0, 60.0
    longer = _longer(4, 8)
    longer[5:8] = 0.0
    assert causes._choose(case, replace(scores, gain=gain, elsewhere=elsewhere), None, longer) == [([2], 4, 8)]


@pytest.mark.parametrize(("stages", "found"), [({2: 0, 3: 1}, [([2], 4, 8)]), ({}, ["turns"])])
def test_the_next_stage_comes_last_in_some_steps_where_it_waits_for_the_one_that_is_late(
    case: Any, monkeypatch: pytest.MonkeyPatch, stages: dict[int, int], found: list[Any]
) -> None:
    monkeypatch.setattr(causes, "_find_turns", lambda case, scores, longer: ["turns"])
    case.stages.stage, case.stages.chains = stages, [tuple(stages)]
    scores = _gains(2, first=4, last=8)
    gain, waits = scores.gain.copy(), np.zeros_like(scores.gain)
    gain[3, [5, 7]] = waits[3, [5, 7]] = 90.0
    assert causes._choose(case, replace(scores, gain=gain, of_wait=waits), None, _longer(4, 8)) == found


def test_a_late_host_of_a_pipeline_that_all_wait_for_is_not_behind_work_that_scatters(case: Any) -> None:
    case.stages.stage, case.stages.chains = {2: 0, 3: 1}, [(2, 3)]
    scores = _gains(2, first=4, last=8)
    gain, waits = scores.gain.copy(), np.zeros_like(scores.gain)
    waits[2, 4:9] = 50.0
    gain[0, [4, 6, 8]] = gain[1, [5, 7]] = 9.0
    assert causes._choose(case, replace(scores, gain=gain, of_wait=waits), None, _longer(4, 8)) == [([2], 4, 8)]


def test_who_is_late_while_other_steps_are_slow_explains_nothing(case: Any) -> None:
    assert causes._choose(case, _gains(2, first=0, last=3), None, _longer(6, 10)) == []


def test_two_that_gain_alike_are_named_together(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causes, "tell_two", lambda case, one, other, margin: [sorted(one.members | other.members)])
    assert causes._choose(case, _gains(1, 2, first=4, last=8), None, _longer(4, 8)) == [[1, 2]]


def test_a_stage_that_hardly_works_longer_does_not_hide_the_rank_that_does(case: Any) -> None:
    """All ranks of a stage wait a little for the one that is late, and together they gain more."""
    scores = _gains(2, first=4, last=8)
    gain, amounts = np.vstack([scores.gain, 2 * scores.gain[2]]), np.vstack([scores.share, np.full(STEPS, 0.001)])
    stage = Candidate(frozenset([2, 3]), stage=1)
    scores = Scores([*scores.candidates, stage], gain, 0 * gain, amounts, amounts, 0 * gain)
    assert causes._choose(case, scores, None, _longer(4, 8)) == [([2], 4, 8)]


def test_what_a_stage_does_outside_of_its_window_does_not_count() -> None:
    scores = _gains(2, 3, first=4, last=8)
    scores.share[2:, 5] = 1.0, 9.0  # the step after the window
    stage = Cause(frozenset([2, 3]), Window(4, 4, 0.2, 1.0), 100.0, 0.0, 0.2, stage=1)
    assert causes._is_alike(scores, stage)
    assert not causes._is_alike(scores, replace(stage, window=Window(4, 5, 0.2, 1.0)))


@pytest.mark.parametrize("scale", [0.01, 1.0])
@pytest.mark.parametrize(("spread", "uneven"), [(0.1, False), (0.4, True)])
def test_work_is_uneven_where_the_last_is_late_by_amounts_that_vary_relative_to_themselves(
    case: Any, scale: float, spread: float, uneven: bool
) -> None:
    scores = _gains(0, first=0, last=STEPS - 1)
    scores.share[0] = scale * (1 + spread * np.tile([-1.0, -0.5, 0.5, 1.0], STEPS // 4))
    assert causes._is_work_uneven(case, scores, slice(None)) is uneven


@pytest.mark.parametrize(
    ("amounts", "told"), [((0.2, 0.2, 0.2, 0.2, 0.2), "stage"), ((0.1, 0.9, 0.3, 0.5, 0.05), "turns")]
)
def test_a_stage_has_one_amount_of_work_more_and_uneven_work_has_many(
    case: Any, monkeypatch: pytest.MonkeyPatch, amounts: tuple[float, ...], told: str
) -> None:
    monkeypatch.setattr(causes, "tell_late", lambda case, cause, causes, rivals, margin: "stage")
    monkeypatch.setattr(causes, "_find_turns", lambda case, scores, longer: ["turns"])
    scores = _gains(2, 3, first=4, last=8)
    share = scores.share.copy()
    share[2:, 4:9] = amounts
    gain, share = np.vstack([scores.gain, 3 * scores.gain[2]]), np.vstack([share, share[2]])
    stage = Candidate(frozenset([2, 3]), stage=1)
    scores = Scores([*scores.candidates, stage], gain, 0 * gain, share, share, 0 * gain)
    assert causes._choose(case, scores, None, _longer(4, 8)) == [told]


def test_ranks_that_nothing_tells_of_are_not_cleared() -> None:
    """A host of four of which two are seen, both late, is late; one of two that are seen is late alone."""
    tensors, blocks = SimpleNamespace(value=1), SimpleNamespace(value=None)
    case: Any = SimpleNamespace(
        hosts=["node-0"] * 4, own_by_host={"node-0": {0, 1, 2, 3}}, calls=SimpleNamespace(kinds=("dp",)), gpus=4,
        layout=SimpleNamespace(tp=tensors, cp=blocks), stages=SimpleNamespace(chains=()),
    )  # fmt: skip
    window = causes.Window(0, 4, 0.3, 1.0)

    def mates(*gains: float) -> list[int]:
        own = [Cause(frozenset([i]), window, g, 0.0, 0.1, seen=not np.isnan(g)) for i, g in enumerate(gains)]
        return telling.with_mates(case, own[0], own)

    assert mates(90.0, 90.0, np.nan, np.nan) == [0, 1, 2, 3]
    assert mates(90.0, -3.0, np.nan, np.nan) == [0]
    assert mates(90.0, 90.0, -3.0, -3.0) == [0, 1]
    tensors.value = 4  # All wait for the late one before they send anything.
    assert mates(90.0, -3.0, -3.0, -3.0) == [0, 1, 2, 3]


def test_one_step_that_is_far_out_does_not_hide_who_is_late_in_the_slow_ones(case: Any) -> None:
    scores = _gains(2, first=4, last=8)
    scores.gain[:, 1:4] = -100.0
    scores.gain[1, 0], scores.share[1, 0] = 1000.0, 20.0
    assert causes._choose(case, scores, None, _longer(4, 8)) == [([2], 4, 8)]


def test_the_hops_between_two_tell_neither_from_the_other(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both gain by the hop between them, so that either may be late; hops with others are no excuse."""
    monkeypatch.setattr(causes, "tell_two", lambda case, one, other, margin: [sorted(one.members | other.members)])
    scores = _gains(2, 3, first=4, last=8)
    scores.gain[2, 4:9] += 20.0
    late = np.zeros((1, STEPS))
    late[:, 4:9] = 0.053
    between, beside = (Residuals(np.array([sender]), np.array([3]), late, 0.001) for sender in (2, 0))
    assert causes._choose(case, replace(scores, tables=[between]), None, _longer(4, 8)) == [[2, 3]]
    assert causes._choose(case, replace(scores, tables=[beside]), None, _longer(4, 8)) == []


def test_two_whose_own_work_is_long_are_not_reported_as_the_two_ends_of_a_hop() -> None:
    case: Any = SimpleNamespace(hosts=["node-0", "node-1", "node-2"], own_by_host={f"node-{i}": {i} for i in range(3)})
    one, other = (Cause(frozenset([i]), causes.Window(0, 4, 0.3, 1.0), 90.0, 0.0, 0.0) for i in range(2))
    assert telling.tell_two(case, one, other, 1.0) == []


def test_who_gains_nothing_is_no_second_of_two(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causes, "tell_two", lambda case, one, other, margin: ["two"])
    scores = _gains(2, first=4, last=8)
    scores.gain[:, 4:9] = np.where(scores.gain[:, 4:9] > 0, 1.5, 0.0)
    assert causes._choose(case, scores, None, _longer(4, 8)) == [([2], 4, 8)]
    scores.gain[3, 4:9] = 0.1
    assert causes._choose(case, scores, None, _longer(4, 8)) == ["two"]


@pytest.mark.parametrize(
    ("pairs", "is_larger"),
    [
        ([(1, 2), (2, 1)], False),  # replicas of one stage, which is the last of all stages
        ([(1, 2), (2, 3), (3, 1)], True),
        ([(1, 3), (3, 1), (2, 0)], False),  # they never meet
    ],
)
def test_two_hosts_that_always_come_last_are_so_by_design_where_they_exchange_with_each_other_alone(
    pairs: list[tuple[int, int]], is_larger: bool
) -> None:
    src, dst = np.array(pairs, np.int64).T
    kind = np.zeros(len(pairs), np.int64)
    calls = SimpleNamespace(kinds=("dp", "pp"), kind=np.append(kind, 1), src=np.append(src, 0), dst=np.append(dst, 1))
    case: Any = SimpleNamespace(calls=calls, hosts=["h0", "h1", "h2", "h3"])
    assert are_of_larger_group(case, {"h1", "h2"}) is is_larger
