"""Which findings of a job are told together, and in which order, from causes that are given by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from test_finding_decisions import BEGIN, HOSTS, MS, S, make_case, make_finding, make_messages, name

from prism.observe.findings import ranking
from prism.observe.findings.case import Case, culprit
from prism.observe.findings.verdicts import Proposal
from prism.observe.parallelism.stages import StageMap
from prism.records.findings import Finding, FindingKind

LENGTHS = [1.0] * 20 + [1.5] * 6 + [1.0] * 10  # slow from 20 s to 29 s
STAGES = StageMap(stage={0: 0, 1: 0, 2: 1, 3: 1}, chains=((0, 2), (1, 3)), confidence=1.0)
LATE = make_finding(20, 29)
STOP = replace(make_finding(20, 29, who="h3"), kind="hang")
JOB = culprit("job", "job-1")


def slow_case(**more: Any) -> Case:
    """All ranks compute longer in six steps; every transfer takes as long as ever."""
    ends = BEGIN + np.round(np.cumsum(LENGTHS) * S).astype(np.int64)
    rows = [(h, int(end) - 100 * MS, int(end) - MS, i) for i, end in enumerate(ends) for h in range(HOSTS)]
    return replace(make_case(LENGTHS, make_messages(rows)), **more)


def find(patch: pytest.MonkeyPatch, case: Case, **given: list[Finding]) -> list[tuple[FindingKind, str]]:
    """What is told where the named generators find this, and the others, but for slow steps, nothing."""
    for generator in ("late", "hot_expert", "network", "heavy_stages", "hang", "awaited", "longer_pauses"):
        found = given.get(generator, [])
        plain = generator in ("hang", "awaited", "longer_pauses")
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
    assert find(monkeypatch, slow_case(), late=[LATE]) == [HOST]
    assert find(monkeypatch, slow_case(), awaited=[LATE]) == [SLOW_STEPS]
    assert find(monkeypatch, slow_case(waits_visible=True), awaited=[LATE]) == [HOST]


@pytest.mark.parametrize("generator", ["late", "contention", "network"])
def test_a_cause_at_the_time_of_a_standstill_is_the_standstill(monkeypatch: pytest.MonkeyPatch, generator: str) -> None:
    assert find(monkeypatch, slow_case(), **{generator: [LATE]}) == [HOST]
    assert find(monkeypatch, slow_case(), hang=[STOP], **{generator: [LATE]}) == [("hang", "h3")]


def test_what_is_hidden_names_nobody_who_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bursts do not show what a stage waits for; without stages they do."""
    assert find(monkeypatch, slow_case(bursts=True), late=[LATE]) == [HOST]
    assert find(monkeypatch, slow_case(stages=STAGES), late=[LATE]) == [HOST]
    assert find(monkeypatch, slow_case(bursts=True, stages=STAGES), late=[LATE], heavy_stages=[LATE]) == [SLOW_STEPS]


def test_a_stage_that_is_heavy_by_design_is_looked_for_where_nobody_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    always = replace(make_finding(0, 39), kind="stage_imbalance", culprit=culprit("stage", "1"))
    heavy = ("stage_imbalance", "1")
    assert find(monkeypatch, slow_case(), heavy_stages=[always]) == [heavy]
    assert find(monkeypatch, slow_case(), heavy_stages=[always], late=[LATE]) == [HOST]


@pytest.mark.parametrize(("silent_s", "told"), [(0.9, False), (1.1, True)])
def test_a_job_that_is_held_up_now_and_then_has_stopped_where_it_is_silent_for_longer_than_a_step(
    monkeypatch: pytest.MonkeyPatch, silent_s: float, told: bool
) -> None:
    stop = replace(STOP, start_ns=BEGIN + 38 * S, end_ns=BEGIN + 38 * S + round(silent_s * S))
    held_up = replace(LATE, culprit=JOB)
    stopped = [("hang", "h3")]
    assert [f for f in find(monkeypatch, slow_case(), hang=[stop], late=[held_up]) if f[0] == "hang"] == stopped * told
    assert [f for f in find(monkeypatch, slow_case(), hang=[stop], late=[LATE]) if f[0] == "hang"] == stopped


def test_one_long_step_is_not_told_where_it_may_be_several(monkeypatch: pytest.MonkeyPatch) -> None:
    blind = {"transfers_visible": False}
    one = replace(make_case([1.0] * 20 + [3.5] + [1.0] * 10), **blind)  # type: ignore[arg-type]
    assert find(monkeypatch, one) == []
    assert find(monkeypatch, slow_case(**blind), late=[LATE]) == [SLOW_STEPS]
    assert find(monkeypatch, slow_case(**blind), awaited=[LATE]) == [SLOW_STEPS]
    assert find(monkeypatch, slow_case(waits_visible=True, **blind), awaited=[LATE]) == [HOST, SLOW_STEPS]


def test_what_costs_next_to_nothing_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    case, cheap = slow_case(waits_visible=True), make_finding(20, 29, lost=0.1)
    assert find(monkeypatch, case, late=[cheap]) == [SLOW_STEPS]
    assert find(monkeypatch, case, awaited=[cheap]) == [SLOW_STEPS]
    assert find(monkeypatch, case, longer_pauses=[cheap]) == [SLOW_STEPS]
    assert find(monkeypatch, case, longer_pauses=[LATE]) == [HOST, SLOW_STEPS]


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
    told = find(monkeypatch, case, late=[late], awaited=[])
    assert told == ([SLOW_STEPS] if slowly else [("slow_compute", named)])
    assert find(monkeypatch, replace(case, bursts=False), late=[late]) == [("slow_compute", named)]


def test_a_job_that_stands_still_when_the_observation_ends_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    until = BEGIN + round(sum(LENGTHS) * S)
    dear = make_finding(20, 29, lost=1000.0)
    stands = replace(STOP, start_ns=BEGIN + 37 * S, end_ns=until, lost_gpu_seconds=1.0)
    before = replace(stands, start_ns=BEGIN + 30 * S, end_ns=BEGIN + 32 * S)
    case = slow_case(waits_visible=True)
    assert find(monkeypatch, case, late=[dear], hang=[stands]) == [("hang", "h3"), HOST]
    assert find(monkeypatch, case, late=[dear], hang=[before]) == [HOST, ("hang", "h3")]
    sure, unsure = replace(LATE, score=0.9), replace(LATE, lost_gpu_seconds=150.0, score=0.5, culprit=JOB)
    assert ranking._weight(sure, until) > ranking._weight(unsure, until)


def test_a_job_that_cannot_be_analysed_does_not_hide_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> list[Proposal]:
        raise ValueError("no such stage")

    notes: list[str] = []
    monkeypatch.setattr(ranking, "find_contention", fail)
    assert name(ranking.find_all([slow_case()], notes=notes)) == [SLOW_STEPS]
    assert len(notes) == 1 and notes[0].startswith("contention of tenants: ") and "no such stage" in notes[0]
    other = slow_case()
    other = replace(other, job=replace(other.job, id="job-2"))
    real = ranking.find_late
    monkeypatch.setattr(ranking, "find_late", lambda case: fail() if case.job.id == "job-1" else real(case))
    assert name(ranking.find_all([slow_case(), other], notes=notes)) == [("slow_step", "job-2")]
    assert notes[-1].startswith("job-1: ")
