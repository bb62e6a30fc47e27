"""Residuals: who computes late is late by what it lacks, and those who wait for it are not late at all."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from made_jobs import Fault, MadeJob, write_job

from prism.observe.diagnose import open_case, study_jobs
from prism.observe.findings import residuals
from prism.observe.findings.case import Calls, Case
from prism.observe.findings.residuals import (
    Residuals,
    _compare_ring_waits,
    _compare_starts,
    _compare_work,
    _end_exchanges,
    _measure_gaps,
    list_residuals,
    number_hosts,
)
from prism.observe.jobs.grouping import recognise_jobs
from prism.observe.traffic.preparation import prepare_traffic

RING = MadeJob(dp=16, pp=1, tp=1, gpus_per_host=1, steps=30, meets=False)


def open_only_case(job: MadeJob) -> Case:
    traffic = prepare_traffic(*write_job(job))
    (found,) = study_jobs(traffic, recognise_jobs(traffic))
    return open_case(traffic, found, int(traffic.messages["end_ns"].to_numpy().max()))


def measure_hops(case: Case) -> tuple[list[str], np.ndarray]:
    """The hosts that hops begin at, and what each hop is late by in each step, in seconds."""
    table = next(iter(list_residuals(case, number_hosts(case))))
    return [case.hosts[e] for e in table.sender], table.late_s


def test_only_the_late_host_of_a_ring_starts_late() -> None:
    case = open_only_case(replace(RING, fault=Fault(kind="late_host", place=8, factor=1.5, first=12, last=18)))
    hosts, late = measure_hops(case)
    longer = float(np.median(case.length_s[13:17]) - np.median(case.length_s[:10]))
    by_host = {host: float(np.median(row[13:17])) for host, row in zip(hosts, late, strict=True)}
    assert {host for host, seconds in by_host.items() if seconds > 0.2 * longer} == {"h8"}
    assert abs(by_host["h8"] / longer - 1) < 0.2


def test_nobody_starts_late_in_a_healthy_ring() -> None:
    case = open_only_case(RING)
    _, late = measure_hops(case)
    assert np.quantile(late[~np.isnan(late)], 0.99) < 0.1 * np.median(case.length_s)


def test_shifting_time_changes_no_residual() -> None:
    flows, topology = write_job(RING)
    later = flows.with_columns(pl.col("start_ns", "end_ns") + 7_654_321_000)
    tables = []
    for each in (flows, later):
        traffic = prepare_traffic(each, topology)
        (found,) = study_jobs(traffic, recognise_jobs(traffic))
        tables.append(measure_hops(open_case(traffic, found, int(traffic.messages["end_ns"].to_numpy().max())))[1])
    assert np.allclose(*tables, equal_nan=True)


def test_an_exchange_of_tokens_is_over_for_all_nics_of_a_host_with_the_last() -> None:
    """NICs 0 and 1 of one host send to 2 and 3 of the other: the slow rail holds up the ranks of both."""
    zero = np.zeros(2, np.int64)
    calls = Calls(
        message=np.arange(2), row=np.arange(2), step=zero, place=zero, start=zero, end=np.array([10, 90]),
        src=np.array([0, 1]), dst=np.array([2, 3]), kind=zero, kinds=("ep",), like=np.arange(2),
    )  # fmt: skip
    case: Any = SimpleNamespace(calls=calls, hosts=["a", "a", "b", "b"], steps=SimpleNamespace(height=1))
    assert [ends.tolist() for ends in _end_exchanges(case)] == [[90, 90], [90, 90]]
    case.calls = replace(calls, kinds=("dp",))
    assert [ends.tolist() for ends in _end_exchanges(case)] == [[10, 90], [10, 90]]


def compare_gaps(
    gap_ms: np.ndarray, hops: list[tuple[int, int]], kind: list[int], hosts: list[str], since_ms: Any = None
) -> list[Residuals]:
    """The residuals of streams of one message in each step, by what was idle before it.

    `since_ms` is how long after the step before each message comes, if that is another time.
    """
    streams, steps = gap_ms.shape
    row, step = (x.ravel().astype(np.int64) for x in np.indices((streams, steps)))
    zero = np.zeros(streams * steps, np.int64)
    begin = 1_000_000_000 * np.arange(1, steps + 1)
    start = begin[step] + (1e6 * (gap_ms if since_ms is None else since_ms).ravel()).astype(np.int64)
    src, dst = np.array(hops, np.int64).T
    calls = Calls(
        message=np.arange(len(row)), row=row, step=step, place=zero, start=start, end=begin[step] + 999_000_000,
        src=src, dst=dst, kind=np.array(kind, np.int64), kinds=("dp", "ep"), like=np.zeros(streams, np.int64),
    )  # fmt: skip
    stage = np.full(len(hosts), -1, np.int64)
    frame = pl.DataFrame({"start_ns": begin})
    case: Any = SimpleNamespace(calls=calls, hosts=hosts, stage_of=stage, steps=frame)
    return list(_compare_starts(case, 1e6 * gap_ms.ravel(), False, 1.0))


def test_who_is_late_to_an_exchange_is_seen_though_the_sum_after_it_begins_in_time() -> None:
    """Hosts 0 and 1 exchange tokens, and 2 and 3 do; then all pass gradients on. Host 0 gets slow."""
    exchanges, ring = [(0, 1), (1, 0), (2, 3), (3, 2)], [(0, 2), (1, 0), (2, 3), (3, 1)]
    gap = np.full((8, 10), 10.0)
    gap[0, 7:] = 110.0
    tables = [t.since() for t in compare_gaps(gap, exchanges + ring, [1] * 4 + [0] * 4, list("abcd")) if not t.of_like]
    late = [
        {(int(s), int(r)) for s, r, x in zip(t.sender, t.receiver, t.late_s, strict=True) if x[8] > 0.05}
        for t in tables
    ]
    assert late == [set(), {(0, 1)}]  # of the ring, and of the exchanges


def test_a_call_that_comes_no_later_than_usual_is_not_late_however_long_nothing_ended_before_it() -> None:
    """Hosts 0 and 2 begin when they always do; what they sent before has not ended, as 1 and 3 are late to it."""
    hops = [(0, 1), (1, 0), (2, 3), (3, 2)]
    gap, since = np.full((4, 10), 10.0), np.full((4, 10), 100.0)
    gap[:, 7:] = np.array([[600.0], [200.0], [600.0], [200.0]])
    since[[1, 3], 7:] = 300.0
    (table,) = [t for t in compare_gaps(gap, hops, [0] * 4, list("abcd"), since) if t.of_past]
    assert np.allclose(table.late_s[:, 8], [0.0, 0.19, 0.0, 0.19], atol=0.001)


def test_a_ring_that_follows_at_once_and_is_never_late_does_not_clear_who_is_late_to_shards() -> None:
    """Two hosts gather shards from each other, as two more do; replicas add up right after them, whoever is slow."""
    shards, replicas = [(0, 1), (1, 0), (2, 3), (3, 2)], [(0, 2), (2, 0), (1, 3), (3, 1)]
    gap = np.array([[10.0] * 10] * 4 + [[0.0] * 10] * 4)
    gap[1, 7:] = 110.0
    tables = [t for t in compare_gaps(gap, shards + replicas, [0] * 8, list("abcd")) if t.of_past]
    assert [{(int(s), int(r)) for s, r in zip(t.sender, t.receiver, strict=True)} for t in tables] == [set(shards)]
    nobody = compare_gaps(np.zeros((8, 10)), shards + replicas, [0] * 8, list("abcd"))
    assert not any(table.of_past for table in nobody)


def test_a_stage_on_one_host_has_nobody_to_be_later_than_and_is_compared_with_its_past(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stage 1 is on one host, and lost records shorten its work in three of ten steps; replicas of stage 0 differ."""
    work = np.array([[0.1] * 10, [0.2] * 10, [0.02] * 3 + [0.1] * 7])
    table = SimpleNamespace(
        endpoints=np.arange(3), stage=np.array([0, 0, 1]), host=np.array(["a", "b", "c"]), phases={"forward": work},
        num_stages=2,
    )  # fmt: skip
    monkeypatch.setattr(residuals, "tabulate_work", lambda case: table)
    case: Any = SimpleNamespace()
    past, like = _compare_work(case, 1.0)
    assert past.of_past and like.of_like
    assert np.isnan(like.late_s[2]).all() and (like.late_s[1] > 0.9).all()
    assert (past.late_s[2, 3:] > 0.9).all()


