"""How a job gets on, by hand: noise that is no trouble, slopes, pauses, and silences that end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_finding_decisions import BEGIN, HOSTS, MS, S, make_case, make_messages, name

from prism.observe.findings import silence
from prism.observe.findings.case import Case, culprit
from prism.observe.findings.progress import find_drift, find_longer_pauses, find_slow_steps
from prism.observe.findings.silence import find_hang
from prism.observe.findings.stopped import FirstToStop


def test_steps_within_six_times_their_own_noise_are_usual_however_short_they_are() -> None:
    noise = 1 + 0.04 * np.random.default_rng(5).standard_normal(40)
    stretch = np.r_[np.ones(20), np.full(10, 1.1), np.ones(10)]
    assert find_slow_steps(make_case((0.1 * noise * stretch).tolist())) == []
    assert name(find_slow_steps(make_case((0.1 * stretch).tolist()))) == [("slow_step", "job-1")]


def test_a_slow_stretch_is_reported_where_steps_have_many_messages() -> None:
    lengths = [1.0] * 20 + [1.5] * 6 + [1.0] * 10
    ends = BEGIN + np.round(np.cumsum(lengths) * S).astype(np.int64)
    rows = [(h, int(end) - 100 * MS, int(end) - MS, i) for i, end in enumerate(ends) for h in range(HOSTS)]
    (found,) = find_slow_steps(make_case(lengths, make_messages(rows)))
    assert found.lost_gpu_seconds == pytest.approx(6 * 0.5 * HOSTS, rel=0.01)
    assert found.evidence.startswith("6 steps of 1.500 s on average, up to 1.500 s; usually 1.000 s")


def test_a_stretch_is_slow_where_it_is_longer_by_six_times_what_steps_differ_by() -> None:
    lengths = np.tile([0.96, 0.98, 1.0, 1.02, 1.04], 8)  # the shorter ones scatter by 0.02 around 0.98
    for times, told in ((6.5, True), (5.5, False)):
        lengths[20:26] = 0.98 + times * 1.4826 * 0.02
        assert bool(find_slow_steps(make_case(lengths.tolist()))) is told


def test_a_standstill_that_is_told_makes_no_slow_steps_of_the_saves_around_it() -> None:
    """Every sixth step saves; in one of the others the job stands still for six seconds, and goes on."""
    lengths = np.where(np.arange(30) % 6 == 5, 1.4, 1.0)
    lengths[15] = 7.0
    case = make_case(lengths.tolist())
    begin = int(case.steps["start_ns"][15]) + 500 * MS
    stop = case.finding("hang", culprit("host", "h1"), 15, 15, lost_s=6.0, score=0.9, evidence="")
    stop = replace(stop, start_ns=begin, end_ns=begin + 6 * S)
    assert name(find_slow_steps(case)) == [("slow_step", "job-1")]
    assert find_slow_steps(case, [stop]) == []


def make_counted(lengths: list[float], counts: list[int]) -> Case:
    """Steps of which each sends so many messages, one after the other until it ends."""
    ends = BEGIN + np.round(np.cumsum(lengths) * S).astype(np.int64)
    rows = [
        (0, int(end - length * S * (k + 1) / num), int(end - length * S * k / num), i)
        for i, (end, length, num) in enumerate(zip(ends, lengths, counts, strict=True))
        for k in range(num)
    ]
    return make_case(lengths, make_messages(rows))


@pytest.mark.parametrize(
    ("more", "length", "told"),
    [
        (1, 1.15, True),  # one message of twenty more is no second step
        (20, 2.15, False),
        (20, 2.3, True),
    ],
)
@pytest.mark.parametrize("first", [0, 20])
def test_only_a_step_that_holds_a_good_part_of_another_is_taken_for_a_missed_boundary(
    first: int, more: int, length: float, told: bool
) -> None:
    lengths, counts = [1.0] * 40, [20] * 40
    lengths[first : first + 6], counts[first : first + 6] = [length] * 6, [20 + more] * 6
    assert bool(find_slow_steps(make_counted(lengths, counts))) is told


@pytest.mark.parametrize("usual", [0.1, 10.0])
@pytest.mark.parametrize(("rise", "told"), [(0.04, True), (0.02, False)])
def test_a_drift_is_a_share_of_the_usual_step_and_lasts_from_the_first_step_to_the_last(
    usual: float, rise: float, told: bool
) -> None:
    case = make_case((usual * (1 + rise * np.arange(40) / 39)).tolist())
    found = find_drift(case)
    assert [(f.start_ns, f.end_ns) for f in found] == [(case.steps["start_ns"][0], case.steps["end_ns"][-1])] * told


def test_a_drift_costs_half_of_its_rise_in_every_step() -> None:
    (found,) = find_drift(make_case((1 + 0.1 * np.arange(40) / 39).tolist()))
    assert found.lost_gpu_seconds == pytest.approx(0.5 * 0.1 * 40 * HOSTS, rel=0.01)
    assert "steps grew from 1.000 s to 1.100 s (9.5 %)" in found.evidence and found.score == 0.5


@pytest.mark.parametrize(("num", "told"), [(4, True), (3, False)])
def test_four_pauses_can_show_that_they_became_longer(num: int, told: bool) -> None:
    pauses = dict(zip(range(4, 40, 5), [0.4, 0.4, 0.8, 0.8][-num:], strict=False))
    lengths = [1.0 + pauses.get(i, 0.0) for i in range(40)]
    assert bool(find_longer_pauses(make_case(lengths, pauses=pauses))) is told


# -- silences that end


def make_broken(*, resumed: bool, silent_s: float = 30.0) -> Case:
    """A ring of six layers in steps of 1.2 s that falls silent after three layers of the eleventh, and comes back.

    It goes on with the fourth layer where it is resumed, and begins a step anew where it is not.
    """
    rows, lengths, at = [], [], BEGIN
    for step in range(20):
        begin = at
        for layer in range(6):
            if step == 10 and layer == 3:
                at += round(silent_s * S)
                if not resumed:
                    break
            start = at + layer * 150 * MS
            rows += [(h, start, start + 100 * MS, step) for h in range(HOSTS)]
        at += 1200 * MS if resumed or step != 10 else 450 * MS
        lengths.append((at - begin) / S)
    return make_case(lengths, make_messages(rows), until_s=sum(lengths))


def test_a_job_that_broke_off_a_step_and_began_anew_was_started_again() -> None:
    (found,) = find_hang(make_broken(resumed=False))
    assert (found.kind, found.culprit.type, found.score) == ("restart", "job", 0.8)
    assert "it came back after 30." in found.evidence
    assert found.lost_gpu_seconds == pytest.approx(30.05 * HOSTS, rel=0.01)
    assert (found.end_ns - found.start_ns) / S == pytest.approx(30.05, abs=0.3)


def test_a_job_that_finished_the_broken_step_was_held_up() -> None:
    (found,) = find_hang(make_broken(resumed=True))
    assert (found.kind, found.culprit.type, found.score) == ("slow_step", "job", 0.5)
    assert "which was finished afterwards" in found.evidence
    assert find_hang(make_broken(resumed=True, silent_s=1.0)) == []


def test_a_host_of_which_one_rank_stopped_is_what_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_broken(resumed=False)
    first = FirstToStop(culprit("endpoint", case.address(1)), why="it sent nothing", others_went_on=True, score=0.9)
    monkeypatch.setattr(silence, "name_first_to_stop", lambda *_: first)
    (found,) = find_hang(case)
    assert (found.kind, found.culprit.type) == ("hang", "host")
    assert found.culprit.id == case.endpoints["host"][1]


@pytest.mark.parametrize(("quick", "told"), [(6, True), (5, False)])
def test_what_is_slow_nearly_always_is_how_the_job_is(quick: int, told: bool) -> None:
    lengths = [1.0] * quick + ([1.5, 1.5, 1.0] * 12)[-(40 - quick) - 1 : -1]
    assert len(lengths) == 40 and lengths[-1] == 1.5
    assert bool(find_slow_steps(make_case(lengths))) is told


def test_a_stretch_must_cost_half_a_step_and_a_single_one_two() -> None:
    def cost(step: float, num: int) -> bool:
        return bool(find_slow_steps(make_case([1.0] * 20 + [1 + step] * num + [1.0] * 10)))

    assert cost(0.26, 2) and not cost(0.24, 2)
    assert cost(2.1, 1) and not cost(0.9, 1)
    assert not find_slow_steps(make_case([1.0, 1.0, 1.0, 9.0]))
    assert find_slow_steps(make_case([1.0, 1.0, 1.0, 1.0, 9.0]))


def test_the_score_of_a_slow_stretch_grows_with_it_up_to_a_limit() -> None:
    (small,) = find_slow_steps(make_case([1.0] * 20 + [1.2] * 6 + [1.0] * 10))
    (large,) = find_slow_steps(make_case([1.0] * 20 + [3.0] * 6 + [1.0] * 10))
    (larger,) = find_slow_steps(make_case([1.0] * 20 + [9.0] * 6 + [1.0] * 10))
    assert 0.3 < small.score < large.score == larger.score < 0.99


def test_a_drift_needs_twenty_steps_and_rises_in_every_quarter() -> None:
    rise = 1 + 0.1 * np.arange(20) / 19
    assert name(find_drift(make_case(rise.tolist()))) == [("drift", "job-1")]
    flat = rise.copy()
    flat[10:15] = flat[5:10]
    assert find_drift(make_case(flat.tolist())) == []
    noisy = rise + 0.2 * np.random.default_rng(0).standard_normal(20)
    assert find_drift(make_case(noisy.tolist())) == []


def test_a_drift_must_rise_above_what_steps_differ_by() -> None:
    x, turn = np.arange(40) / 39, np.tile([1.0, -1.0], 20)
    assert find_drift(make_case((1 + 0.1 * x + 0.01 * turn).tolist())) != []
    assert find_drift(make_case((1 + 0.1 * x + 0.05 * turn).tolist())) == []


def test_longer_pauses_are_reported_with_their_number_and_length() -> None:
    at = dict(zip(range(2, 60, 4), [0.4] * 4 + [0.8] * 3 + [0.4] * 3, strict=False))
    case = make_case([1.0 + at.get(i, 0.0) for i in range(62)], pauses=at)
    (found,) = find_longer_pauses(case)
    assert found.evidence == "3 pauses after steps of 0.80 s on average; before 0.40 s" and found.score == 0.6
    assert found.lost_gpu_seconds == pytest.approx(3 * 0.4 * HOSTS, rel=0.01)
    assert (found.start_ns, found.end_ns) == (case.steps["start_ns"][18], case.steps["end_ns"][26])


def test_the_rise_of_a_drift_is_between_steps_half_the_observation_apart() -> None:
    x = np.arange(40) / 39
    lengths = 1 + 0.1 * x**1.5
    rise = float(np.median((lengths[20:] - lengths[:20]) / (x[20:] - x[:20])))
    (found,) = find_drift(make_case(lengths.tolist()))
    assert found.lost_gpu_seconds == pytest.approx(0.5 * rise * 40 * HOSTS, rel=1e-4)


def test_pauses_must_be_longer_by_a_third_most_of_the_time_and_not_always() -> None:
    def told(pauses: list[float]) -> bool:
        at = dict(zip(range(2, 60, 4), pauses, strict=False))
        return bool(find_longer_pauses(make_case([1.0 + at.get(i, 0.0) for i in range(62)], pauses=at)))

    assert told([0.4] * 6 + [0.54] * 3) and not told([0.4] * 6 + [0.5] * 3)
    assert not told([0.4] * 8 + [0.8])  # one is none
    assert told([0.4] * 3 + [0.8] * 5)
    assert told([0.4] * 4 + [0.8, 0.8, 0.4, 0.8]) and not told([0.4] * 4 + [0.8, 0.4, 0.8, 0.4])
    assert not told([0.4] + [0.8] * 8)
    assert not told([0.8] * 4 + [0.4] * 4)  # none was shorter before


@pytest.mark.parametrize(("steps", "told"), [(10, 0), (13, 1)])
def test_a_pause_whose_end_was_not_seen_is_not_compared(steps: int, told: int) -> None:
    at = {2: 0.4, 5: 0.8, 8: 0.8, 9: 0.4}
    case = make_case([1.0 + at.get(i, 0.0) for i in range(steps)], pauses=at)
    assert len(find_longer_pauses(case)) == told
