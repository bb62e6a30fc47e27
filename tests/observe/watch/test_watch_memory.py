"""Looks that remember jobs find what looks without a memory find, and study a job again once it changes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import pytest
from made_jobs import Fault, MadeJob, write_job

from prism.observe.watch.analysis import look_at
from prism.observe.watch.memory import JobMemory

LATE = Fault(kind="late_host", place=1, first=24)


@pytest.fixture
def laid_out(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Ids of the jobs whose layout was inferred."""
    module = sys.modules["prism.observe.diagnose"]
    calls: list[str] = []

    def spy(infer: Callable[..., Any]) -> Callable[..., Any]:
        def call(traffic: Any, job: Any, *args: Any) -> Any:
            calls.append(job.id)
            return infer(traffic, job, *args)

        return call

    monkeypatch.setattr(module, "infer_layout", spy(module.infer_layout))
    yield calls


def cut(flows: pl.DataFrame, begin: float, end: float) -> pl.DataFrame:
    """The flows of a stretch of time, in shares of all."""
    first, last = (int(flows["start_ns"].to_numpy()[i]) for i in (0, -1))
    moments = [first + int(share * (last - first)) for share in (begin, end)]
    return flows.filter(pl.col("start_ns").is_between(*moments))


def look(flows: pl.DataFrame, topology: pl.DataFrame, memory: JobMemory | None) -> Any:
    return look_at(flows, topology, int(flows["end_ns"].to_numpy().max()), memory)


def test_a_known_job_is_seen_as_before_without_laying_it_out_again(laid_out: list[str]) -> None:
    flows, topology = write_job(MadeJob(steps=40))
    flows = flows.sort("start_ns")
    memory = JobMemory()
    look(cut(flows, 0, 0.6), topology, memory)
    assert laid_out == ["job-1"]
    later = cut(flows, 0.3, 0.9)
    known = look(later, topology, memory)
    assert laid_out == ["job-1"]
    fresh = look(later, topology, None)
    assert (known.jobs, known.findings) == (fresh.jobs, fresh.findings)


def test_what_begins_in_a_known_job_is_found_in_the_same_look_as_without_a_memory() -> None:
    flows, topology = write_job(MadeJob(steps=40, fault=LATE))
    flows = flows.sort("start_ns")
    memory = JobMemory()
    assert look(cut(flows, 0, 0.5), topology, memory).findings == ()
    later = cut(flows, 0.2, 1.0)
    known, fresh = (look(later, topology, m) for m in (memory, None))
    assert [(f.kind, f.culprit) for f in known.findings] == [(f.kind, f.culprit) for f in fresh.findings]
    assert known.findings


def test_a_job_that_sends_something_else_is_laid_out_again(laid_out: list[str]) -> None:
    flows, topology = write_job(MadeJob(steps=24))
    memory = JobMemory()
    look(flows, topology, memory)
    other, _ = write_job(MadeJob(steps=24, volume=3.0, start_ns=1_700_000_100 * 10**9))
    look(other, topology, memory)
    assert laid_out == ["job-1", "job-1"]


def test_a_job_that_becomes_twice_as_slow_is_studied_again() -> None:
    flows, topology = write_job(MadeJob(steps=24))
    memory = JobMemory()
    before = look(flows, topology, memory)
    slow, _ = write_job(MadeJob(steps=24, forward_ms=20.0, gap_ms=30.0, start_ns=1_700_000_100 * 10**9))
    after = look(slow, topology, memory)
    assert after.jobs[0].num_steps == pytest.approx(before.jobs[0].num_steps, abs=1)
    assert after.jobs[0].step_s > 2 * before.jobs[0].step_s


def test_a_known_job_goes_by_one_clock_until_its_steps_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    flows, topology = write_job(MadeJob(steps=40, jitter=0.0, fault=LATE))
    flows = flows.sort("start_ns")
    steps = sys.modules["prism.observe.steps.cutting"]
    listed: list[str | None] = []

    def spy(*args: Any) -> Any:
        listed.append(args[-1])
        return list_clocks(*args)

    list_clocks = steps.list_clocks
    monkeypatch.setattr(steps, "list_clocks", spy)
    memory = JobMemory()
    for span in ((0.0, 0.4), (0.1, 0.5), (0.2, 1.0)):
        look(cut(flows, *span), topology, memory)
    assert listed[0] is None and listed[1] is not None, "the first look tries all clocks, the second the one chosen"
    assert listed[2:] == [listed[1], None], "the third finds slow steps, and tries all again"


def write_jobs(num: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Jobs of a few seconds on hosts of their own."""
    made = [write_job(MadeJob(steps=16, first_host=8 * i, seed=8 * i)) for i in range(num)]
    return tuple(pl.concat([job[part] for job in made]) for part in (0, 1))  # type: ignore[return-value]


def test_a_look_without_time_studies_one_job_and_puts_the_others_off_to_the_next(laid_out: list[str]) -> None:
    flows, topology = write_jobs(2)
    hours = iter(range(0, 10**6, 10))
    memory = JobMemory(study_s=1.0, now=lambda: next(hours))
    first = look(flows, topology, memory)
    assert len(laid_out) == 1
    assert sorted(job.studied for job in first.jobs) == [False, True]
    assert sorted(job.num_steps > 0 for job in first.jobs) == [False, True]
    assert any(line.startswith("1 jobs are not studied yet") for line in first.notes)
    second = look(flows, topology, memory)
    assert len(laid_out) == 2, "the job that waits is studied, the other one is known"
    assert all(job.studied and job.num_steps > 0 for job in second.jobs)
    assert not any("not studied yet" in line for line in second.notes)
    assert second.jobs == look(flows, topology, None).jobs


def test_a_known_job_that_is_due_again_without_time_is_seen_by_what_is_known(laid_out: list[str]) -> None:
    flows, topology = write_jobs(2)
    memory = JobMemory()
    look(flows, topology, memory)
    hours = iter(range(0, 10**6, 10))
    memory.look, memory.study_s, memory.now = 10**6, 1.0, lambda: next(hours)
    later = look(flows, topology, memory)
    assert len(laid_out) == 3, "one of the two that are due again is studied in full"
    assert all(job.studied and job.num_steps > 0 for job in later.jobs)


def test_jobs_that_were_studied_in_one_look_are_due_again_in_different_ones() -> None:
    memory = JobMemory()
    look(*write_jobs(4), memory)
    assert sorted(met.due for met in memory._jobs.values()) == [5, 6, 7, 8]
