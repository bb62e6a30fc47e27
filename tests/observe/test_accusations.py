"""Nobody is accused whom the collectives do not wait for; a standstill of all ranks is nobody's; tenants that meet."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from made_jobs import MS, MadeJob, contend, named, write_job

from prism.observe import diagnose
from prism.records.findings import Culprit

HOSTS, STEPS, LAYERS = 5, 20, 8


def write_rings(
    late: dict[int, float], hops_late: tuple[str, ...] = ("in", "out")
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """One ring over hosts with one NIC each; a hop begins when the sides named in `hops_late` of a late host are ready."""
    rng = np.random.default_rng(5)
    rows, now = [], 1_700_000_000_000_000_000
    for _ in range(STEPS):
        for _ in range(LAYERS):
            ready = now + 20 * MS * (1 + 0.02 * rng.standard_normal(HOSTS))
            late_by = np.array([20 * MS * late.get(h, 0.0) for h in range(HOSTS)])
            ends = [(h, (h + 1) % HOSTS) for h in range(HOSTS)]
            starts = [
                max(ready[a] + late_by[a] * ("out" in hops_late), ready[b] + late_by[b] * ("in" in hops_late))
                for a, b in ends
            ]
            now = int(max(starts)) + 4 * MS
            rows += [
                {"start_ns": int(s), "end_ns": now, "src": f"10.3.{a}.1", "dst": f"10.3.{b}.1", "bytes": 12_000_000}
                for s, (a, b) in zip(starts, ends, strict=True)
            ]
        now += 100 * MS
    topology = pl.DataFrame(
        {"address": [f"10.3.{h}.1" for h in range(HOSTS)], "host": [f"h{h}" for h in range(HOSTS)],
         "rail": [0] * HOSTS, "switch": ["leaf"] * HOSTS}
    )  # fmt: skip
    return pl.DataFrame(rows).sort("start_ns"), topology


def test_a_late_host_is_named_and_its_lead_is_the_confidence() -> None:
    (finding,) = diagnose(*write_rings({2: 0.4})).findings
    assert named(finding) == ("slow_compute", "h2")
    assert finding.score > 0.9
    assert "calls wait" in finding.evidence and "h2" in finding.evidence


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_standstill_of_all_ranks_in_the_middle_of_a_step_is_nobodys_hang(share: float) -> None:
    flows, topology = write_job(MadeJob(steps=24))
    steps = diagnose(flows, topology).jobs[0].steps
    moment = int(steps["start_ns"][12] + share * (steps["end_ns"][12] - steps["start_ns"][12]))
    shift = pl.when(pl.col("start_ns") >= moment).then(3000 * MS).otherwise(0)
    diagnosis = diagnose(flows.with_columns(pl.col("start_ns", "end_ns") + shift), topology)
    assert len(diagnosis.jobs) == 1
    assert diagnosis.jobs[0].steps.height == steps.height
    assert {f.kind for f in diagnosis.findings} == {"stall"}
    assert all(f.culprit.type == "job" for f in diagnosis.findings)


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_tenants_that_meet_behind_a_switch_are_found_where_flows_name_no_path(factor: float) -> None:
    place = {"tp": 1, "gpus_per_host": 1, "hosts_per_switch": 4, "host_stride": 2, "volume": 10.0}
    victim = MadeJob(dp=4, pp=4, steps=40, **place)  # type: ignore[arg-type]
    other = MadeJob(dp=16, pp=1, first_host=1, steps=60, forward_ms=5.1, seed=3, **place)  # type: ignore[arg-type]
    flows, topology = contend(victim, other, "sw1>spine", factor)
    findings = [f for f in diagnose(flows.drop("path"), topology).findings if f.kind == "contention"]
    assert [f.culprit for f in findings] == ([] if factor == 1.0 else [Culprit(type="switch", id="sw1")])