MS = 1_000_000


def write_blocks(waits_ms: dict[tuple[int, int], float], slower: dict[tuple[int, int], float]) -> Any:
    """Ten steps of twenty blocks on each hop of a ring of four hosts; in the last three every other block waits."""
    hops = [(0, 1), (1, 2), (2, 3), (3, 0)]
    row, step, place = (x.ravel().astype(np.int64) for x in np.indices((4, 10, 20)))
    wait = np.array([waits_ms.get(hop, 0.0) for hop in hops])[row] * (step >= 7) * (place % 2)
    took = np.where(step >= 7, np.array([slower.get(hop, 1.0) for hop in hops])[row], 1.0) + wait
    start = step * 10**9 + place * 10**7
    src, dst = np.array(hops, np.int64).T
    calls = Calls(
        message=np.arange(len(row)), row=row, step=step, place=place, start=start,
        end=start + (took * MS).astype(np.int64), src=src, dst=dst, kind=np.zeros(4, np.int64), kinds=("cp",),
        like=np.zeros(4, np.int64),
    )  # fmt: skip
    return SimpleNamespace(calls=calls, hosts=list("abcd"), steps=SimpleNamespace(height=10))


def list_late_in_ring(case: Any) -> dict[int, float]:
    (table,) = _compare_ring_waits(case, np.arange(4), 1.0)
    late = {int(host): float(seconds[8]) for host, seconds in zip(table.sender, table.since().late_s, strict=True)}
    return {host: seconds for host, seconds in late.items() if seconds > 0.001}


