"""Real jobs over gloo, whose packets were captured: those that end are no hangs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import polars as pl
import pytest

from prism.observe import Diagnosis
from prism.observe.diagnose import diagnose
from prism.observe.report.words import say_nothing_found
from prism.records import TOPOLOGY, read_table

DATA = Path(__file__).parent / "data" / "gloo"


@cache
def study(name: str) -> Diagnosis:
    return diagnose(pl.read_parquet(DATA / f"{name}.parquet"), read_table(DATA / "topology.csv", TOPOLOGY))


def test_the_slow_stage_of_a_pipeline_is_named() -> None:
    found = study("ended_pipeline")
    (job,) = (job for job in found.jobs if job.steps.height == 50)
    first = next(finding for finding in found.findings if finding.job == job.id)
    assert (len(job.hosts), first.kind, first.culprit.id) == (4, "slow_compute", "e2-2")


def test_a_rank_that_is_stopped_is_not_told_as_a_clean_bill() -> None:
    told = say_nothing_found(study("stopped_rank"))
    assert not told.clean and "cannot be compared" in told.text


@pytest.mark.parametrize("name", ["ended_pipeline", "next_trial"])
def test_a_job_that_ends_with_a_barrier_is_no_hang(name: str) -> None:
    found = study(name)
    assert sorted(job.life.state for job in found.jobs) == ["ended", "running"]
    assert not [f for f in found.findings if f.kind in ("hang", "restart")]
