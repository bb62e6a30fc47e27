"""One list of causes: which of them is told, which are listed with it, and what each kind gains, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from test_finding_decisions import make_case, make_finding, make_messages

from prism.observe.findings import contention
from prism.observe.findings.case import culprit
from prism.observe.findings.scoring import PER_STEP, score_delays
from prism.observe.findings.verdicts import Proposal, _measure_noise, choose, covers, weigh
from prism.observe.findings.windows import Window, find_window, quantile_rows
from prism.records.findings import Alternative, CulpritType, Finding, FindingKind

STEPS = 10
S = 10**9
CASE: Any = SimpleNamespace(
    steps=SimpleNamespace(height=STEPS),
    length_s=np.ones(STEPS),
    hosts=[f"h{i}" for i in range(4)],
    stages=SimpleNamespace(stage={}),
)


def propose(
    kind: FindingKind, who: tuple[CulpritType, str], gain: float, *, first: int = 0, last: int = STEPS
) -> Proposal:
    finding = Finding(
        kind=kind, job="job-1", culprit=culprit(*who), start_ns=first * S, end_ns=last * S, lost_gpu_seconds=9.0,
        score=0.9, evidence="it is slow",
    )  # fmt: skip
    return Proposal(finding=finding, gain=gain, by_design=kind == "stage_imbalance")


RANK = propose("slow_compute", ("endpoint", "10.0.0.1"), 90.0)
HOST = propose("slow_compute", ("host", "h1"), 80.0)
LINK = propose("slow_link", ("link", "10.0.0.1>leaf-0"), 60.0)
OTHER_LINK = propose("slow_link", ("link", "10.0.9.1>leaf-1"), 30.0)
SWITCH = propose("slow_switch", ("switch", "leaf-0"), 70.0)
HEAVY = propose("stage_imbalance", ("stage", "3"), 50.0)
UNEVEN = propose("load_imbalance", ("job", "job-1"), 95.0)
SHARED = propose("contention", ("switch", "leaf-0"), 65.0)


@pytest.fixture(autouse=True)
def every_cause_beats_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prism.observe.findings.verdicts.weigh", lambda case, cause: 1.0)


def tell(*proposals: Proposal) -> list[tuple[str, str, list[str]]]:
    """Kind, culprit and the names of the seconds of all that is told."""
    found = choose(CASE, proposals)
    return [(f.kind, f.culprit.id, [a.culprit.id for a in f.alternatives]) for f in found]


@pytest.mark.parametrize(
    ("proposals", "told"),
    [
        ((HOST, RANK), [("slow_compute", "10.0.0.1", ["h1"])]),
        ((HOST, UNEVEN), [("load_imbalance", "job-1", ["h1"])]),
        ((LINK, SWITCH), [("slow_switch", "leaf-0", ["10.0.0.1>leaf-0"])]),
        ((SHARED, LINK), [("contention", "leaf-0", ["10.0.0.1>leaf-0"])]),
        ((SHARED, SWITCH), [("slow_switch", "leaf-0", [])]),
        ((SHARED, replace(SWITCH, comes_and_goes=True)), [("contention", "leaf-0", [])]),  # it does not tell when
        ((replace(SHARED, gain=0.0), replace(SWITCH, comes_and_goes=True)), [("slow_switch", "leaf-0", [])]),
        ((LINK, RANK), [("slow_compute", "10.0.0.1", ["10.0.0.1>leaf-0"])]),
        ((LINK, OTHER_LINK), [("slow_link", "10.0.0.1>leaf-0", ["10.0.9.1>leaf-1"])]),
        ((HEAVY, LINK), [("slow_link", "10.0.0.1>leaf-0", []), ("stage_imbalance", "3", [])]),
        ((), []),
    ],
)
def test_the_cause_that_gains_most_is_reported_and_close_ones_are_listed(
    proposals: tuple[Proposal, ...], told: list[tuple[str, str, list[str]]]
) -> None:
    assert tell(*proposals) == told
    assert tell(*reversed(proposals)) == told


def test_what_gains_far_less_is_no_second_and_another_time_is_another_cause() -> None:
    weak = propose("slow_link", ("link", "a>b"), 0.2 * RANK.gain)
    before = propose("slow_compute", ("host", "h2"), 40.0, last=4)
    after = propose("slow_link", ("link", "a>b"), 9.0, first=6)
    assert tell(RANK, weak) == [("slow_compute", "10.0.0.1", [])]
    assert tell(after, before) == [("slow_compute", "h2", []), ("slow_link", "a>b", [])]


def test_seconds_are_in_the_document_and_in_one_phrase_of_the_evidence() -> None:
    own = Alternative(kind="slow_compute", culprit=culprit("host", "h7"), score=0.4)
    (found,) = choose(CASE, [replace(HOST, seconds=(own,)), LINK])
    assert found.evidence == "it is slow; less likely link 10.0.0.1>leaf-0 or host h7"
    assert [a["culprit"]["id"] for a in found.to_json()["alternatives"]] == ["10.0.0.1>leaf-0", "h7"]
    (alone,) = choose(CASE, [RANK])
    assert "alternatives" not in alone.to_json() and alone.evidence == "it is slow"


def test_two_places_that_gain_alike_are_each_one_of_two() -> None:
    (found,) = choose(CASE, [LINK, replace(OTHER_LINK, gain=LINK.gain)])
    assert found.score == 0.5 and [a.score for a in found.alternatives] == [0.5]


def test_a_place_that_is_no_likelier_than_others_is_not_reported() -> None:
    """One of four switches that are all alike slow; one that is far likelier than each of its rivals is told."""

    def tell(rival: float) -> list[float]:
        other = Alternative(kind="slow_switch", culprit=culprit("switch", "leaf-7"), score=rival)
        own = replace(LINK, finding=replace(LINK.finding, score=0.45), seconds=(other,))
        return [found.score for found in choose(CASE, [own])]

    assert tell(0.4) == []
    assert tell(0.2) == [0.45]


def test_what_gains_nothing_is_not_reported() -> None:
    assert choose(CASE, [replace(LINK, gain=-18.0)]) == []


def test_a_cause_that_does_not_beat_none_is_neither_told_nor_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "prism.observe.findings.verdicts.weigh", lambda case, cause: 0.3 if cause.kind == "slow_compute" else 0.8
    )
    (found,) = choose(CASE, [RANK, LINK])
    assert (found.kind, found.score, found.alternatives) == ("slow_link", 0.8, ())


# What single kinds gain


def test_a_place_gains_by_the_transfers_that_pass_it_and_loses_by_quick_ones() -> None:
    delays = np.zeros((5, STEPS))
    delays[:2, 4:] = 0.1
    window = Window(4, STEPS - 1, 0.1, 1.0)
    slow, mixed, quick = (score_delays(delays, rows, window, 1.0) for rows in ([0, 1], [0, 1, 2], [2, 3]))
    assert slow > mixed > 0 > quick
    assert quick == pytest.approx(-PER_STEP * window.length)


def test_two_tenants_gain_by_how_much_one_tells_of_the_other() -> None:
    assert contention._depend((50, 0.5), (50, 0.5)) == pytest.approx(0.0)
    assert contention._depend((50, 1.0), (50, 0.0)) == pytest.approx(100 * math.log(2))
    assert 0 < contention._depend((5, 1.0), (5, 0.0)) < contention._depend((50, 1.0), (50, 0.0))


def test_from_when_to_when_tenants_meet_costs_its_choice() -> None:
    """Eight transfers beside the other are slow and twelve are not: as few as that say little."""
    begin = np.arange(20) * S
    slow = np.arange(20) < 8
    times = pl.DataFrame({"pair": 0, "begin_ns": begin, "end_ns": begin + S // 2, "slower": np.where(slow, 3.0, 1.0)})
    other = make_case([1.0] * STEPS)
    busy = make_messages([(0, int(at), int(at) + S // 2, 0) for at in begin[slow]])
    met = contention._meet(other, times, {0}, "leaf-0>leaf-1", replace(other, messages=busy), {0})
    assert met is not None
    assert met.depends == pytest.approx(contention._depend((8, 1.0), (12, 0.0)) - 2 * math.log(8))


# -- windows and verdicts


def test_windows_at_the_edges() -> None:
    assert find_window(np.array([0.5, 0.0]), 0.2) == Window(0, 0, 0.5, 1.0)
    assert find_window(np.array([0.0, 0.5]), 0.2) == Window(1, 1, 0.5, 1.0)
    assert find_window(np.array([np.nan, 0.5, np.nan]), 0.2) == Window(0, 1, 0.5, 1.0)
    found = find_window(np.array([0.3, 0.2, 0.3]), 0.2)
    assert (found.first, found.last) == (0, 2)
    assert (found.mean, found.share) == (pytest.approx(0.8 / 3), pytest.approx(2 / 3))


def test_a_quantile_is_the_lower_value() -> None:
    values = np.array([[1.0, 2.0, 3.0, 4.0, np.nan]])
    assert quantile_rows(np.array([[5.0, np.nan]]), 1.0, axis=1).tolist() == [5.0]
    assert [quantile_rows(values, share, axis=1)[0] for share in (0.0, 0.32, 0.34, 0.99, 1.0)] == [1, 1, 2, 3, 4]


def test_half_of_a_stretch_is_not_most_of_it() -> None:
    assert not covers(make_finding(0, 5), make_finding(0, 10))
    assert covers(make_finding(0, 5.1), make_finding(0, 10))


def test_noise_is_how_much_a_step_differs_from_the_next() -> None:
    assert _measure_noise(np.array([1.0])) == 0.0
    assert _measure_noise(np.array([1.0, 1.0, 3.0, 3.0, 3.0])) == 0.0  # a change for good is no noise
    lengths = np.tile([1.0, 1.1, 1.0], 10)
    assert _measure_noise(lengths) == pytest.approx(1.4826 * 0.1 / math.sqrt(2), rel=0.01)


@pytest.mark.parametrize(("outside", "sure"), [(3, False), (2, True)])
def test_three_steps_outside_are_enough_to_compare_with(outside: int, sure: bool) -> None:
    case = make_case([1.0] * (6 + outside))
    assert (weigh(case, make_finding(0, 6)) == 1.0) is sure


def test_how_sure_a_cause_is_follows_from_its_steps_in_standard_errors() -> None:
    lengths = np.tile([1.0, 1.1, 1.0], 10)
    lengths[:6] += 0.05
    case = make_case(lengths.tolist())
    inside, outside = lengths[:6], lengths[6:]
    noise = 1.4826 * 0.1 / math.sqrt(2)
    more = float(np.mean(inside - np.median(outside)))
    error = noise * math.sqrt(1 / 6 + (math.pi / 2) / 24)
    found = weigh(case, make_finding(0, float(lengths[:6].sum()) - 0.5))
    assert found == pytest.approx(1 - math.exp(-0.5 * (more / error) ** 2), rel=0.02)


def test_steps_without_noise_are_compared_to_a_fraction_of_a_thousandth() -> None:
    lengths = [0.1] * 20 + [0.1003] * 6
    assert weigh(make_case(lengths), make_finding(2.0, 9.0)) > 0.99


def test_one_step_that_is_far_shorter_counts_no_further_than_six_standard_deviations() -> None:
    lengths = np.tile([1.0, 1.1, 1.0], 10)
    lengths[:12] += 0.2
    lengths[3] = 0.1
    case = make_case(lengths.tolist())
    noise = 1.4826 * 0.1 / math.sqrt(2)
    more = float(np.clip(lengths[:12] - 1.0, -6 * noise, None).mean())
    error = noise * math.sqrt(1 / 12 + (math.pi / 2) / 18)
    found = weigh(case, make_finding(0, float(lengths[:12].sum()) - 0.5))
    assert found == pytest.approx(1 - math.exp(-0.5 * (more / error) ** 2), rel=0.02)
