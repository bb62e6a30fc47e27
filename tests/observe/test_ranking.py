"""Which findings of a job are told together, and in which order, from causes that are given by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from test_finding_decisions import BEGIN, HOSTS, MS, S, make_case, make_finding, make_messages, name

from prism.observe.delays import ranking
from prism.observe.findings.case import Case, culprit
from prism.observe.findings.verdicts import Proposal
from prism.observe.parallelism.stages import StageMap
from prism.records.findings import Finding, FindingKind

LENGTHS = [1.0] * 20 + [1.5] * 6 + [1.0] * 10  # slow from 20 s to 29 s
STAGES = StageMap(stage={0: 0, 1: 0, 2: 1, 3: 1}, chains=((0, 2), (1, 3)), confidence=1.0)
LATE = make_finding(20, 29)
STOP = replace(make_finding(20, 29, who="h3"), kind="hang")


def slow_case(**more: Any) -> Case:
    """All ranks compute longer in six steps; every transfer takes as long as ever."""
    ends = BEGIN + np.round(np.cumsum(LENGTHS) * S).astype(np.int64)
    rows = [(h, int(end) - 100 * MS, int(end) - MS, i) for i, end in enumerate(ends) for h in range(HOSTS)]
    return replace(make_case(LENGTHS, make_messages(rows)), **more)


def find(patch: pytest.MonkeyPatch, case: Case, **given: list[Finding]) -> list[tuple[FindingKind, str]]:
    """What is told where the named generators find this, and the others, but for slow steps, nothing."""
    for generator in ("delays", "network", "heavy_stages", "hang"):
        found = given.get(generator, [])
        plain = generator == "hang"
        listed = found if plain else [Proposal(finding=f, gain=9.0) for f in found]
        patch.setattr(ranking, f"find_{generator}", lambda *_, listed=listed: listed)
    contended = {"job-1": [Proposal(finding=f, gain=9.0) for f in given.get("contention", [])]}
    patch.setattr(ranking, "find_contention", lambda *_: contended)
    patch.setattr(ranking, "find_scene", lambda *_: "scene" if "network" in given else None)
    return [(f.kind, f.culprit.id) for f in ranking.find_all([case])]


SLOW_STEPS = ("slow_step", "job-1")
HOST = ("slow_compute", "h1")


def test_slow_steps_are_told_where_no_cause_accounts_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find(monkeypatch, slow_case()) == [SLOW_STEPS]
    assert find(monkeypatch, slow_case(), delays=[LATE]) == [HOST]


@pytest.mark.parametrize("generator", ["delays", "contention", "network"])
def test_a_cause_at_the_time_of_a_standstill_is_the_standstill(monkeypatch: pytest.MonkeyPatch, generator: str) -> None:
    assert find(monkeypatch, slow_case(), **{generator: [LATE]}) == [HOST]
    assert find(monkeypatch, slow_case(), hang=[STOP], **{generator: [LATE]}) == [("hang", "h3")]


def test_what_is_hidden_names_nobody_who_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bursts do not show what a stage waits for; without stages they do."""
    assert find(monkeypatch, slow_case(bursts=True), delays=[LATE]) == [HOST]
    assert find(monkeypatch, slow_case(stages=STAGES), delays=[LATE]) == [HOST]
    assert find(monkeypatch, slow_case(bursts=True, stages=STAGES), delays=[LATE], heavy_stages=[LATE]) == [SLOW_STEPS]


def test_one_long_step_is_not_told_where_it_may_be_several(monkeypatch: pytest.MonkeyPatch) -> None:
    blind = {"transfers_visible": False}
    one = replace(make_case([1.0] * 20 + [3.5] + [1.0] * 10), **blind)  # type: ignore[arg-type]
    assert find(monkeypatch, one) == []
    assert find(monkeypatch, slow_case(**blind), delays=[LATE]) == [SLOW_STEPS]


def test_what_costs_next_to_nothing_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    case, cheap = slow_case(), make_finding(20, 29, lost=0.1)
    assert find(monkeypatch, case, delays=[cheap]) == [SLOW_STEPS]


@pytest.mark.parametrize(("took_ms", "slowly"), [(190, False), (210, True)])
@pytest.mark.parametrize("named", ["h1", "10.0.1.1", "h0,10.0.1.1"])
def test_a_rank_whose_bursts_take_twice_as_long_while_it_is_late_is_held_up_by_what_it_sends_over(
    monkeypatch: pytest.MonkeyPatch, named: str, took_ms: int, slowly: bool
) -> None:
    lengths = [1.0] * 4 + [1.5] * 4 + [1.0] * 4
    begins = BEGIN + np.round(np.r_[0, np.cumsum(lengths)] * S).astype(np.int64)
    rows = [
        (h, int(at), int(at) + round(took * MS), i)
        for i, (at, length) in enumerate(zip(begins[:-1], lengths, strict=True))
        for h, took in enumerate([took_ms if length > 1 else 100] * 2 + [950 * length] * 2)
    ]
    # What it sends between steps is not of a burst.
    between = make_messages([(1, int(begins[5]) - 50 * MS, int(begins[5]) - 40 * MS, -1)] * 20)
    case = replace(make_case(lengths, pl.concat([make_messages(rows), between])), bursts=True)
    late = replace(make_finding(4, 10), culprit=culprit("endpoint", named))
    assert ranking._sends_slowly(case, late) is slowly
    always = replace(make_finding(0, 14), culprit=culprit("endpoint", named))
    assert not ranking._sends_slowly(case, always)  # nothing is known of how long they take usually
    told = find(monkeypatch, case, delays=[late])
    assert told == ([SLOW_STEPS] if slowly else [("slow_compute", named)])
    assert find(monkeypatch, replace(case, bursts=False), delays=[late]) == [("slow_compute", named)]


