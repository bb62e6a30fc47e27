"""Diagnosis of traffic that Prism's simulator has not made."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from foreign_traffic import ForeignJob, make_foreign

from prism.observe.diagnose import diagnose
from prism.observe.diagnosis import Diagnosis
from prism.observe.traffic.preparation import prepare_traffic


def _degrees(diagnosis: Diagnosis) -> list[tuple[int, int, int, int, int]]:
    layouts = [job.layout for job in diagnosis.jobs]
    return [(x.dp.value, x.pp.value, x.tp.value, x.cp.value, x.ep.value) for x in layouts]


@pytest.mark.parametrize(
    ("dp", "pp", "tp"), [(2, 2, 8), (4, 4, 4), (4, 1, 8), (16, 1, 1), (1, 4, 8), (2, 8, 2), (8, 2, 4)]
)
def test_degrees_kinds_and_steps_are_found(dp: int, pp: int, tp: int) -> None:
    job = ForeignJob(dp=dp, pp=pp, tp=tp)
    found = diagnose(*make_foreign([job]))
    assert _degrees(found) == [(dp, pp, tp, 1, 1)]
    assert set(found.jobs[0].pairs["kind"]) == (
        {"dp"} if pp == 1 else {"pp"} if dp == 1 or tp * dp <= 8 else {"dp", "pp"}
    )
    steps = found.jobs[0].steps
    took = ((steps["end_ns"] - steps["start_ns"]) / 1e9).to_numpy()
    assert np.median(took) == pytest.approx(np.median(job.step_s), rel=1e-3)
    assert not found.findings


def test_stages_that_a_host_keeps_to_itself_are_counted() -> None:
    found = diagnose(*make_foreign([ForeignJob(dp=2, pp=8, tp=2)]))
    stages = found.jobs[0].layout.stages
    assert {stages[f"10.0.{h + 1}.{n}"] for h in range(1, 3) for n in (1, 2, 3, 4)} == {2, 4}
    assert {stages[f"10.0.{h + 1}.{n}"] for h in range(3) for n in (5, 6, 7, 8)} == {1, 3, 5}


def test_two_jobs_are_told_apart() -> None:
    jobs = [ForeignJob(dp=4, pp=2, tp=4), ForeignJob(dp=2, pp=4, tp=8, forward_s=0.033)]
    assert sorted(_degrees(diagnose(*make_foreign(jobs)))) == [(2, 4, 8, 1, 1), (4, 2, 4, 1, 1)]


def test_steps_that_grow_longer_half_way_are_still_steps() -> None:
    job = ForeignJob(dp=1, pp=4, tp=8, slow=lambda stage, host: 1.4 if stage == 1 else 1.0)
    found = diagnose(*make_foreign([job])).jobs[0]
    assert found.layout.pp.value == 4
    assert abs(found.steps.height - job.steps) <= 1


def test_a_stage_that_grows_heavier_on_two_hosts_is_named() -> None:
    job = ForeignJob(dp=4, pp=4, tp=4, slow=lambda stage, host: 1.4 if stage == 1 else 1.0)
    first = diagnose(*make_foreign([job])).findings[0]
    assert (first.kind, first.culprit.type, first.culprit.id) == ("stage_imbalance", "stage", "1")


@pytest.mark.parametrize(("dp", "pp", "tp"), [(2, 2, 8), (4, 4, 4), (4, 1, 8), (2, 8, 2)])
def test_a_slow_host_is_named(dp: int, pp: int, tp: int) -> None:
    job = ForeignJob(dp=dp, pp=pp, tp=tp, slow=lambda stage, host: 1.5 if host == 1 else 1.0)
    first = diagnose(*make_foreign([job])).findings[0]
    assert (first.kind, first.culprit.id) == ("slow_compute", "node-1")


def test_round_sizes_are_not_taken_for_samples() -> None:
    flows, topology = make_foreign([ForeignJob(dp=2, pp=2, tp=8)])
    whole = flows.with_columns(bytes=pl.col("bytes") // 65536 * 65536)
    assert prepare_traffic(whole, topology).sample_bytes == 0.0
    rng = np.random.default_rng(1)
    packets = pl.Series(rng.poisson((flows["bytes"] / 409_600).to_numpy()).clip(1))
    sampled = flows.with_columns(bytes=packets * 409_600)
    assert prepare_traffic(sampled, topology).sample_bytes == 409_600


def test_ranks_that_share_a_nic_are_counted_where_they_send_side_by_side() -> None:
    flows, topology = make_foreign([ForeignJob(dp=2, pp=2, tp=8)])
    one_nic = pl.col("src", "dst").str.replace(r"\.\d+$", ".1")
    assert _degrees(diagnose(_spread(flows).with_columns(one_nic), topology.filter(pl.col("rail") == 0))) == [
        (2, 2, 8, 1, 1)
    ]


def _spread(flows: pl.DataFrame) -> pl.DataFrame:
    """Flows that began and ended at one moment, a microsecond or two apart: equal ones would be repeats."""
    rng = np.random.default_rng(2)
    return flows.with_columns(pl.col("end_ns") + pl.Series(rng.integers(0, 2000, flows.height)))
