"""Rings that look like pipelines, and jobs of which some hops have no records."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import polars as pl
import pytest

from prism.observe.diagnose import diagnose
from prism.observe.diagnosis import JobDiagnosis
from prism.observe.parallelism.rings import list_rings

DATA = Path(__file__).parent / "data" / "gloo"


@cache
def read_job(name: str) -> JobDiagnosis:
    (job,) = diagnose(pl.read_parquet(DATA / f"{name}.parquet")).jobs
    return job


def test_shards_and_gradients_that_pass_round_both_ways_are_no_pipeline() -> None:
    layout = read_job("fsdp_rings").layout
    assert (layout.dp.value, layout.pp.value) == (4, 1)
    assert layout.confidence > 0.9


def test_a_ring_lacks_no_hop_and_each_carries_as_much() -> None:
    ring = {(0, 1): 100.0, (1, 2): 100.2, (2, 0): 99.9}
    chain = {(0, 1): 100.0, (1, 2): 100.0}
    assert list_rings(ring | {(4, 5): 100.0, (5, 4): 100.0}) == [set(ring)]
    assert list_rings(ring | {(b, a): 50.0 for a, b in ring}) == [{(b, a) for a, b in ring}, set(ring)]
    assert list_rings(chain) == []


def test_what_the_last_of_interleaved_stages_hands_back_to_the_first_closes_no_ring() -> None:
    assert list_rings({(0, 1): 100.0, (1, 2): 100.0, (2, 0): 90.0}) == []


@pytest.mark.parametrize(("name", "num", "unseen"), [("pipeline_one_leaf", 3, ".4"), ("ring_one_leaf", 4, ".4")])
def test_a_layout_is_uncertain_where_a_host_of_the_job_has_few_records(name: str, num: int, unseen: str) -> None:
    job = read_job(name)
    (note,) = (note for note in job.notes if "no records" in note)
    assert len(job.endpoints) == num
    assert unseen not in {address[-2:] for address in job.endpoints}
    assert f"{unseen} may belong to it" in note
    assert job.layout.confidence <= 0.5


def test_a_row_of_hosts_may_be_a_ring_where_its_ends_have_no_records_of_each_other() -> None:
    job = read_job("fsdp_one_leaf")
    assert job.layout.confidence <= 0.5
    assert any(note.endswith("some hops have no records") for note in job.notes)


def test_replicas_whose_hosts_are_all_seen_are_certain_though_a_hop_has_no_records() -> None:
    flows = pl.read_parquet(DATA / "killed_in_ring.parquet")
    ends = ["10.212.112.3", "10.212.112.4"]
    seen = flows.filter(~(pl.col("src").is_in(ends) & pl.col("dst").is_in(ends)))
    (job,) = (job for job in diagnose(seen).jobs if set(ends) <= set(job.endpoints))
    assert (job.layout.dp.value, len(job.endpoints)) == (4, 4)
    assert job.layout.confidence > 0.9
    assert not any("no records" in note for note in job.notes)
