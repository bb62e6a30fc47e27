"""When to save."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.recover.interval import IntervalConfig, SaveClock, choose_interval_s, count_nodes, estimate_mtbf_s


def test_a_cheap_save_gives_youngs_interval():
    assert choose_interval_s(1.0, 1e6) == pytest.approx(math.sqrt(2e6), rel=0.01)


@given(st.floats(1e-9, 10.0))
def test_the_interval_solves_dalys_equation(cost):
    share = choose_interval_s(cost, 1.0)
    assert 0 < share < 1
    assert math.exp(share + cost) * (1 - share) == pytest.approx(1.0, rel=1e-6)


def test_a_save_that_costs_nothing_may_be_made_at_any_time():
    assert choose_interval_s(0.0, 1e6) == 0.0


def test_failures_shorten_the_interval():
    config = IntervalConfig(num_nodes=100)
    assert estimate_mtbf_s(config, 10, 1e5) < estimate_mtbf_s(config, 0, 1e5)


def run_clock(config: IntervalConfig, step_s: float, stall_s: float, write_s: float, **seen: float) -> SaveClock:
    clock = SaveClock(config, **seen)
    for step in range(20):
        clock.step_done(step * step_s)
    clock.save_done(stall_s)
    clock.write_done(write_s)
    for step in range(20):
        clock.step_done(1e4 + step * step_s)
    return clock


def test_before_anything_was_measured_the_first_save_comes_after_a_few_steps():
    assert SaveClock(IntervalConfig(first_steps=7)).interval_steps == 7


def test_the_interval_adapts_to_what_a_save_costs():
    config = IntervalConfig(num_nodes=1000, min_s=0.0, max_s=1e9, cheap_s=1e9)
    cheap, dear = (run_clock(config, 1.0, stall, 0.1) for stall in (0.1, 10.0))
    assert dear.interval_steps == pytest.approx(10 * cheap.interval_steps, rel=0.1)


def test_a_save_that_costs_next_to_nothing_is_made_every_two_minutes():
    assert run_clock(IntervalConfig(), 1.0, 0.005, 1.0).interval_s == pytest.approx(120.0)
    assert run_clock(IntervalConfig(), 1.0, 0.5, 1.0).interval_s == pytest.approx(500.0, rel=0.01)  # 0.1 % of the time
    assert run_clock(IntervalConfig(), 1.0, 0.2, 60.0).interval_s == pytest.approx(600.0, rel=0.01)  # 10 % of writing


def test_an_interval_is_never_shorter_than_the_write_behind_it():
    clock = run_clock(IntervalConfig(num_nodes=10**6, min_s=0.0), 1.0, 0.001, 300.0)
    assert clock.interval_s >= 300.0


def test_the_pause_of_a_save_is_not_taken_for_a_step():
    clock = SaveClock(IntervalConfig(min_s=0.0))
    clock.step_done(0.0)
    clock.step_done(1.0)
    clock.save_done(500.0)
    clock.step_done(501.0)
    clock.step_done(502.0)
    assert clock._step_s == pytest.approx(1.0)


def test_more_failures_mean_saves_closer_together():
    config = IntervalConfig(num_nodes=400, min_s=0.0, max_s=1e9, cheap_s=1e9)
    calm = run_clock(config, 1.0, 1.0, 1.0)
    stormy = run_clock(config, 1.0, 1.0, 1.0, num_failures=50, uptime_s=86_400.0)
    assert stormy.interval_steps < calm.interval_steps / 3


@pytest.mark.parametrize(
    ("environment", "nodes"),
    [
        ({}, 1),
        ({"PRISM_NUM_NODES": "4", "SLURM_JOB_NUM_NODES": "8"}, 4),
        ({"SLURM_JOB_NUM_NODES": "8"}, 8),
        ({"WORLD_SIZE": "32", "LOCAL_WORLD_SIZE": "8"}, 4),
        ({"WORLD_SIZE": "32"}, 1),
        ({"PRISM_NUM_NODES": "many", "WORLD_SIZE": "x", "LOCAL_WORLD_SIZE": "0"}, 1),
    ],
)
def test_a_job_of_more_nodes_is_known_to_fail_more_often(environment, nodes: int, monkeypatch):
    assert count_nodes(environment) == nodes
    for name in ("PRISM_NUM_NODES", "SLURM_JOB_NUM_NODES", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert estimate_mtbf_s(IntervalConfig(node_mtbf_s=1e6), 0, 0.0) == pytest.approx(1e6 / nodes)