def test_who_keeps_blocks_of_a_sequence_waiting_and_waits_for_none_is_late() -> None:
    """Host 1 is slow: 0 waits for it, and 3 for 0."""
    late = list_late_in_ring(write_blocks({(0, 1): 5.0, (3, 0): 5.0}, {}))
    assert list(late) == [1]
    assert abs(late[1] - 0.05) < 0.001


def test_a_slow_link_of_a_ring_makes_nobody_late() -> None:
    assert list_late_in_ring(write_blocks({}, {(0, 1): 9.0})) == {}


def test_what_comes_to_one_rank_of_a_host_holds_up_all_that_share_its_tensors() -> None:
    """NIC 0 of host a takes in a transfer until 90; NIC 1 sends at 100 what it last sent at 10."""
    calls = Calls(
        message=np.arange(3), row=np.arange(3), step=np.zeros(3, np.int64), place=np.zeros(3, np.int64),
        start=np.array([0, 5, 100]), end=np.array([90, 10, 110]), src=np.array([2, 1, 1]), dst=np.array([0, 3, 3]),
        kind=np.zeros(3, np.int64), kinds=("dp",), like=np.zeros(3, np.int64),
    )  # fmt: skip
    tensors, blocks = SimpleNamespace(value=1), SimpleNamespace(value=None)
    case: Any = SimpleNamespace(
        calls=calls, hosts=list("aabb"), steps=pl.DataFrame({"start_ns": [0]}), stages=SimpleNamespace(chains=()),
        own_by_host={"a": {0, 1}, "b": {2, 3}}, layout=SimpleNamespace(tp=tensors, cp=blocks), gpus=4,
        pause_s=np.zeros(1),
    )  # fmt: skip
    assert [gap[2] for gap in _measure_gaps(case)] == [90, 90]
    tensors.value = 2
    assert [gap[2] for gap in _measure_gaps(case)] == [10, 10]


def test_a_pause_between_two_steps_is_no_lateness() -> None:
    """The ring saves for 5 s after the 15th step: nobody comes later to the 16th than to others."""
    flows, topology = write_job(RING)
    saved = int(open_only_case(RING).steps["start_ns"][15])
    later = pl.when(pl.col("start_ns") >= saved).then(5_000_000_000).otherwise(0)
    traffic = prepare_traffic(flows.with_columns(pl.col("start_ns", "end_ns") + later), topology)
    (found,) = study_jobs(traffic, recognise_jobs(traffic))
    case = open_case(traffic, found, int(traffic.messages["end_ns"].to_numpy().max()))
    sent, _ = _measure_gaps(case)
    longest = [float(np.nanmax(sent[case.calls.step == step])) for step in (15, 16)]
    assert case.pause_s.max() > 4 and longest[0] < 1.5 * longest[1]


def test_what_one_of_two_scatters_by_is_not_halved_by_the_zeros_of_the_other() -> None:
    late = np.stack([np.zeros(40), np.random.default_rng(2).normal(1, 0.1, 40)])
    assert residuals.measure_scale(late, 1.0) == pytest.approx(0.1, rel=0.3)
