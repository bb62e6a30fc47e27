"""Laws that hold for any trace: splitting and merging, scaling, shifting, shuffling."""

from __future__ import annotations

import math
from dataclasses import asdict, fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.datacenter.characterize import Study, StudyOptions, merge_tallies, study, tally_jobs
from prism.datacenter.characterize import tally as tally_module
from prism.datacenter.characterize.distribution import Counted, describe, find_percentiles
from prism.datacenter.characterize.tally import empty_tally
from prism.records.jobs import JOB_STATES

NS = 1_000_000_000


@st.composite
def job_frames(draw: st.DrawFn) -> pl.DataFrame:
    """JOBS as the intake leaves them, with CPU jobs, live ones and ones without times among them."""
    n = draw(st.integers(1, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    submit = rng.integers(1_677_600_000, 1_677_600_000 + 30 * 86_400, n)
    queue, duration = rng.integers(0, 5000, n), np.exp(rng.normal(5, 3, n)).round(int(draw(st.integers(0, 3))))
    state = rng.choice(["completed", "failed", "cancelled", "node_fail", "running", "unknown"], n)
    ran = state != "running"
    gpus = rng.choice([0.0, 0.5, 1.0, 3.0, 8.0, 64.0, 1000.0], n)
    start = submit + queue
    return pl.DataFrame(
        {
            "job": [f"j{i}" for i in range(n)],
            "user": pl.Series(rng.choice(["a", "b", "c", None], n).tolist(), dtype=pl.String),
            "type": pl.Series(rng.choice(["Eval", "SFT", None], n).tolist(), dtype=pl.String),
            "state": pl.Series(state, dtype=pl.Enum(JOB_STATES)),
            "gpus": gpus,
            "submit_ns": submit * NS,
            "start_ns": start * NS,
            "end_ns": pl.Series(np.where(ran, (start + duration) * NS, -1).astype("int64")).replace(-1, None),
            "duration_s": pl.Series(np.where(ran, duration, np.nan)).fill_nan(None),
            "queue_s": queue.astype(float),
            "gpu_time_s": pl.Series(np.where(ran, duration * gpus, np.nan)).fill_nan(None),
            "reason": pl.Series(rng.choice(["CUDAError", "KeyError", None], n).tolist(), dtype=pl.String),
        }
    )


def flatten(value: Any) -> list[Any]:
    """Every number and word of a study, in a fixed order."""
    if isinstance(value, pl.DataFrame):
        return [cell for row in value.sort(pl.all()).rows() for cell in row]
    if is_dataclass(value) and not isinstance(value, type):
        return [cell for f in fields(value) for cell in flatten(getattr(value, f.name))]
    return [value]


def assert_same(one: Study, other: Study) -> None:
    a, b = flatten(one), flatten(other)
    assert len(a) == len(b)
    for left, right in zip(a, b, strict=True):
        if isinstance(left, float) and isinstance(right, float):
            assert left == pytest.approx(right, rel=1e-9, abs=1e-6)
        else:
            assert left == right


@settings(max_examples=25, deadline=None)
@given(jobs=job_frames(), cuts=st.lists(st.integers(0, 60), max_size=4))
def test_splitting_a_trace_and_merging_the_parts_gives_the_same_report(jobs: pl.DataFrame, cuts: list[int]) -> None:
    bounds = [0, *sorted(min(c, jobs.height) for c in cuts), jobs.height]
    parts = [jobs[a:b] for a, b in pairwise(bounds) if b > a]
    whole = study(tally_jobs(jobs), StudyOptions(gpus=500))
    merged = study(merge_tallies([empty_tally(), *(tally_jobs(part) for part in parts)]), StudyOptions(gpus=500))
    assert_same(whole, merged)


@settings(max_examples=12, deadline=None)
@given(jobs=job_frames(), cut=st.integers(0, 60))
def test_splitting_and_merging_agree_when_lengths_are_rounded(jobs: pl.DataFrame, cut: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tally_module, "MAX_VALUES", 5)
        whole = tally_jobs(jobs)
        parts = [tally_jobs(part) for part in (jobs[:cut], jobs[cut:]) if part.height]
        assert_same(study(whole, StudyOptions()), study(merge_tallies(parts), StudyOptions()))
        exact_ms = jobs.filter(pl.col("gpus") > 0)["duration_s"].drop_nulls()
        if whole.rounded and len(exact_ms):
            rounded = study(whole, StudyOptions()).summary.duration_s
            assert rounded.max == pytest.approx(float(exact_ms.max()), rel=1.1e-3, abs=1e-3)  # type: ignore[arg-type]


@settings(max_examples=15, deadline=None)
@given(jobs=job_frames(), factor=st.integers(2, 50))
def test_scaling_all_durations_scales_the_percentiles(jobs: pl.DataFrame, factor: int) -> None:
    longer = jobs.with_columns(pl.col("duration_s", "gpu_time_s") * factor)
    before = study(tally_jobs(jobs), StudyOptions()).lengths.filter(pl.col("measure") == "duration_s")
    after = study(tally_jobs(longer), StudyOptions()).lengths.filter(pl.col("measure") == "duration_s")
    for name in ("mean", "min", "p10", "median", "p90", "p99", "max"):
        assert after[name].to_list() == pytest.approx((before[name] * factor).to_list(), rel=1e-9, abs=1e-3 * factor)


@settings(max_examples=12, deadline=None)
@given(jobs=job_frames(), weeks=st.integers(-50, 50), seed=st.integers(0, 1000))
def test_shifting_by_weeks_and_shuffling_change_nothing_but_the_dates(
    jobs: pl.DataFrame, weeks: int, seed: int
) -> None:
    shift = weeks * 7 * 86_400 * NS
    moved = jobs.with_columns(pl.col("submit_ns", "start_ns", "end_ns") + shift).sample(
        fraction=1, shuffle=True, seed=seed
    )
    one, other = (study(tally_jobs(frame), StudyOptions(gpus=500)) for frame in (jobs, moved))
    assert one.days["submitted"].to_list() == other.days["submitted"].to_list()
    undated = [replace(s, days=one.days.clear(), occupancy=s.occupancy.drop("date")) for s in (one, other)]
    assert_same(undated[0], undated[1])


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.integers(0, 10_000), min_size=1, max_size=200))
def test_percentiles_of_counts_are_numpys_percentiles(values: list[int]) -> None:
    distinct, counts = np.unique(np.array(values, dtype=float), return_counts=True)
    counted = Counted(distinct, counts.astype(float))
    assert find_percentiles(counted, (0, 10, 37.5, 50, 99, 100)) == pytest.approx(
        np.percentile(values, (0, 10, 37.5, 50, 99, 100))
    )
    assert describe(counted).mean == pytest.approx(np.mean(values))


@settings(max_examples=15, deadline=None)
@given(jobs=job_frames())
def test_shares_add_up_and_busy_gpu_time_is_all_gpu_time(jobs: pl.DataFrame) -> None:
    found = study(tally_jobs(jobs), StudyOptions())
    for table in (found.sizes, found.types, found.states.filter(pl.col("kind") == "gpu")):
        if table.height:
            assert math.isclose(float(table["jobs_pct"].sum()), 100, rel_tol=1e-9)
    # Jobs that still run hold GPUs without GPU time, so the sum is only compared where none does.
    if found.capacity and not (jobs["state"] == "running").any():
        held = found.capacity.allocated_pct / 100 * found.capacity.gpus * found.capacity.span_hours
        assert held == pytest.approx(found.summary.gpu_hours, rel=1e-6, abs=1e-6)
    assert asdict(found.summary)["jobs"] == jobs.height
