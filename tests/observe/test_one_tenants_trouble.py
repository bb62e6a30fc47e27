"""An error of our own in the study of one job costs that job alone, and is named."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from plain_jobs import Made, PlainJob, make_jobs

from prism.observe import build_timeline, diagnose
from prism.observe.parallelism.connections import Connection, begin_as_one, measure_bond
from prism.observe.phases import find_ends, join_phases
from prism.observe.report.outputs import write_outputs

CHAIN = sys.modules["prism.observe.diagnose"]


@pytest.fixture(scope="module")
def two_tenants() -> Made:
    return make_jobs(PlainJob(dp=4, pp=2, seed=1), PlainJob(dp=8, first_host=40, seed=2, size=1.7))


def break_for(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, job_of: Any) -> None:
    whole = getattr(module, name)

    def break_once(*given: Any, **named: Any) -> Any:
        if job_of(*given) == "job-1":
            np.zeros(0)[0]
        return whole(*given, **named)

    monkeypatch.setattr(module, name, break_once)


def test_a_job_that_cannot_be_studied_leaves_the_others(
    two_tenants: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    break_for(monkeypatch, CHAIN, "find_message_streams", lambda _, job: job.id)
    found = diagnose(two_tenants.flows, two_tenants.topology)
    broken, other = found.jobs
    assert broken.endpoints and not broken.steps.height and broken.layout.dp.value is None
    assert set(broken.pairs["kind"]) == {"unknown"}
    assert other.steps.height >= 18 and other.layout.dp.value is not None
    assert any(note.startswith("job-1: could not be studied further (IndexError") for note in found.notes)
    write_outputs(found, build_timeline(found), tmp_path, two_tenants.topology)
    assert (tmp_path / "report.html").stat().st_size > 0


def test_a_job_that_goes_on_with_other_hosts_is_observed_until_then(two_tenants: Made) -> None:
    parts = diagnose(two_tenants.flows, two_tenants.topology).jobs
    first, later = (
        replace(p, observed=replace(p.observed, nodes=np.array([n]))) for p, n in zip(parts, (0, 9), strict=True)
    )
    traffic: Any = SimpleNamespace(continued=np.array([9]), endpoints=SimpleNamespace(height=9))
    assert find_ends(traffic, (first, later), 2**62) == {first.id: later.observed.first_ns, later.id: 2**62}


def test_phases_of_a_job_of_which_none_can_be_studied_are_one_job(
    two_tenants: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_for(monkeypatch, CHAIN, "find_message_streams", lambda *_: "job-1")
    parts = diagnose(two_tenants.flows, two_tenants.topology).jobs
    first, later = (int(part.observed.nodes[0]) for part in parts)
    traffic: Any = SimpleNamespace(continued=np.array([later]), endpoints=SimpleNamespace(height=later - first))
    (job,), _ = join_phases(traffic, parts, [])
    assert job.endpoints == (*parts[0].endpoints, *parts[1].endpoints) and not job.studied


@pytest.mark.parametrize("stage", ["measure_transfers", "find_scene", "find_hang"])
def test_findings_that_break_for_one_job_leave_the_others(
    two_tenants: Made, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    import prism.observe.delays.ranking as ranking

    break_for(monkeypatch, ranking, stage, lambda case, *_: case.job.id)
    found = diagnose(two_tenants.flows, two_tenants.topology)
    assert [job.steps.height >= 18 for job in found.jobs] == [True, True]
    assert len([note for note in found.notes if note.startswith("job-1: could not be studied further")]) == 1


def test_a_connection_without_silences_is_no_error() -> None:
    start = np.arange(5, dtype=np.int64) * 1000
    one, other = (
        Connection(src=0, start=start, end=start + 1000, silence=np.zeros(5), shortest=1000.0, moved=np.zeros(5))
        for _ in range(2)
    )
    assert measure_bond(one, other) is None
    assert not begin_as_one(one, other)
