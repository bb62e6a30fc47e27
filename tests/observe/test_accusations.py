"""Nobody is accused whom the collectives do not wait for; a standstill of all ranks is nobody's; tenants that meet."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from made_jobs import MS, MadeJob, contend, named, write_job

from prism.observe import diagnose
from prism.observe.diagnose import open_case
from prism.observe.findings.case import Calls, Case
from prism.observe.findings.causes import find_late
from prism.observe.findings.residuals import _measure_gaps
from prism.observe.findings.waits import Waits, list_meetings, measure_waits
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


def open_only_case(flows: pl.DataFrame, topology: pl.DataFrame) -> Case:
    diagnosis = diagnose(flows, topology)
    return open_case(diagnosis.traffic, diagnosis.jobs[0], int(flows["end_ns"].max()))  # type: ignore[arg-type]


def test_sampled_packets_show_silences_too_in_which_a_ring_waits() -> None:
    flows, topology = write_rings({2: 0.4})
    found = diagnose(flows, topology)
    sampled = replace(found.traffic, sample_bytes=400_000.0)
    assert open_case(sampled, found.jobs[0], int(flows["end_ns"].max())).waits_visible  # type: ignore[arg-type]


def measure_all_waits(case: Case, since: tuple[np.ndarray, np.ndarray], *, is_new: bool = False) -> Waits | None:
    met = list_meetings(case)
    return None if met is None else measure_waits(case, met, since, is_new=is_new)


def test_all_waiting_is_for_a_late_host() -> None:
    case = open_only_case(*write_rings({2: 0.4}))
    waits = measure_all_waits(case, _measure_gaps(case))
    assert waits is not None
    cost = waits.cost_s.sum(axis=1)
    assert waits.hosts[int(np.argmax(cost))] == "h2"
    assert cost.max() > 0.95 * cost.sum()


def test_nobody_waits_for_a_host_where_something_else_had_just_ended() -> None:
    case = open_only_case(*write_rings({2: 0.4}))
    just_now = np.full(len(case.calls.row), 1000.0)
    waits = measure_all_waits(case, (just_now, just_now))
    assert waits is not None and waits.cost_s.max() <= LAYERS * 1e-6


def measure_call(hops: list[tuple[int, int]], start_ms: list[int], gpus_per_nic: int = 1) -> list[float]:
    """Seconds by host that all wait for it in one collective of these hops, which end together."""
    zero, num = np.zeros(len(hops), np.int64), len(hops)
    src, dst = np.array(hops, np.int64).T
    start = np.array(start_ms, np.int64) * MS
    calls = Calls(
        message=np.arange(num), row=np.arange(num), step=zero, place=zero, start=start, end=zero + 1000 * MS, src=src,
        dst=dst, kind=zero, kinds=("dp",), like=zero,
    )  # fmt: skip
    hosts = [f"h{h}" for h in range(int(max(src.max(), dst.max())) + 1)]
    case: Any = SimpleNamespace(
        calls=calls, hosts=hosts, stage_of=np.full(len(hosts), -1, np.int64), steps=SimpleNamespace(height=1),
        messages=pl.DataFrame({"bytes": zero}), gpus=gpus_per_nic * len(hosts),
        job=SimpleNamespace(endpoints=np.arange(len(hosts))),
    )  # fmt: skip
    long_ago = np.full(num, 1e12)
    waits = measure_all_waits(case, (long_ago, long_ago), is_new=True)
    return [] if waits is None else waits.cost_s[:, 0].tolist()


def test_the_receiver_of_the_last_hop_has_come_once_it_sends_its_own_part() -> None:
    """Host 2 begins 80 ms late; host 3, which takes that in, began with the others, or 80 ms late too."""
    ring = [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert measure_call(ring, [0, 0, 80, 0]) == [0.0, 0.0, 0.08, 0.0]
    assert measure_call(ring, [0, 0, 81, 80])[3] == 0.08
    assert measure_call(ring, [0, 0, 80, 0], gpus_per_nic=2) == [0.0, 0.0, 0.08, 0.08]


def test_of_two_that_exchange_the_one_that_has_begun_waits_for_the_other() -> None:
    assert measure_call([(0, 1), (1, 0)], [0, 80]) == [0.0, 0.08]
    assert measure_call([(0, 1), (1, 0)], [0, 0]) == []
    assert measure_call([(0, 1), (1, 0)], [0, 80], gpus_per_nic=2) == []


def test_a_late_host_is_named_and_its_lead_is_the_confidence() -> None:
    (finding,) = diagnose(*write_rings({2: 0.4})).findings
    assert named(finding) == ("slow_compute", "h2")
    assert finding.score > 0.9
    assert "nobody else does" in finding.evidence


def test_a_host_that_nobody_waits_for_more_than_for_others_is_not_accused() -> None:
    assert find_late(open_only_case(*write_rings({}))) == []


def test_two_hosts_that_are_late_alike_are_not_accused_as_one() -> None:
    found = find_late(open_only_case(*write_rings({1: 0.4, 3: 0.4})))
    assert all(p.finding.culprit.type == "group" for p in found)


def test_two_ends_of_the_last_hop_that_cannot_be_told_apart_are_both_named() -> None:
    case = open_only_case(*write_rings({2: 0.4}, hops_late=("out",)))
    (proposed,) = find_late(case)
    finding = proposed.finding
    assert finding.culprit == Culprit(type="group", id="10.3.2.1,10.3.3.1")
    assert "records do not show which of them is late" in finding.evidence


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_standstill_of_all_ranks_in_the_middle_of_a_step_is_nobodys_hang(share: float) -> None:
    flows, topology = write_job(MadeJob(steps=24))
    steps = diagnose(flows, topology).jobs[0].steps
    moment = int(steps["start_ns"][12] + share * (steps["end_ns"][12] - steps["start_ns"][12]))
    shift = pl.when(pl.col("start_ns") >= moment).then(3000 * MS).otherwise(0)
    diagnosis = diagnose(flows.with_columns(pl.col("start_ns", "end_ns") + shift), topology)
    assert len(diagnosis.jobs) == 1
    assert diagnosis.jobs[0].steps.height == steps.height
    assert {f.kind for f in diagnosis.findings} <= {"slow_step"}
    assert all(f.culprit.type == "job" for f in diagnosis.findings)


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_tenants_that_meet_behind_a_switch_are_found_where_flows_name_no_path(factor: float) -> None:
    place = {"tp": 1, "gpus_per_host": 1, "hosts_per_switch": 4, "host_stride": 2, "volume": 10.0}
    victim = MadeJob(dp=4, pp=4, steps=40, **place)  # type: ignore[arg-type]
    other = MadeJob(dp=16, pp=1, first_host=1, steps=60, forward_ms=5.1, seed=3, **place)  # type: ignore[arg-type]
    flows, topology = contend(victim, other, "sw1>spine", factor)
    findings = [f for f in diagnose(flows.drop("path"), topology).findings if f.kind == "contention"]
    assert [f.culprit for f in findings] == ([] if factor == 1.0 else [Culprit(type="switch", id="sw1")])
