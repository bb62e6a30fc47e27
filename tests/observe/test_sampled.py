"""What is kept of a diagnosis that was drawn from packet samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from prism.collect.tables.samples import put_together
from prism.lab.scenarios import load_scenario, make_scenario
from prism.lab.scenarios.run import ScenarioRun
from prism.observe.diagnose import diagnose
from prism.observe.sampled import SampledConfig, keep_certain
from prism.records.findings import Culprit, Finding


@pytest.fixture(scope="module")
def made() -> ScenarioRun:
    return make_scenario(replace(load_scenario("dense-3d-64"), duration_s=8.0), 0)


def sample(flows: pl.DataFrame, rate: int) -> pl.DataFrame:
    """One packet in `rate` of every message, at a moment spread over it."""
    rng = np.random.default_rng(rate)
    size, start, end = (flows[c].to_numpy() for c in ("bytes", "start_ns", "end_ns"))
    row = np.repeat(np.arange(flows.height), rng.binomial(-(-size // 4096), 1 / rate))
    moment = start[row] + (rng.random(len(row)) * (end - start)[row]).astype(np.int64)
    return flows.select("src", "dst", "src_port", "dst_port", "qp")[row].with_columns(
        start_ns=pl.Series(moment),
        end_ns=pl.Series(moment),
        bytes=pl.Series(np.minimum(size[row], 4096) * rate),
        packets=pl.lit(rate, pl.Int64),
        sampling_rate=pl.lit(rate, pl.Int64),
    )


@pytest.mark.parametrize("rate", [1000, 10_000])
def test_samples_give_jobs_but_no_wrong_degree_and_no_false_finding(made: ScenarioRun, rate: int) -> None:
    transfers, notes = put_together(sample(made.flows, rate))
    found = keep_certain(diagnose(transfers, made.topology), transfers, notes)
    (job,), (truth,) = found.jobs, made.truth["jobs"]
    assert set(job.endpoints) == set(truth["endpoints"])
    given = {d: v for d in ("dp", "pp", "tp", "cp", "ep") if (v := job.to_json()["layout"][d]) is not None}
    assert given == {d: truth["layout"].get(d, 1) for d in given}
    planted = {(f["kind"], f["culprit"]["id"]) for f in made.truth["faults"]}
    assert {(f.kind, f.culprit.id) for f in found.findings} <= planted


def test_an_unknown_degree_says_what_would_make_it_known(made: ScenarioRun) -> None:
    transfers, notes = put_together(sample(made.flows, 10_000))
    found = keep_certain(diagnose(transfers, made.topology), transfers, notes)
    (line,) = (n for n in found.notes if n.startswith("job-1: totals"))
    assert (
        "tp" in line and "not known from samples" in line and "sample 1 in " in line and "export flow records" in line
    )


def test_degrees_stand_only_where_samples_lie_closer_than_groups_begin_apart(made: ScenarioRun) -> None:
    """Tensor and data parallelism send the same totals over the same pairs: only moments tell them apart."""
    found = diagnose(made.flows, made.topology)
    took = (made.flows["end_ns"] - made.flows["start_ns"]).clip(1)
    for apart_ns, stands in ((5_000, True), (80_000, False)):
        samples = (took // apart_ns + 11).cast(pl.Int64)
        records = made.flows.with_columns(packets=samples * 1000, sampling_rate=pl.lit(1000, pl.Int64))
        kept = keep_certain(found, records, ("records are packet samples",), SampledConfig(confidence=0.0))
        assert (kept.jobs[0].layout.tp.value is not None) is stands
    assert any("us apart" in line for line in kept.notes)


def test_records_that_are_no_samples_stay_as_they_are(made: ScenarioRun) -> None:
    found = diagnose(made.flows, made.topology)
    assert keep_certain(found, made.flows, ()) is found


def test_a_job_whose_flow_records_came_beside_samples_of_others_is_left_alone(made: ScenarioRun) -> None:
    found = diagnose(made.flows, made.topology)
    records = made.flows.with_columns(packets=pl.lit(None, pl.Int64), sampling_rate=pl.lit(None, pl.Int64))
    assert keep_certain(found, records, ("records are packet samples, up to 1 in 1,000",)).jobs == found.jobs


def test_an_investigation_gets_no_finding_that_samples_cannot_show(
    made: ScenarioRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prism.cli import investigate as command

    transfers, notes = put_together(sample(made.flows, 10_000))
    found = diagnose(transfers, made.topology)
    told = Finding(
        kind="slow_compute",
        job=found.jobs[0].id,
        culprit=Culprit(type="host", id="h"),
        start_ns=0,
        end_ns=1,
        lost_gpu_seconds=1.0,
        score=0.99,
        evidence="",
    )
    read = SimpleNamespace(flows=transfers, report=SimpleNamespace(notes=notes))
    monkeypatch.setattr("prism.cli.flows.read_sources", lambda *_: read)
    monkeypatch.setattr("prism.observe.diagnose", lambda *_: replace(found, findings=(told,)))
    assert command._read_flows([Path("x")], None) == []
