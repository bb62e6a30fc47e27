"""Faults leave the marks on the wire that the physics of collectives gives them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from prism.lab.scenarios import load_scenario, make_scenario
from prism.lab.scenarios.fault import Fault
from prism.lab.scenarios.run import ScenarioRun
from prism.lab.scenarios.scenario import Scenario
from prism.lab.scenarios.stalled import take_ns
from prism.simulate.plans.job import Job


def make_ring(fault: Fault, **settings: Any) -> ScenarioRun:
    """Four hosts in one ring of gradients, with one fault."""
    base = load_scenario("dense-dp-16")
    job = Job(id="job-1", dp=4, tp=8, microbatches=2, overlap=False, **settings)
    cluster = replace(base.cluster, num_hosts=4)
    return make_scenario(Scenario(name="ring", cluster=cluster, jobs=(job,), duration_s=6.0, faults=(fault,)), 0)


def test_hops_over_a_slow_link_end_last_and_the_others_before_them() -> None:
    made = make_ring(Fault(kind="slow_link", host=1, nic=0, speed=0.1, start_s=3.0))
    slow = made.truth["faults"][0]["culprit"]["id"].split(">")[0]
    flows = made.flows.filter(pl.col("start_ns") > made.truth["faults"][0]["start_ns"])
    lane = flows.filter(pl.col("src").str.ends_with(".1") & pl.col("dst").str.ends_with(".1"))
    touches = (pl.col("src") == slow) | (pl.col("dst") == slow)
    ends = lane.sort("start_ns").with_columns(pl.int_range(pl.len()).over("src", "dst").alias("call"))
    both = ends.group_by("call").agg(
        pl.col("end_ns").filter(touches).min().alias("slow"), pl.col("end_ns").filter(~touches).max().alias("others")
    )
    whole = both.drop_nulls()
    assert whole.height > 2
    assert (whole["others"] < whole["slow"]).to_numpy().mean() > 0.9


def test_ends_of_hops_stay_together_where_no_link_is_slow() -> None:
    made = make_ring(Fault(kind="slow_gpu", job="job-1", rank=0, speed=0.5, start_s=3.0))
    lane = made.flows.filter(pl.col("src").str.ends_with(".1") & pl.col("dst").str.ends_with(".1"))
    ends = lane.sort("start_ns").with_columns(pl.int_range(pl.len()).over("src", "dst").alias("call"))
    assert (ends.group_by("call").agg(pl.col("end_ns").n_unique())["end_ns"] == 1).all()


def test_who_waits_for_a_hung_rank_leaves_a_transfer_that_was_cut_short() -> None:
    made = make_ring(Fault(kind="hang", job="job-1", rank=8, start_s=3.0))
    stopped = made.truth["faults"][0]["culprit"]["id"]
    last = made.flows.sort("start_ns").group_by("src", "dst", maintain_order=True).tail(1)
    usual = made.flows.group_by("src", "dst").agg(pl.col("bytes").median().alias("usual"))
    cut = last.join(usual, on=["src", "dst"]).filter(pl.col("bytes") < 0.5 * pl.col("usual"))
    assert cut.height > 0
    assert stopped not in set(cut["src"])


def test_an_undisturbed_transfer_takes_its_bytes_over_the_rate() -> None:
    assert take_ns(np.array([50_000_000, 0])).tolist() == [1_000_000, 1]


def test_two_nics_that_only_talk_to_each_other_are_both_right_names() -> None:
    base = load_scenario("dense-dp-16")
    job = Job(id="job-1", dp=2, tp=8, microbatches=2)
    fault = Fault(kind="slow_link", host=0, nic=3, speed=0.1, start_s=1.0)
    scenario = Scenario(
        name="two", cluster=replace(base.cluster, num_hosts=2), jobs=(job,), duration_s=3.0, faults=(fault,)
    )
    accepted = {c["id"] for c in make_scenario(scenario, 0).truth["faults"][0]["accepted"]}
    assert {"10.0.0.4", "10.0.1.4"} <= accepted


def test_a_stage_that_has_a_host_to_itself_may_be_called_by_either_name() -> None:
    base = load_scenario("dense-dp-16")
    job = Job(id="job-1", pp=2, tp=8, microbatches=4)
    fault = Fault(kind="slow_host", host=1, speed=0.5, start_s=1.0)
    scenario = Scenario(
        name="two", cluster=replace(base.cluster, num_hosts=2), jobs=(job,), duration_s=3.0, faults=(fault,)
    )
    assert {"type": "stage", "id": "1"} in make_scenario(scenario, 0).truth["faults"][0]["accepted"]
