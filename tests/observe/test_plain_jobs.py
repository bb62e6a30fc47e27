"""Jobs written by another hand than the scenarios' come out right: any layout, any way of cutting records."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from plain_jobs import Made, PlainJob, make_jobs

from prism.observe import diagnose

sys.path.append(str(Path(__file__).parents[2] / "proving" / "benchmarks"))
from observe_score import Score, score


def read_back(made: Made, *, with_topology: bool = True) -> Score:
    diagnosis = diagnose(made.flows, made.topology if with_topology else None)
    return score(diagnosis.to_json(), made.truth)


def assert_right(result: Score, step_error: float = 0.002, *, layouts: bool = True) -> None:
    assert result.jobs_exact == result.jobs, result.wrong
    assert result.pairs_right == result.pairs, result.wrong
    assert result.stages_right == result.stages, result.wrong
    assert result.steps_missed <= result.jobs, result.wrong
    assert sum(result.step_errors) / len(result.step_errors) < step_error, result.wrong
    if layouts:
        assert result.layouts_right == result.layouts, result.wrong


LAYOUTS = {
    "data parallel": PlainJob(dp=8, gpus_per_host=1),
    "pipeline": PlainJob(dp=1, pp=4, gpus_per_host=1, microbatches=6),
    "data and pipeline": PlainJob(dp=4, pp=4, gpus_per_host=1),
    "tensor parallel in hosts": PlainJob(dp=4, pp=2, tp=4, gpus_per_host=4),
    "tensor and data parallel": PlainJob(dp=4, tp=4, gpus_per_host=4),
    "two replicas in a host": PlainJob(dp=4, pp=2, tp=2, gpus_per_host=4),
    "deep pipeline": PlainJob(dp=2, pp=8, tp=2, gpus_per_host=2, microbatches=8),
    "context parallel": PlainJob(dp=2, cp=4, gpus_per_host=1),
    "experts": PlainJob(dp=8, ep=4, gpus_per_host=1),
    "sharded": PlainJob(dp=8, fsdp=True, gpus_per_host=1, microbatches=1),
}


# A step of these ends with compute that no message follows, so its length is only known to that compute's jitter.
UNSEEN_END = {"pipeline": 0.006, "sharded": 0.01}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_read_back(name: str) -> None:
    assert_right(read_back(make_jobs(LAYOUTS[name])), UNSEEN_END.get(name, 0.002))


@pytest.mark.parametrize(
    "way", [{"buckets": 4}, {"chunks": 4}, {"queue_pairs": 1}, {"queue_pairs": 2}, {"jitter": 0.03}]
)
def test_how_records_are_cut_does_not_matter(way: dict[str, float]) -> None:
    assert_right(read_back(make_jobs(PlainJob(dp=4, pp=4, tp=2, gpus_per_host=2, **way))), 0.005)  # type: ignore[arg-type]


@pytest.mark.parametrize("degrade", ["lossy", "skewed", "milliseconds"])
def test_poor_records_do_not_matter(degrade: str) -> None:
    assert_right(read_back(make_jobs(PlainJob(dp=4, pp=4, tp=2, gpus_per_host=2, steps=30), degrade=degrade)), 0.005)


def test_tenants_are_told_apart_beside_storage() -> None:
    made = make_jobs(
        PlainJob(dp=4, pp=2, tp=4, seed=1),
        PlainJob(dp=8, first_host=8, gpus_per_host=2, tp=2, forward_s=0.03, start_s=0.5, seed=2, size=0.6),
        PlainJob(dp=2, pp=4, first_host=20, gpus_per_host=1, forward_s=0.013, start_s=0.2, seed=3),
        storage=True,
    )
    assert_right(read_back(made))


def test_two_tenants_on_the_same_hosts_are_told_apart() -> None:
    made = make_jobs(
        PlainJob(dp=4, pp=2, tp=2, gpus_per_host=2, seed=1),
        PlainJob(dp=4, pp=2, tp=2, gpus_per_host=2, first_gpu=2, forward_s=0.017, start_s=0.7, seed=2, size=0.5),
    )
    assert_right(read_back(made))


def test_twins_on_the_same_hosts_are_told_apart_by_their_drift() -> None:
    twin = {"dp": 8, "gpus_per_host": 1, "steps": 60, "jitter": 0.03}
    made = make_jobs(PlainJob(**twin, seed=1), PlainJob(**twin, first_gpu=1, seed=2, start_s=0.1))  # type: ignore[arg-type]
    assert_right(read_back(made), 0.01)


def test_without_a_topology_every_endpoint_is_a_host() -> None:
    assert_right(read_back(make_jobs(PlainJob(dp=4, pp=4, gpus_per_host=1)), with_topology=False))


@pytest.mark.parametrize("pause_s", [0.3, 1.0], ids=["part of a step", "several steps"])
def test_a_short_pause_belongs_to_the_step_before_it_and_a_long_one_to_none(pause_s: float) -> None:
    job = PlainJob(dp=4, pp=2, tp=2, gpus_per_host=2, steps=30, pause_every=7, pause_s=pause_s)
    result = read_back(make_jobs(job))
    assert_right(result, 0.01)


def test_a_pipeline_whose_stages_take_now_this_now_that_long_is_cut_into_its_steps() -> None:
    made = make_jobs(PlainJob(dp=1, pp=4, steps=12, gpus_per_host=1, jitter=1.2))
    [job], [truth] = diagnose(made.flows).jobs, made.truth["jobs"]
    begin = np.array([step["start_ns"] for step in truth["steps"]])
    usual = float(np.median(np.diff(begin)))
    assert job.steps.height == len(begin)
    assert np.abs(job.steps["start_ns"].to_numpy() - begin).max() < 0.3 * usual


def test_without_steps_a_layout_is_no_surer_than_a_guess() -> None:
    [job] = diagnose(make_jobs(PlainJob(dp=1, pp=4, steps=12, gpus_per_host=1, jitter=4.0)).flows).jobs
    assert job.steps.is_empty()
    assert job.layout.pp.value == 4
    assert 0 < job.layout.confidence <= 0.5
    assert job.layout.pp.confidence <= 0.5
    assert job.pairs["confidence"].max() <= 0.5  # type: ignore[operator]
