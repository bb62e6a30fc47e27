"""Jobs, layouts, steps and culprits come out of flows right: on recorded production jobs and on made ones."""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl
import pytest

from prism.lab.scenarios import load_scenario, make_scenario
from prism.observe import Diagnosis, build_timeline, diagnose
from prism.records import SPANS

sys.path.append(str(Path(__file__).parents[2] / "proving" / "benchmarks"))
from observe_score import Score, score
from recorded_jobs import Placement, RecordedJob, place_job


def diagnose_jobs(*jobs: RecordedJob) -> tuple[Diagnosis, Score]:
    flows = pl.concat([j.flows for j in jobs]).sort("start_ns")
    topology = pl.concat([j.topology for j in jobs]).unique("address", maintain_order=True)
    diagnosis = diagnose(flows, topology)
    truth = {"jobs": [{**j.truth, "id": f"{j.name}-{i}"} for i, j in enumerate(jobs)]}
    return diagnosis, score(diagnosis.to_json(), truth)


def diagnose_scenario(name: str) -> tuple[Diagnosis, Score]:
    made = make_scenario(load_scenario(name), 0)
    diagnosis = diagnose(made.flows, made.topology)
    return diagnosis, score(diagnosis.to_json(), made.truth)


def assert_structure_right(result: Score) -> None:
    assert result.jobs_exact == result.jobs, result.wrong
    assert result.pairs_right == result.pairs, result.wrong
    assert result.layouts_right == result.layouts, result.wrong
    assert result.stages_right == result.stages, result.wrong
    assert result.steps_missed == 0, result.wrong


@pytest.mark.parametrize("gpus_per_host", [4, 8, 16])
def test_a_recorded_job_of_128_ranks_is_read_back(shared_data: Path, gpus_per_host: int) -> None:
    job = place_job(shared_data / "straggler", "SE", Placement(gpus_per_host=gpus_per_host))
    diagnosis, result = diagnose_jobs(job)
    assert_structure_right(result)
    assert sum(result.step_errors) / len(result.step_errors) < 0.001
    # What the study of this job found: sequences of uneven length.
    assert diagnosis.findings[0].kind == "load_imbalance"


@pytest.mark.parametrize("gpus_per_host", [1, 2])
def test_a_recorded_pipeline_shows_its_heavy_last_stage(shared_data: Path, gpus_per_host: int) -> None:
    job = place_job(shared_data / "straggler", "ST", Placement(gpus_per_host=gpus_per_host))
    diagnosis, result = diagnose_jobs(job)
    assert_structure_right(result)
    assert sum(result.step_errors) / len(result.step_errors) < 0.003
    assert (diagnosis.findings[0].kind, diagnosis.findings[0].culprit.id) == ("stage_imbalance", "3")


def test_four_recorded_tenants_are_told_apart_even_on_shared_hosts(shared_data: Path) -> None:
    folder, start = shared_data / "straggler", 1_700_000_000 * 10**9
    small = {"forward": 9_000_000, "backward": 9_000_000, "params": 1, "grads": 1, "embedding": 77_000_000}
    _, result = diagnose_jobs(
        place_job(folder, "SE", Placement()),
        place_job(folder, "ST", Placement(gpus_per_host=2, first_host=20, seed=1)),
        place_job(
            folder,
            "ST",
            Placement(gpus_per_host=2, first_host=20, first_gpu=2, seed=2, start_ns=start + 700_000_000, sizes=small),
        ),
        place_job(folder, "ST", Placement(gpus_per_host=1, first_host=30, seed=3, start_ns=start + 333_000_000)),
    )
    assert_structure_right(result)


@pytest.mark.parametrize("name", ["dense-3d-64", "two-tenants-128", "accumulate-32", "dense-dp-16"])
def test_healthy_jobs_are_read_back_and_nothing_is_found_wrong(name: str) -> None:
    diagnosis, result = diagnose_scenario(name)
    assert_structure_right(result)
    assert sum(result.step_errors) / len(result.step_errors) < 0.001
    assert diagnosis.findings == ()


def test_a_slow_gpu_is_blamed_and_not_those_that_wait_for_it() -> None:
    diagnosis, result = diagnose_scenario("slow-gpu-64")
    assert_structure_right(result)
    assert diagnosis.findings[0].kind == "slow_compute"
    assert "10.0.2.6" in diagnosis.findings[0].culprit.id.split(",")


def test_shifting_time_shifts_the_steps_and_changes_nothing_else() -> None:
    made = make_scenario(load_scenario("dense-dp-16"), 0)
    here = diagnose(made.flows, made.topology)
    later = diagnose(made.flows.with_columns(pl.col("start_ns", "end_ns") + 12_345_678_901), made.topology)
    assert (later.jobs[0].steps["start_ns"] - here.jobs[0].steps["start_ns"]).unique().to_list() == [12_345_678_901]
    assert later.jobs[0].layout == here.jobs[0].layout


def test_the_timeline_is_a_spans_table_with_every_rank() -> None:
    made = make_scenario(load_scenario("dense-dp-16"), 0)
    diagnosis = diagnose(made.flows, made.topology)
    spans = build_timeline(diagnosis)
    assert spans.schema == SPANS.required
    assert spans["rank"].n_unique() == 16
    assert (spans["end_ns"] >= spans["start_ns"]).all()
    assert set(spans["kind"].unique()) == {"compute", "dp", "step"}


def test_odd_flows_do_no_harm() -> None:
    frame = pl.DataFrame(
        {
            "start_ns": [1, 1, 5],
            "end_ns": [2, 2, None],
            "src": ["a", "a", "a"],
            "dst": ["a", "b", "b"],
            "bytes": [0, 0, 1],
        }
    )
    diagnosis = diagnose(frame)
    assert diagnosis.jobs == ()
    assert "to itself" in diagnosis.notes[0]
    assert diagnose(frame.clear()).jobs == ()
