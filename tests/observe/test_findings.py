"""The right culprit comes first, and nothing is found wrong with the healthy twin: on jobs of an independent writer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from made_jobs import Fault, MadeJob, contend, named, write_job

from prism.observe import build_timeline, diagnose
from prism.observe.findings.windows import find_window
from prism.observe.traffic.clock_offsets import align_clocks

SHAPES = {
    "dp4 pp4 tp2": MadeJob(),
    "dp8 pp4": MadeJob(dp=8, tp=1),
    "dp2 pp4 tp4": MadeJob(dp=2, tp=4),
    "dp2 pp8 tp2": MadeJob(dp=2, pp=8, gpus_per_host=2),
    "dp8 pp2 tp2": MadeJob(dp=8, pp=2, gpus_per_host=2),
    "dp16": MadeJob(dp=16, pp=1, tp=1, gpus_per_host=1, steps=30),
}
"""Pipelines, and one job that has nothing but a ring."""

shapes = pytest.mark.parametrize("shape", list(SHAPES))
some_shapes = pytest.mark.parametrize("shape", ["dp4 pp4 tp2", "dp2 pp8 tp2", "dp16"])
transports = pytest.mark.parametrize("meets", [True, False], ids=["both sides meet", "the sender decides"])


def middle_host(job: MadeJob) -> int:
    return job.num_ranks // job.gpus_per_host // 2


@shapes
@transports
def test_a_healthy_job_has_no_findings(shape: str, meets: bool) -> None:
    assert diagnose(*write_job(replace(SHAPES[shape], meets=meets))).findings == ()


@some_shapes
@transports
@pytest.mark.parametrize("window", [(0, 100), (12, 18)], ids=["always", "for a while"])
def test_a_host_that_computes_late_is_blamed_and_not_those_who_wait(
    shape: str, meets: bool, window: tuple[int, int]
) -> None:
    job = SHAPES[shape]
    fault = Fault(kind="late_host", place=middle_host(job), factor=1.5, first=window[0], last=window[1])
    findings = diagnose(*write_job(replace(job, meets=meets, fault=fault))).findings
    assert named(findings[0]) == ("slow_compute", f"h{fault.place}")


@some_shapes
@transports
def test_a_slow_nic_is_distinguished_from_a_late_host(shape: str, meets: bool) -> None:
    place = SHAPES[shape].num_ranks // 2 + 1
    job = replace(SHAPES[shape], meets=meets, coupled=False, fault=Fault(kind="slow_nic", place=place, factor=5))
    findings = diagnose(*write_job(job)).findings
    assert named(findings[0]) == ("slow_link", f"{job.address(place)}>sw{job.switch(place)}")


@some_shapes
def test_a_slow_switch_is_found_over_all_that_passes_it(shape: str) -> None:
    job = replace(SHAPES[shape], coupled=False, fault=Fault(kind="slow_switch", place=1, factor=4))
    assert named(diagnose(*write_job(job)).findings[0]) == ("slow_switch", "sw1")


@pytest.mark.parametrize("shape", ["dp4 pp4 tp2", "dp2 pp8 tp2"])
@transports
@pytest.mark.parametrize("first", [0, 10])
def test_a_heavy_stage_is_found_whether_by_design_or_since_a_while(shape: str, meets: bool, first: int) -> None:
    job = replace(SHAPES[shape], meets=meets, fault=Fault(kind="heavy_stage", place=1, factor=1.6, first=first))
    assert named(diagnose(*write_job(job)).findings[0]) == ("stage_imbalance", "1")


@pytest.mark.parametrize("weights, found", [(1.0, [("stage_imbalance", "3")]), (1.4, [])])
def test_a_last_stage_may_be_heavier_by_the_weights_that_its_gradients_show(
    weights: float, found: list[tuple[str, str]]
) -> None:
    job = MadeJob(fault=Fault(kind="heavy_stage", place=3, factor=1.45))
    flows, topology = write_job(job)
    last = [job.address(job.rank(3, r, i)) for r in range(job.dp) for i in range(job.tp)]
    gradients = pl.col("src").is_in(last) & pl.col("dst").is_in(last)
    size = pl.when(gradients).then((pl.col("bytes") * weights).cast(pl.Int64)).otherwise("bytes")
    assert [named(f) for f in diagnose(flows.with_columns(bytes=size), topology).findings] == found


@pytest.mark.parametrize("shape", ["dp4 pp4 tp2", "dp8 pp2 tp2"])
@transports
def test_the_rank_that_hangs_is_named_and_the_silence_measured(shape: str, meets: bool) -> None:
    place = SHAPES[shape].num_ranks // 2 + 1
    job = replace(SHAPES[shape], meets=meets, fault=Fault(kind="hang", place=place, first=12))
    other = MadeJob(dp=2, pp=2, tp=1, gpus_per_host=1, first_host=100, steps=60, seed=5)  # goes on
    parts = [write_job(j) for j in (job, other)]
    findings = diagnose(pl.concat([p[0] for p in parts]).sort("start_ns"), pl.concat([p[1] for p in parts])).findings
    kind, name = named(findings[0])
    assert kind == "hang"
    assert name == f"h{job.host(place)}" or job.address(place) in name.split(",")
    if job.pp == 2:  # Two stages wait for each other only: nothing shows which of them stopped, so both are named.
        assert findings[0].culprit.type == "group"
        assert len({address.rsplit(".", 1)[0] for address in name.split(",")}) == 2
    silent_s = (findings[0].end_ns - findings[0].start_ns) / 1e9
    assert findings[0].lost_gpu_seconds == pytest.approx(silent_s * job.num_ranks, rel=0.01)


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_contention_names_the_link_and_both_tenants(factor: float) -> None:
    place = {"tp": 1, "gpus_per_host": 1, "hosts_per_switch": 4, "host_stride": 2, "volume": 10.0}
    victim = MadeJob(dp=4, pp=4, steps=40, **place)  # type: ignore[arg-type]
    other = MadeJob(dp=16, pp=1, first_host=1, steps=60, forward_ms=5.1, seed=3, **place)  # type: ignore[arg-type]
    findings = diagnose(*contend(victim, other, "sw1>spine", factor)).findings
    if factor == 1.0:
        assert findings == ()
    else:
        assert named(findings[0]) == ("contention", "sw1>spine")
        assert "job-1, job-2" in findings[0].evidence


def test_costs_are_close_to_what_the_fault_really_cost() -> None:
    fault = Fault(kind="late_host", place=4, factor=1.5)
    healthy, slow = (write_job(replace(MadeJob(), fault=f))[0] for f in (Fault(), fault))
    lasted = [(f["end_ns"].max() - f["start_ns"].min()) / 1e9 for f in (healthy, slow)]  # type: ignore[operator]
    finding = diagnose(slow, MadeJob().topology()).findings[0]
    assert finding.lost_gpu_seconds == pytest.approx((lasted[1] - lasted[0]) * 32, rel=0.15)


def test_clocks_of_exporters_are_set_right_by_what_happens_at_once() -> None:
    job = replace(MadeJob(tp=4, dp=2), steps=20)
    flows, topology = write_job(job)
    rails = topology.with_columns(switch=pl.format("rail-{}", "rail"))
    offsets = {f"rail-{i}": o for i, o in enumerate((0, 1_500_000, -2_000_000, 700_000))}
    rail = flows["src"].replace_strict(rails["address"], rails["switch"])
    wrong = flows.with_columns(pl.col("start_ns", "end_ns") + rail.replace_strict(offsets, return_dtype=pl.Int64))
    righted, found = align_clocks(wrong, rails)
    assert "4 exporters" in (found.note or "")
    error = (righted["start_ns"] - flows["start_ns"]).to_numpy()
    assert np.ptp(error) < 20_000
    same, none = align_clocks(flows, rails)
    assert none.note is None and same.equals(flows)


def test_a_window_is_where_the_excess_is() -> None:
    excess = np.array([0.0, 0.01, 0.3, 0.31, np.nan, 0.29, 0.0, 0.02])
    window = find_window(excess, 0.1)
    assert window is not None and (window.first, window.last) == (2, 5)
    assert window.share == 1.0 and window.mean == pytest.approx(0.3)
    assert find_window(np.zeros(5), 0.1) is None


def test_the_timeline_shows_who_worked_and_who_waited() -> None:
    fault = Fault(kind="late_host", place=4, factor=1.5, first=12, last=18)
    diagnosis = diagnose(*write_job(replace(MadeJob(), fault=fault)))
    spans = build_timeline(diagnosis).with_columns(
        pl.col("kind").cast(pl.String), took=pl.col("end_ns") - pl.col("start_ns")
    )
    assert set(spans["kind"].unique()) == {"compute", "wait", "pp", "dp", "microbatch", "step"}
    (job,) = diagnosis.jobs
    assert spans.filter(kind="step").group_by("rank").len()["len"].unique().to_list() == [job.steps.height]
    late = {i for i, e in enumerate(job.endpoints) if e.startswith("10.9.4.")}
    waited = (
        spans.filter((pl.col("kind") == "wait") & pl.col("step").is_between(12, 18))
        .group_by("rank")
        .agg(pl.col("took").sum())
    )
    waits = dict(waited.select("rank", "took").iter_rows())
    others = [waits.get(r, 0) for r in range(len(job.endpoints)) if r not in late]
    assert max(waits.get(r, 0) for r in late) < float(np.median(others))
