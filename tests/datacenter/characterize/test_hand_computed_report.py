"""The 200-job trace, whose answers are worked out by hand.

    100 Eval      1 GPU    60 s  completed   queue 0, 1, ... 99 s   user ann  Mon  6 March 10:00 on, every 10 s
     30 SFT       8 GPU   600 s  failed      queue 5 s              user bob  Tue  7 March 14:00 on, every minute
     10 Pretrain 64 GPU 36000 s  cancelled   queue 100 s            user cy   Wed  8 March 00:00 on, every hour
     10 Pretrain 256 GPU 7200 s  completed   queue 200 s            user cy   Fri 10 March 23:00 on, every second
     50 Other     0 GPU    10 s  completed   queue 1 s              user dee  Sun 12 March 23:30 on, every second

GPU time: 6,000 + 144,000 + 23,040,000 + 18,432,000 = 41,622,000 GPU-seconds. All on the +08:00 clock.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from prism.datacenter.characterize import Characterization, CharacterizeOptions, characterize

TOTAL = 41_622_000.0


@pytest.fixture
def report(two_hundred_jobs: Path) -> Characterization:
    return characterize(two_hundred_jobs, CharacterizeOptions(gpus=4096))


def test_the_summary_counts_gpu_jobs_apart_from_cpu_jobs(report: Characterization) -> None:
    s = report.study.summary
    assert (s.jobs, s.gpu_jobs, s.cpu_jobs) == (200, 150, 50)
    assert s.mean_gpus == pytest.approx((100 + 240 + 640 + 2560) / 150)
    assert s.median_gpus == 1
    assert s.max_gpus == 256
    assert s.gpu_hours == pytest.approx(TOTAL / 3600)
    assert s.cpu_duration_s.median == 10
    assert s.cpu_queue_s.mean == 1


def test_durations_and_queues_have_the_percentiles_of_the_sorted_list(report: Characterization) -> None:
    s = report.study.summary
    assert s.duration_s.median == 60  # 100 of the 150 run 60 s
    assert s.duration_s.mean == pytest.approx((6000 + 18_000 + 360_000 + 72_000) / 150)
    # Position 0.9 x 149 = 134.1 of 100 x 60, 30 x 600, 10 x 7200, 10 x 36000.
    assert s.duration_s.p90 == 7200
    assert s.duration_s.max == 36_000
    # Queues in order: 0-4, thirty-one times 5, then v at position v + 30; the middle lies between 44 and 45.
    assert s.queue_s.median == 44.5
    assert s.queue_s.mean == pytest.approx((4950 + 150 + 1000 + 2000) / 150)


def test_states_differ_by_count_and_by_gpu_time(report: Characterization) -> None:
    states = {r["state"]: r for r in report.study.states.filter(pl.col("kind") == "gpu").to_dicts()}
    assert {k: r["jobs"] for k, r in states.items()} == {"completed": 110, "failed": 30, "cancelled": 10}
    assert states["completed"]["gpu_time_pct"] == pytest.approx(100 * 18_438_000 / TOTAL)
    assert states["failed"]["jobs_pct"] == 20
    assert states["cancelled"]["gpu_time_pct"] == pytest.approx(100 * 23_040_000 / TOTAL)


def test_sizes_say_at_or_above_and_above(report: Characterization) -> None:
    sizes = {r["gpus"]: r for r in report.study.sizes.to_dicts()}
    assert sizes[64]["jobs_pct"] == pytest.approx(100 * 10 / 150)
    assert sizes[64]["jobs_ge_pct"] == pytest.approx(100 * 20 / 150)
    assert sizes[64]["jobs_gt_pct"] == pytest.approx(100 * 10 / 150)
    assert sizes[64]["gpu_time_ge_pct"] == pytest.approx(100 * 41_472_000 / TOTAL)
    assert sizes[64]["gpu_time_gt_pct"] == pytest.approx(100 * 18_432_000 / TOTAL)
    assert sizes[1]["gpu_time_pct"] == pytest.approx(100 * 6000 / TOTAL)


def test_types_carry_their_own_distributions(report: Characterization) -> None:
    lengths = {(r["measure"], r["group"]): r for r in report.study.lengths.filter(pl.col("by") == "type").to_dicts()}
    assert lengths["duration_s", "Pretrain"]["count"] == 20
    assert lengths["duration_s", "Pretrain"]["median"] == (7200 + 36_000) / 2
    assert lengths["duration_s", "Pretrain"]["mean"] == (7200 + 36_000) / 2
    assert lengths["queue_s", "Eval"]["median"] == 49.5
    assert lengths["queue_s", "Eval"]["p90"] == pytest.approx(89.1)
    types = dict(report.study.types.select("type", "gpu_time_pct").iter_rows())
    assert types["Pretrain"] == pytest.approx(100 * 41_472_000 / TOTAL)
    assert "Other" not in types  # only CPU jobs are of that type


def test_arrivals_are_on_the_clock_of_the_trace(report: Characterization) -> None:
    arrivals = {(r["weekday"], r["hour"]): r["jobs"] for r in report.study.arrivals.to_dicts() if r["jobs"]}
    assert report.clock == "+08:00"
    assert arrivals[1, 10] == 100  # Monday
    assert arrivals[2, 14] == 30
    assert [arrivals[3, hour] for hour in range(10)] == [1] * 10
    assert arrivals[5, 23] == 10
    assert arrivals[7, 23] == 50
    assert sum(arrivals.values()) == 200


def test_users_are_ranked_by_gpu_time(report: Characterization) -> None:
    users = report.study.users
    assert users["user"].to_list() == ["cy", "bob", "ann", "dee"]
    assert users["gpu_time_pct"][0] == pytest.approx(100 * 41_472_000 / TOTAL)
    # Gini: 2 x (1 x 0 + 2 x 6,000 + 3 x 144,000 + 4 x 41,472,000) / (4 x total) - 5/4
    expected = 2 * (12_000 + 432_000 + 165_888_000) / (4 * TOTAL) - 1.25
    assert report.study.concentration.gini_gpu_time == pytest.approx(expected)


def test_the_failure_table_lists_reasons_by_cost(report: Characterization) -> None:
    failures = report.study.failures
    assert failures["reason"].to_list() == ["CUDAError", "KeyError"]
    assert failures["category"].to_list() == ["infrastructure", "script"]
    assert failures["count"].to_list() == [20, 10]
    assert failures["mean_gpus"].to_list() == [8, 8]
    assert failures["ttf_median_s"].to_list() == [600, 600]
    assert failures["gpu_time_pct"].to_list() == pytest.approx([200 / 3, 100 / 3])
    r = report.study.reliability
    assert (r.failures, r.infrastructure_failures, r.infrastructure_mid_run_failures) == (30, 20, 20)
    assert r.gpu_hours_per_failure == pytest.approx(TOTAL / 3600 / 30)
    assert r.mid_run_failures == 0  # none of them spans nodes


def test_capacity_follows_every_gpu_second(report: Characterization) -> None:
    c = report.study.capacity
    assert c is not None
    assert c.peak_gpus == pytest.approx(2560)  # the ten jobs of 256 GPUs run together
    assert c.allocated_pct / 100 * c.gpus * c.span_hours * 3600 == pytest.approx(TOTAL)
    waited = 4950 * 1 + 30 * 5 * 8 + 10 * 100 * 64 + 10 * 200 * 256
    assert c.waiting_gpu_hours == pytest.approx(waited / 3600)
    # 4,096 GPUs are never full, so every GPU-second waited for could have been given.
    assert c.idle_while_waiting_gpu_hours == pytest.approx(waited / 3600)
    assert c.part_node_gpu_time_pct == pytest.approx(100 * 6000 / TOTAL)


def test_checkpoint_advice_comes_from_the_infrastructure_failures(report: Characterization) -> None:
    assert report.plan is not None
    assert "20 infrastructure failures" in report.plan.basis
    assert report.plan.gpu_hours_per_failure == pytest.approx(TOTAL / 3600 / 20)
