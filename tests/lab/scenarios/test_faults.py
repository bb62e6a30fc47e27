"""Every fault really happens, and the truth says what it did."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from small_scenarios import small

from prism.errors import BadConfigError
from prism.lab.scenarios import make_scenario
from prism.lab.scenarios.fault import NEEDS
from prism.records.findings import Culprit
from prism.simulate.cluster import Nics

PIPELINE = "dp: 2, tp: 4, pp: 4, microbatches: 8, micro_batch: 8, checkpoint: {every_steps: 3, storage_gb_per_s: 40}"
REPLICAS = "dp: 8, tp: 4, microbatches: 2, micro_batch: 4, overlap: false"
OTHER = "  - {id: b, model: {preset: gpt-1.3b, layers: 8}, dp: 16, micro_batch: 2, placement: {gpus: [1, 3, 5, 7]}}\n"

# fault, job, finding, culprit, more keys of the scenario
CASES = {
    "slow_gpu": ("job: a, rank: 5, speed: 0.5", PIPELINE, "slow_compute", Culprit(type="endpoint", id="10.0.0.6"), {}),
    "slow_host": ("host: 2, speed: 0.5", PIPELINE, "slow_compute", Culprit(type="host", id="node-0002"), {}),
    "thermal": ("host: 2, speed: 0.4", PIPELINE, "slow_compute", Culprit(type="host", id="node-0002"), {}),
    "slow_link": ("host: 1, nic: 3, speed: 0.05", REPLICAS, "slow_link", Culprit(type="link", id="10.0.1.4>leaf-3"), {}),
    "flapping_link": (
        "host: 1, nic: 3, speed: 0.02, period_s: 0.5", REPLICAS, "slow_link", Culprit(type="link", id="10.0.1.4>leaf-3"), {},
    ),
    "slow_switch": ("switch: leaf-3, speed: 0.05", REPLICAS, "slow_switch", Culprit(type="switch", id="leaf-3"), {}),
    "ecmp_collision": ("job: a, speed: 0.1", REPLICAS, "slow_link", None, {"rail": False}),
    "contention": (
        "job: a, other: b, speed: 0.02", "dp: 16, microbatches: 2, overlap: false, placement: {gpus: [0, 2, 4, 6]}",
        "contention", None, {"rest": OTHER, "nics": 4},
    ),
    "load_imbalance": ("job: a, spread: 0.5", PIPELINE, "load_imbalance", Culprit(type="job", id="a"), {}),
    "stage_imbalance": ("job: a, stage: 3, speed: 0.6", PIPELINE, "stage_imbalance", Culprit(type="stage", id="3"), {}),
    "hang": ("job: a, rank: 17", PIPELINE, "hang", Culprit(type="endpoint", id="10.0.2.2"), {}),
    "node_loss": ("host: 3, down_s: 2", PIPELINE, "hang", Culprit(type="host", id="node-0003"), {}),
    "gc_pauses": ("job: a, pause_ms: 100, period_s: 0.3", PIPELINE, "slow_step", Culprit(type="job", id="a"), {}),
    "checkpoint_stall": ("job: a, speed: 0.2", PIPELINE, "slow_step", Culprit(type="job", id="a"), {}),
}  # fmt: skip


def run_fault(kind: str):
    settings, job, _, _, more = CASES[kind]
    rest = more.get("rest", "") + f"faults: [{{kind: {kind}, start_s: 3, {settings}}}]"
    scenario = small(job, rest=rest, rail=more.get("rail", True))
    if "nics" in more:
        scenario = replace(scenario, cluster=replace(scenario.cluster, nics=Nics(count=more["nics"])))
    return make_scenario(scenario, 2)


def test_every_kind_of_fault_has_a_case():
    assert set(CASES) == set(NEEDS)


@pytest.mark.parametrize("kind", CASES)
def test_a_planted_fault_fires_and_is_named_in_the_words_of_findings(kind):
    run = run_fault(kind)
    _, _, finding, culprit, _ = CASES[kind]
    (fault,) = run.truth["faults"]
    assert fault["fired"] and fault["lost_gpu_seconds"] > 0
    assert fault["kind"] == finding and fault["cause"] == kind
    if culprit is not None:
        assert fault["culprit"] == {"type": culprit.type, "id": culprit.id}
    assert run.truth["start_ns"] + 3 * 10**9 == fault["start_ns"] < fault["end_ns"] <= run.truth["end_ns"]
    if finding != "hang":
        steps = pl.DataFrame(run.truth["jobs"][0]["steps"])
        length = (steps["end_ns"] - steps["start_ns"]).to_numpy()
        before, during = (
            steps["end_ns"].to_numpy() < fault["start_ns"],
            steps["start_ns"].to_numpy() >= fault["start_ns"],
        )
        assert length[during].mean() > 1.01 * length[before].mean()  # the effect shows in the steps themselves


def test_a_hang_silences_the_job_for_good():
    run = run_fault("hang")
    (fault,) = run.truth["faults"]
    step = np.diff([s["start_ns"] for s in run.truth["jobs"][0]["steps"]]).mean()
    assert run.flows["end_ns"].max() < fault["start_ns"] + 2 * step
    assert fault["effects"][0]["silent_ns"] > 3 * 10**9


def test_a_lost_node_stops_the_job_until_it_is_back():
    run = run_fault("node_loss")
    (fault,) = run.truth["faults"]
    assert fault["end_ns"] - fault["start_ns"] == 2 * 10**9
    after = run.flows.filter(pl.col("start_ns") >= fault["end_ns"])
    assert after.height > 0
    late = run.flows.filter(pl.col("start_ns").is_between(fault["end_ns"] - 10**9, fault["end_ns"] - 1))
    assert late.is_empty()


def test_steps_before_a_fault_are_those_of_the_run_without_it():
    with_fault = run_fault("slow_gpu")
    without = make_scenario(small(PIPELINE), 2)
    early = [pl.DataFrame(r.truth["jobs"][0]["steps"]) for r in (with_fault, without)]
    before = early[0].filter(pl.col("end_ns") < with_fault.truth["faults"][0]["start_ns"])
    assert before.height > 2
    assert before.equals(early[1].head(before.height))


def test_a_fault_with_an_end_leaves_later_steps_as_they_were():
    run = make_scenario(small(PIPELINE, rest="faults: [{kind: slow_gpu, job: a, rank: 5, start_s: 2, end_s: 4}]"), 2)
    end = run.truth["faults"][0]["end_ns"]
    steps = pl.DataFrame(run.truth["jobs"][0]["steps"]).filter((pl.col("index") + 1) % 3 != 0)
    length = (steps["end_ns"] - steps["start_ns"]).to_numpy()
    start = steps["start_ns"].to_numpy()
    before, after = length[start + length < run.truth["faults"][0]["start_ns"]], length[start > end]
    assert after.mean() == pytest.approx(before.mean(), rel=0.05)


def test_a_colliding_connection_takes_the_other_ones_uplink_while_it_lasts():
    run = run_fault("ecmp_collision")
    (fault,) = run.truth["faults"]
    crossing = run.flows.filter(pl.col("path").str.starts_with(fault["culprit"]["id"]))
    held = crossing["start_ns"] >= fault["start_ns"]
    before, during = (set(crossing.filter(mask)["src"]) for mask in (~held, held))
    assert before < during


def test_a_fault_where_no_job_runs_is_refused():
    scenario = small("dp: 8", rest="faults: [{kind: slow_host, host: 3}]")
    with pytest.raises(BadConfigError, match="touches no job"):
        make_scenario(scenario, 1)
