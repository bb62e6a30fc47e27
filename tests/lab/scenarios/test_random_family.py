"""The random family: every seed makes a scenario that holds together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prism.lab.scenarios import RandomConfig, make_scenario, random_scenario
from prism.lab.scenarios.scenario import check_scenario, place_jobs
from prism.lab.scenarios.timeline import plan_job

SMALL = RandomConfig(max_gpus=64, steps=4)


def test_a_seed_always_gives_the_same_scenario():
    assert random_scenario(5, SMALL) == random_scenario(5, SMALL)
    assert random_scenario(5, SMALL) != random_scenario(6, SMALL)


def test_many_seeds_hold_together_and_cover_what_they_should():
    drawn = [random_scenario(seed, RandomConfig(max_gpus=64)) for seed in range(30)]
    for scenario in drawn:
        check_scenario(scenario)
        assert 16 <= scenario.num_gpus <= 64
    jobs = [job for scenario in drawn for job in scenario.jobs]
    assert {j.sharding for j in jobs} >= {"none", "zero1", "zero2", "fsdp"}
    assert any(j.ep > 1 for j in jobs) and any(j.cp > 1 for j in jobs) and any(j.pp > 1 for j in jobs)
    assert any(s.faults for s in drawn) and any(not s.faults for s in drawn)
    assert max(len(s.jobs) for s in drawn) > 2


def test_what_a_config_rules_out_does_not_occur():
    config = RandomConfig(max_gpus=64, max_tenants=1, fault_share=0, degraded_share=0, with_experts=False)
    for seed in range(6):
        scenario = random_scenario(seed, config)
        assert len(scenario.jobs) == 1 and not scenario.faults and scenario.jobs[0].ep == 1
        assert scenario.measurement.lost == 0 and scenario.measurement.sampling_rate == 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_drawn_scenario_runs(seed):
    scenario = random_scenario(seed, replace(SMALL, fault_share=1))
    run = make_scenario(scenario, seed)
    assert set(run.flows["src"]) | set(run.flows["dst"]) <= set(run.topology["address"])
    assert all(job["steps"] for job in run.truth["jobs"]) or run.truth["faults"]


def test_a_slow_link_is_one_that_its_job_uses():
    scenario = random_scenario(7143)
    (fault,) = scenario.faults
    layouts = enumerate(place_jobs(scenario))
    plans = [plan_job(one, scenario.cluster, i, split_replicas=False) for i, one in layouts if fault.host in one.host]
    used = {end for plan in plans for side in ("src", "dst") for end in plan.connections[side]}
    assert fault.kind == "slow_link" and fault.host * scenario.cluster.nics.count + fault.nic in used
