"""How a job gets on, by hand: noise that is no trouble, slopes, pauses, and silences that end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_finding_decisions import BEGIN, HOSTS, MS, S, make_case, make_messages, name

from prism.observe.findings import silence
from prism.observe.findings.case import Case, culprit
from prism.observe.findings.progress import find_slow_steps
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
