"""Real jobs over gloo, whose packets were captured: who is slow or stopped; those that end are no hangs."""

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


def test_a_stage_that_begins_its_steps_late_is_one_of_two_whose_hop_comes_late() -> None:
    """Over gloo a message begins once both ends are ready, and its sender may be what waits."""
    found = diagnose(pl.read_parquet(DATA / "slow_rank_pipeline.parquet"))
    (job,) = found.jobs
    assert (len(job.hosts), job.layout.pp.value, job.steps.height) == (4, 4, 49)
    assert [(f.kind, f.culprit.type, f.culprit.id) for f in found.findings] == [
        ("slow_compute", "group", "10.230.30.2,10.230.30.3")
    ]


def test_a_rank_that_is_stopped_is_the_hang() -> None:
    found = study("stopped_rank")
    assert [(f.kind, f.culprit.id) for f in found.findings if f.kind == "hang"] == [("hang", "d4-2")]
    assert {job.hosts[0][:2]: job.life.state for job in found.jobs} == {"d4": "stopped", "dg": "running"}


@pytest.mark.parametrize(("name", "culprit"), [("slow_rank", "own-2"), ("slow_rank_two_leaves", "e4-3")])
def test_a_slow_rank_is_named_where_records_are_cut_at_another_place_in_each_step(name: str, culprit: str) -> None:
    late = [finding for finding in study(name).findings if finding.culprit.type != "job"]
    assert [(finding.kind, finding.culprit.id) for finding in late] == [("slow_compute", culprit)]


def test_the_slow_rank_of_fsdp_is_named_whose_layers_are_gathered_all_through_a_step() -> None:
    found = diagnose(pl.read_parquet(DATA / "slow_rank_fsdp.parquet"))
    (job,) = found.jobs
    assert (len(job.hosts), job.steps.height) == (7, 34)
    assert [(f.kind, f.culprit.id) for f in found.findings] == [("slow_compute", "10.239.139.4")]


def test_a_job_whose_rank_is_killed_has_stopped_and_nobody_is_accused() -> None:
    found = study("killed_rank")
    (job,) = (job for job in found.jobs if "own-0" in job.hosts)
    assert (len(job.hosts), job.steps.height, job.life.state) == (4, 25, "stopped")
    assert not [finding for finding in found.findings if finding.culprit.type != "job"]
    assert not say_nothing_found(found).clean


def test_a_rank_that_is_killed_while_all_compute_is_one_of_two_that_began_no_further_step() -> None:
    found = diagnose(pl.read_parquet(DATA / "killed_while_computing.parquet"))
    (job,) = (job for job in found.jobs if "10.204.54.3" in job.endpoints)
    assert (len(job.hosts), job.steps.height, job.life.state) == (4, 17, "stopped")
    named = [(f.kind, f.culprit.type, f.culprit.id) for f in found.findings if f.culprit.type != "job"]
    assert named == [("hang", "group", "10.204.54.3,10.204.54.4")]


def test_a_rank_that_is_killed_is_one_of_two_where_a_neighbour_still_takes_a_part_of_the_next_step() -> None:
    found = diagnose(pl.read_parquet(DATA / "killed_in_ring.parquet"))
    (job,) = (job for job in found.jobs if "10.212.112.3" in job.endpoints)
    assert (len(job.hosts), job.steps.height, job.life.state) == (4, 20, "stopped")
    assert [(f.kind, f.culprit.id) for f in found.findings if f.job == job.id] == [
        ("hang", "10.212.112.3,10.212.112.4")
    ]


def test_a_job_of_fsdp_has_stopped_where_hops_of_one_collective_have_not_sent_as_much() -> None:
    found = diagnose(pl.read_parquet(DATA / "killed_fsdp.parquet"))
    (job,) = (job for job in found.jobs if len(job.hosts) == 4)
    assert job.life.state == "stopped"
    assert not [finding for finding in found.findings if finding.culprit.type != "job"]


def test_two_hosts_that_wait_for_a_core_now_and_then_have_no_slow_link() -> None:
    found = diagnose(pl.read_parquet(DATA / "waits_for_a_core.parquet"))
    assert [len(job.hosts) for job in found.jobs] == [2]
    assert not [finding for finding in found.findings if finding.culprit.type != "job"]


def test_hosts_steps_and_end_of_a_job_whose_records_are_cut_at_random() -> None:
    found = study("ended_ddp")
    jobs = {job.hosts[0]: (len(job.hosts), job.steps.height, job.life.state) for job in found.jobs}
    assert jobs == {"own-0": (4, 50, "ended"), "other-0": (4, 95, "running")}
    assert not [finding for finding in found.findings if finding.culprit.type != "job"]


@pytest.mark.parametrize("name", ["ended_pipeline", "next_trial"])
def test_a_job_that_ends_with_a_barrier_is_no_hang(name: str) -> None:
    found = study(name)
    assert sorted(job.life.state for job in found.jobs) == ["ended", "running"]
    assert not [f for f in found.findings if f.kind in ("hang", "restart")]
