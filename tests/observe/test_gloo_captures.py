"""Real jobs over gloo, whose transfers the capture cuts at another place in every step."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import polars as pl
import pytest

from prism.observe import Diagnosis
from prism.observe.diagnose import diagnose
from prism.records import TOPOLOGY, read_table

DATA = Path(__file__).parent / "data" / "gloo"


@cache
def study(name: str) -> Diagnosis:
    return diagnose(pl.read_parquet(DATA / f"{name}.parquet"), read_table(DATA / "topology.csv", TOPOLOGY))


@pytest.mark.parametrize(
    ("name", "steps", "kind", "culprit"),
    [
        ("slow_rank", 60, "slow_compute", "d7-1"),
        ("slow_rank_two_leaves", 60, "slow_compute", "e4-3"),
        ("slow_nic", 60, "slow_link", "10.113.0.12>leaf1"),
        ("ended_pipeline", 50, "slow_compute", "e2-2"),
    ],
)
def test_what_is_slow_is_named_in_a_job_whose_records_are_cut_at_random(
    name: str, steps: int, kind: str, culprit: str
) -> None:
    found = study(name)
    (job,) = (job for job in found.jobs if job.steps.height == steps)
    assert len(job.hosts) == 4
    first = next(finding for finding in found.findings if finding.job == job.id)
    assert (first.kind, first.culprit.id) == (kind, culprit)


def test_a_rank_that_is_stopped_is_the_hang() -> None:
    found = study("stopped_rank")
    assert [(f.kind, f.culprit.id) for f in found.findings] == [("hang", "d4-2")]
    states = {job.hosts[0][:2]: job.life.state for job in found.jobs}
    assert states == {"d4": "stopped", "dg": "running"}


@pytest.mark.parametrize("name", ["ended_pipeline", "next_trial"])
def test_a_job_that_ends_with_a_barrier_is_no_hang(name: str) -> None:
    found = study(name)
    assert sorted(job.life.state for job in found.jobs) == ["ended", "running"]
    assert not [f for f in found.findings if f.kind in ("hang", "restart")]