@pytest.mark.parametrize(("length_s", "long"), [(1.0, False), (1.01, True)])
def test_a_stop_is_long_beyond_a_usual_step(length_s: float, long: bool) -> None:
    assert ranking._is_long(make_case([1.0] * 10), make_finding(3, 3 + length_s)) is long


def test_the_least_that_is_worth_reporting_is_reported() -> None:
    case = make_case([1.0] * 100)
    assert ranking._is_worth_telling(case, make_finding(0, 50, lost=HOSTS * 0.005 * 50))
    assert ranking._is_worth_telling(case, make_finding(0, 1, lost=HOSTS * 0.001 * 100))


def test_a_hang_that_lasts_to_the_end_comes_first_then_cost_times_confidence() -> None:
    hang = replace(make_finding(0, 10, lost=1.0), kind="hang")
    assert ranking._weight(hang, hang.end_ns) == (True, 0.9, 0.9)
    assert ranking._weight(hang, hang.end_ns + 1)[0] is False
    assert ranking._weight(make_finding(0, 10, lost=10, score=0.5), 0) == (False, 5.0, 0.5)


def test_a_job_that_cannot_be_studied_is_noted_and_the_others_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = slow_case(), make_case([1.0] * 30)
    bad = replace(bad, job=replace(bad.job, id="job-2"))
    measure = ranking._measure

    def fail(case: Any) -> Any:
        if case.job.id == "job-2":
            raise ValueError("no such table")
        return measure(case)

    monkeypatch.setattr(ranking, "_measure", fail)
    notes: list[str] = []
    assert name(ranking.find_all([bad, good], notes=notes)) == [("slow_step", "job-1")]
    assert len(notes) == 1 and "job-2" in notes[0]

    def meet(*args: Any) -> Any:
        raise ValueError("no such switch")

    monkeypatch.setattr(ranking, "find_contention", meet)
    assert name(ranking.find_all([good], notes=notes)) == [("slow_step", "job-1")]
    assert "contention of tenants" in notes[-1]


def test_a_short_stop_is_left_to_what_holds_the_job_up_and_a_long_one_hides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case([1.0] * 30)
    uneven = Proposal(
        finding=replace(make_finding(0, 30), kind="load_imbalance", culprit=culprit("job", "job-1")), gain=9.0
    )
    monkeypatch.setattr(ranking, "find_delays", lambda *_: [uneven])
    monkeypatch.setattr(ranking, "choose", lambda case, proposals: [p.finding for p in proposals])

    def told(length_s: float) -> list[str]:
        stop = replace(make_finding(29, 29 + length_s), kind="hang")
        monkeypatch.setattr(ranking, "find_hang", lambda case: [stop])
        return [f.kind for f in ranking.find_all([case])]

    assert told(0.5) == ["load_imbalance"]
    assert sorted(told(5.0)) == ["hang", "load_imbalance"]
    monkeypatch.setattr(ranking, "find_delays", lambda *_: [replace(uneven, finding=make_finding(0, 30))])
    assert sorted(told(0.5)) == ["hang", "slow_compute"]


def test_the_end_of_the_observation_is_that_of_the_job_seen_last(monkeypatch: pytest.MonkeyPatch) -> None:
    first = make_case([1.0] * 30, until_s=40.0)
    second = make_case([1.0] * 30, until_s=60.0)
    second = replace(second, job=replace(second.job, id="job-2"))
    ends = {
        "job-1": replace(make_finding(31, 40, lost=500), kind="hang"),
        "job-2": replace(make_finding(31, 60), kind="hang"),
    }
    monkeypatch.setattr(ranking, "find_hang", lambda case: [replace(ends[case.job.id], job=case.job.id)])
    # The first job is over; the second one still stands, and comes first though it has cost less.
    assert [f.job for f in ranking.find_all([first, second])] == ["job-2", "job-1"]


def test_a_heavy_stage_is_asked_for_only_where_nobody_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    case, asked = make_case([1.0] * 30), []
    monkeypatch.setattr(ranking, "find_heavy_stages", lambda case: asked.append(case) or [])
    monkeypatch.setattr(ranking, "find_delays", lambda *_: [])
    ranking.find_all([case])
    assert len(asked) == 1
    monkeypatch.setattr(ranking, "find_delays", lambda *_: [Proposal(finding=make_finding(0, 30), gain=1.0)])
    ranking.find_all([case])
    assert len(asked) == 1


def test_a_slow_stretch_is_not_told_beside_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    case = slow_case()
    monkeypatch.setattr(ranking, "find_delays", lambda *_: [Proposal(finding=make_finding(20, 29), gain=9.0)])
    monkeypatch.setattr(ranking, "choose", lambda case, proposals: [p.finding for p in proposals])
    assert [f.kind for f in ranking.find_all([case])] == ["slow_compute"]
