"""Exporters and captures of the made world: unbiased, conserving bytes, within link rates, true and repeatable."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from proving.benchmarks.world.captures import Capture, make_capture
from proving.benchmarks.world.execution import Health
from proving.benchmarks.world.exporters import (
    EPOCH_NS,
    ExporterConfig,
    cut_by_timeouts,
    export,
    join_transfers,
    sample_packets,
    split_messages,
    split_queue_pairs,
)
from proving.benchmarks.world.fabric import FabricConfig
from proving.benchmarks.world.life import Phase
from proving.benchmarks.world.make import CATALOGUE
from proving.benchmarks.world.site import Site
from proving.benchmarks.world.traffic import CODE

KEYS = ["job", "connection", "pair"]


def make_small(seed=3, **about):
    """Two jobs on six hosts for ten seconds."""
    site = Site(np.random.default_rng(seed), FabricConfig(num_hosts=8, nics_per_host=4, hosts_per_leaf=4))
    jobs = [site.job("ddp", 2, site.ddp(layers=12, hidden=768)), site.job("pipeline", 4, site.pipeline(2))]
    return make_capture(Capture(fabric=site.fabric, jobs=jobs, seconds=10, **about), seed)


@pytest.fixture(scope="module")
def small():
    return make_small()


def test_the_same_seed_gives_the_same_capture(small):
    again, other = make_small(), make_small(seed=4)
    assert again.flows.equals(small.flows)
    assert again.truth == small.truth
    assert not other.flows.equals(small.flows)


def test_records_carry_exactly_the_bytes_of_the_bursts(small):
    total = small.bursts["payload"].sum()
    assert small.flows["bytes"].sum() == total
    assert split_messages(split_queue_pairs(small.bursts, 1))["bytes"].sum() == total
    assert join_transfers(split_queue_pairs(small.bursts, 4))["bytes"].sum() == total


def test_no_nic_sends_or_receives_more_than_its_line_rate(small):
    window = 0.01
    first, last = (pl.col("start") / window).floor().cast(pl.Int64), (pl.col("end") / window).floor().cast(pl.Int64)
    parts = small.bursts.filter(pl.col("kind") < CODE["storage"])
    parts = parts.with_columns(window=pl.int_ranges(first, last + 1)).explode("window")
    left = pl.max_horizontal("start", pl.col("window") * window)
    right = pl.min_horizontal("end", (pl.col("window") + 1) * window)
    share = (right - left) / (pl.col("end") - pl.col("start"))
    for side in ("src", "dst"):
        bits = parts.group_by(side, "window").agg((pl.col("payload") * share).sum() * 8 / window)["payload"]
        assert 0.2 * 400e9 < bits.max() < 400e9


def test_truth_names_what_the_records_hold(small):
    seen = set(small.flows["src"]) | set(small.flows["dst"])
    pairs = set(zip(small.flows["src"], small.flows["dst"], strict=True))
    assert [job["dp"] for job in small.truth["jobs"]] == [16, 2]
    for job in small.truth["jobs"]:
        assert set(job["endpoints"]) <= seen
        for pair in job["pairs"]:
            assert (pair["src"], pair["dst"]) in pairs or (pair["dst"], pair["src"]) in pairs
            assert {pair["src"], pair["dst"]} <= set(job["endpoints"])
        ends = [step["start_ns"] + step["duration_ns"] for step in job["steps"]]
        assert ends[:-1] == [step["start_ns"] for step in job["steps"]][1:]
        assert job["start_ns"] <= job["steps"][0]["start_ns"] < ends[-1] <= job["end_ns"] + 10**9
    assert not set(small.truth["jobs"][0]["endpoints"]) & set(small.truth["jobs"][1]["endpoints"])


def test_the_last_gradient_arrives_when_the_step_ends(small):
    job = small.truth["jobs"][0]
    own = small.flows.filter(pl.col("src").is_in(job["endpoints"]) & pl.col("dst").is_in(job["endpoints"]))
    big = own.filter(pl.col("bytes") > 100_000)["end_ns"].to_numpy()
    for step in job["steps"][1:]:
        end = step["start_ns"] + step["duration_ns"]
        assert np.abs(big - end).min() < 2_000_000


def test_sampled_bytes_are_unbiased():
    rows = pl.DataFrame(
        {"start": np.zeros(4000), "end": np.ones(4000), "packets": np.full(4000, 700.0), "bytes": 2.9e6}
    )
    sampled = sample_packets(rows, 100, np.random.default_rng(1))
    assert sampled["bytes"].sum() * 100 == pytest.approx(4000 * 2.9e6, rel=0.01)
    assert ((sampled["start"] >= 0) & (sampled["start"] <= sampled["end"]) & (sampled["end"] <= 1)).all()


def make_rows(spans, num_bytes=1000.0):
    start, end = zip(*spans, strict=True)
    columns = {"start": start, "end": end, "bytes": num_bytes, "packets": 4.0, "src": 0, "dst": 1, "kind": 0}
    return pl.DataFrame(columns).with_columns(job=0, connection=0, pair=0)


def test_an_idle_timeout_parts_bursts_and_an_active_timeout_cuts_long_ones():
    cut = cut_by_timeouts(make_rows([(0.0, 0.1), (0.15, 0.2), (0.5, 0.6)]), KEYS, 0.1, 1.0)
    assert cut["start"].to_list() == [0.0, 0.5]
    assert cut["bytes"].to_list() == [2000, 1000]
    cut = cut_by_timeouts(make_rows([(0.0, 2.5)]), KEYS, 0.1, 1.0)
    assert cut["bytes"].to_list() == [400, 400, 200]
    assert cut["end"].to_list() == [1.0, 2.0, 2.5]


def test_both_leaves_export_what_passes_both(small):
    site = Site(np.random.default_rng(3), FabricConfig(num_hosts=8, nics_per_host=4, hosts_per_leaf=4))
    config = ExporterConfig(style="flows", both_leaves=True)
    double = export(config, small.bursts, site.fabric, np.random.default_rng(5))
    single = export(ExporterConfig(style="flows"), small.bursts, site.fabric, np.random.default_rng(5))
    leaves = dict(zip(site.fabric.addresses, site.fabric.leaves, strict=True))
    crossing = single.filter(
        pl.Series([leaves[a] != leaves[b] for a, b in zip(single["src"], single["dst"], strict=True)])
    )
    assert crossing.height > 0
    assert double.height == single.height + crossing.height


def test_a_killed_job_sends_nothing_after_its_end():
    site = Site(np.random.default_rng(3), FabricConfig(num_hosts=4))
    job = site.job("ddp", 2, site.ddp(layers=12, hidden=768))
    hosts = job.phases[0].hosts
    job.phases = [Phase(hosts=hosts, program=job.phases[0].program, begin=0.0, end=4.2, killed=True)]
    made = make_capture(Capture(fabric=site.fabric, jobs=[job], seconds=8), 1)
    own = made.flows.filter(pl.col("dst_port") == 4791)
    assert own["end_ns"].max() <= EPOCH_NS + 4_200_000_000
    assert made.truth["jobs"][0]["steps"][-1]["start_ns"] < EPOCH_NS + 4_200_000_000


def test_a_hang_stops_a_pipeline_in_the_middle_of_a_step():
    site = Site(np.random.default_rng(3), FabricConfig(num_hosts=4))
    job = site.job("pipeline", 4, site.pipeline(4), health=Health(hang_rank=9, hang_time=5.0))
    made = make_capture(Capture(fabric=site.fabric, jobs=[job], seconds=20), 1)
    last = made.bursts.filter(pl.col("kind") < CODE["storage"])["end"].max()
    steps = made.truth["jobs"][0]["steps"]
    assert 4 < last < 9
    assert steps[-1]["start_ns"] + steps[-1]["duration_ns"] < EPOCH_NS + last * 1e9


def test_the_catalogue_is_healthy_in_most_jobs():
    captures = [make(np.random.default_rng(number)) for number, make in enumerate(CATALOGUE)]
    jobs = [job for capture in captures for job in capture.jobs]
    assert len(captures) == 24
    assert sum(job.culprit is None for job in jobs) >= 0.4 * len(jobs)
