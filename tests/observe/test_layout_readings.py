"""Layouts whose counts are easily misread: sequences on half of the NICs, buckets in every microbatch, hidden replicas."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pytest

from prism.lab.scenarios import make_scenario, random_scenario
from prism.lab.scenarios.measurement import Measurement
from prism.lab.scenarios.scenario import Scenario
from prism.observe.diagnose import diagnose, study_jobs
from prism.observe.parallelism.gradient_groups import NO_GRADIENT_GROUPS, GradientGroups
from prism.observe.parallelism.layout_model import Degrees, RankCount, rank_layouts
from prism.observe.parallelism.layout_readings import Counts, find_groups
from prism.observe.parallelism.message_streams import _leave_runs, _spread_beyond_chance, _twins
from prism.observe.parallelism.pairs import choose_kind
from prism.observe.parallelism.rank_counts import Ranks
from prism.observe.parallelism.stages import NO_STAGES

DEGREES = ("dp", "pp", "tp", "cp", "ep")
SAMPLED = Measurement(lost=0.01, clock_offset_ms=1.0, sampling_rate=10, with_exporter=True)


def alone(seed: int, job: int = 0, **changes: Any) -> Scenario:
    """One job of a random scenario by itself, and healthy."""
    base = random_scenario(seed)
    return replace(base, jobs=(replace(base.jobs[job], start_s=0.0),), faults=(), **changes)


def read(scenario: Scenario) -> tuple[list[int], float]:
    """The degrees that are found, and how surely."""
    made = make_scenario(scenario, 1)
    gpus = made.truth["cluster"]["gpus_per_host"]
    document = diagnose(made.flows, made.topology, study=partial(study_jobs, gpus_per_host=gpus)).to_json()
    layout = document["jobs"][0]["layout"]
    return [layout[name] for name in DEGREES], layout["confidence"]


@pytest.mark.parametrize("measurement", [Measurement(with_exporter=True), SAMPLED], ids=["all", "sampled"])
def test_a_ring_through_half_of_the_nics_splits_sequences(measurement: Measurement) -> None:
    assert read(alone(541, measurement=measurement))[0] == [1, 1, 4, 4, 1]


def test_buckets_of_every_microbatch_are_no_layers_of_shards() -> None:
    assert read(alone(541, 1))[0] == [2, 1, 8, 1, 1]


def test_replicas_that_share_a_host_are_no_wider_tensors() -> None:
    degrees, confidence = read(alone(523))
    assert degrees == [2, 4, 2, 1, 1] and confidence > 0.9


def test_blocks_that_hosts_pass_are_told_beside_a_pipeline() -> None:
    assert read(alone(556))[0] == [2, 2, 4, 4, 1]


def test_two_sizes_that_samples_run_together_are_steady_and_routed_tokens_are_not() -> None:
    chance = np.random.default_rng(3)
    two = chance.choice([4e6, 8e6], 400)
    routed = chance.uniform(4e6, 8e6, 400)
    sampled = np.concatenate([chance.poisson(sizes / 4e4) * 4e4 for sizes in (two, routed)]).astype(float)
    count = np.array([400, 400])
    mean = sampled.reshape(2, 400).mean(axis=1)
    steady, tokens = _spread_beyond_chance(sampled, mean, count, 4e4)
    assert steady < 0.05 < tokens


def test_blocks_of_a_sequence_that_few_samples_show_are_steady_in_runs_and_routed_tokens_are_not() -> None:
    chance = np.random.default_rng(3)
    blocks = np.tile(np.repeat([2e6, 4e6], 32), 20)  # forward, then backward
    routed = 2e6 * chance.lognormal(0, 0.3, len(blocks))
    sampled = np.concatenate([chance.poisson(sizes / 4e5) * 4e5 for sizes in (blocks, routed)]).astype(float)
    count = np.array([len(blocks), len(routed)])
    mean = sampled.reshape(2, -1).mean(axis=1)
    steady, tokens = _leave_runs(_spread_beyond_chance(sampled, mean, count, 4e5), sampled, mean, count, 4e5)
    assert steady < 0.03 < tokens


@pytest.mark.parametrize(("at_once", "tensor"), [(8, 1), (2, 4), (1, 8)])
def test_tokens_that_leave_a_host_at_once_tell_how_many_of_its_ranks_share_experts(at_once: int, tensor: int) -> None:
    host = np.repeat([0, 1], 8)
    src = np.arange(16)
    streams = pl.DataFrame({"src": src, "dst": (src + 8) % 16, "src_host": host, "dst_host": 1 - host}).with_columns(
        unit="src", pair="src", stream="src", kind=pl.lit("ep"), overlap=1 - 1 / at_once
    )
    counts = Counts(
        ranks=Ranks(total=16, per_host=8.0, shared=False), streams=streams, stages=NO_STAGES, host=host,
        gradients=NO_GRADIENT_GROUPS, groups=find_groups(streams, NO_STAGES),
    )  # fmt: skip
    told = [r for r in counts.read() if 8 // tensor in r.predict(Degrees(dp=16 // tensor, pp=1, tp=tensor, cp=1, ep=2))]
    assert counts.exchanging == at_once
    assert any(r.value == at_once for r in told) or at_once == 1


@pytest.mark.parametrize(("seed", "job"), [(564, 0), (500, 1)], ids=["all saved bytes", "one NIC saves"])
def test_a_job_that_saves_far_more_than_it_trains_with_is_still_a_job(seed: int, job: int) -> None:
    made = make_scenario(alone(seed, job), seed)
    (found,) = diagnose(made.flows, made.topology).to_json()["jobs"]
    assert set(found["endpoints"]) == set(made.truth["jobs"][0]["endpoints"])


def draw_rings(hosts: int, **columns: Any) -> pl.DataFrame:
    """Gradients of hosts with eight NICs: a ring on each rail."""
    src = np.arange(8 * hosts)
    return pl.DataFrame({"src": src, "dst": np.roll(src, -8), "src_host": src // 8}).with_columns(
        dst_host=pl.col("dst") // 8, unit="src", pair="src", stream="src", connection="src", kind=pl.lit("dp"),
        role=pl.lit("oneway"), per_step=4.0, bytes=1e8, num=100, **columns,
    )  # fmt: skip


def test_replicas_of_a_host_that_come_at_once_to_one_collective_are_no_parts_of_a_tensor() -> None:
    streams = draw_rings(5)
    counts = Counts(
        ranks=Ranks(total=40, per_host=8.0, shared=False), streams=streams, stages=NO_STAGES,
        host=np.repeat(np.arange(5), 8), groups=find_groups(streams, NO_STAGES),
        gradients=GradientGroups(dense=1, expert=1, stages=1, connections=8, in_step=8),
    )  # fmt: skip
    first, *others = rank_layouts([RankCount(ranks=40, per_host=8, readings=list(counts.read()))])
    assert first.degrees == Degrees(dp=40, pp=1, tp=1, cp=1, ep=1)
    assert first.probability < 0.95 and others[0].degrees.tp == 8  # The other one is listed.


@pytest.mark.parametrize(("num", "sampled", "answers"), [(60, True, [1]), (40, True, []), (60, False, [])])
def test_what_comes_back_two_messages_at_a_time_is_an_answer_if_it_is_as_much_in_all(
    num: int, sampled: bool, answers: list[int]
) -> None:
    """Eight microbatches go forward in eight records; some of their gradients come back in one record for two."""
    table = {"bytes": np.array([4e6, 5.33e6]), "spread": np.array([0.0, 0.35]), "num": np.array([80, num])}
    assert _twins(table, 0, np.array([1]), merged=sampled).tolist() == answers


def test_a_pair_of_two_kinds_is_no_less_sure_than_another() -> None:
    """Tokens and gradients pass it both; what it is named by is right as often as where it carries one kind."""
    sent = [(0, "dp", 10, 5e6), (0, "ep", 160, 3e5), (1, "dp", 10, 5e6), (2, "unknown", 1, 1e3)]
    streams = pl.DataFrame(
        [(pair, 2 * pair, 2 * pair + 1, kind, num, size) for pair, kind, num, size in sent],
        ["pair", "src", "dst", "kind", "num", "bytes"], orient="row",
    )  # fmt: skip
    both, one, none = choose_kind(streams).iter_rows(named=True)
    assert (both["kind"], both["confidence"]) == (one["kind"], one["confidence"])
    assert none["kind"] == "unknown" and none["confidence"] <= 0.5 < one["confidence"]
