"""Flows and topologies that are wrong in every way we know: never a crash, counted where something is left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from prism.cli.main import app
from prism.lab.scenarios import ScenarioRun, load_scenario, make_scenario
from prism.observe import Diagnosis, build_timeline, diagnose
from prism.observe.llmprism import diagnose_as_published
from prism.observe.report.page import render_report
from prism.records import FLOWS, TOPOLOGY

Method = Callable[[pl.DataFrame, pl.DataFrame | None], Diagnosis]
METHODS = pytest.mark.parametrize("method", [diagnose, diagnose_as_published], ids=["prism", "paper"])


@pytest.fixture(scope="module")
def made() -> ScenarioRun:
    return make_scenario(load_scenario("slow-gpu-64"), 0)


@pytest.fixture(scope="module")
def sound(made: ScenarioRun) -> Diagnosis:
    return diagnose(made.flows, made.topology)


def assert_same_jobs(found: Diagnosis, sound: Diagnosis) -> None:
    assert [j.endpoints for j in found.jobs] == [j.endpoints for j in sound.jobs]
    assert [j.layout for j in found.jobs] == [j.layout for j in sound.jobs]
    for ours, theirs in zip(found.jobs, sound.jobs, strict=True):
        assert ours.steps.equals(theirs.steps)


def insert(flows: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    return pl.concat([flows, rows.select(flows.columns)]).sort("start_ns")


def test_flows_out_of_order_change_nothing(made: ScenarioRun, sound: Diagnosis) -> None:
    shuffled = diagnose(made.flows.sample(fraction=1.0, shuffle=True, seed=3), made.topology)
    assert_same_jobs(shuffled, sound)
    assert [(f.kind, f.culprit) for f in shuffled.findings] == [(f.kind, f.culprit) for f in sound.findings]


def test_flows_told_twice_count_once_and_are_reported(made: ScenarioRun, sound: Diagnosis) -> None:
    twice = diagnose(insert(made.flows, made.flows.gather_every(10)), made.topology)
    assert_same_jobs(twice, sound)
    assert any("repeated" in note for note in twice.notes)


@METHODS
def test_an_endpoint_that_sends_to_itself_is_left_out_and_reported(made: ScenarioRun, method: Method) -> None:
    own = made.flows.head(500).with_columns(dst=pl.col("src"))
    found = method(insert(made.flows, own), made.topology)
    assert any("500 flows from an endpoint to itself" in note for note in found.notes)
    assert [j.endpoints for j in found.jobs] == [j.endpoints for j in method(made.flows, made.topology).jobs]


@METHODS
def test_flows_of_zero_bytes_do_no_harm(made: ScenarioRun, method: Method) -> None:
    empty = made.flows.gather_every(50).with_columns(bytes=pl.lit(0, pl.Int64), start_ns=pl.col("start_ns") + 1)
    found = method(insert(made.flows, empty), made.topology)
    assert set(found.jobs[0].endpoints) == set(made.truth["jobs"][0]["endpoints"])


@METHODS
@pytest.mark.parametrize("size", [2**62, -5, 1])
def test_absurd_sizes_do_no_harm(made: ScenarioRun, method: Method, size: int) -> None:
    wild = made.flows.gather_every(997).with_columns(bytes=pl.lit(size, pl.Int64), start_ns=pl.col("start_ns") + 1)
    found = method(insert(made.flows, wild), made.topology)
    assert set(found.jobs[0].endpoints) == set(made.truth["jobs"][0]["endpoints"])
    json.dumps(found.to_json(), allow_nan=False)


def test_clocks_an_hour_apart_leave_the_jobs_whole(made: ScenarioRun) -> None:
    late = pl.col("src").str.starts_with("10.0.3.").cast(pl.Int64) * 3_600_000_000_000
    found = diagnose(made.flows.with_columns(pl.col("start_ns") + late, pl.col("end_ns") + late), made.topology)
    assert set(found.jobs[0].endpoints) == set(made.truth["jobs"][0]["endpoints"])
    assert build_timeline(found).height


def test_missing_ends_are_taken_as_starts(made: ScenarioRun) -> None:
    found = diagnose(made.flows.with_columns(end_ns=pl.lit(None, pl.Int64)), made.topology)
    assert set(found.jobs[0].endpoints) == set(made.truth["jobs"][0]["endpoints"])


def test_ends_before_starts_do_no_harm(made: ScenarioRun) -> None:
    turned = made.flows.with_columns(end_ns=pl.col("start_ns") - 5_000_000)
    found = diagnose(turned, made.topology)
    assert {e for j in found.jobs for e in j.endpoints} <= set(made.topology["address"])
    json.dumps(found.to_json(), allow_nan=False)


@METHODS
def test_hosts_missing_from_the_topology_are_reported_and_stay_in_the_job(made: ScenarioRun, method: Method) -> None:
    part = made.topology.filter(pl.col("host") != "node-0002")
    found = method(made.flows, part)
    assert any("8 of" in note and "missing" in note for note in found.notes)
    assert {e for j in found.jobs for e in j.endpoints} >= {
        e for e in made.truth["jobs"][0]["endpoints"] if not e.startswith("10.0.2.")
    }


def test_a_topology_about_other_addresses_is_reported(made: ScenarioRun) -> None:
    other = made.topology.with_columns(address=pl.lit("172.16.") + pl.col("address"))
    found = diagnose(made.flows, other)
    assert any("64 of 64 endpoints are missing" in note for note in found.notes)


def test_a_topology_that_contradicts_itself_is_reported(made: ScenarioRun, sound: Diagnosis) -> None:
    torn = pl.concat([made.topology, made.topology.head(8).with_columns(host=pl.lit("elsewhere"))])
    found = diagnose(made.flows, torn)
    assert any("8 addresses appear twice" in note for note in found.notes)
    assert_same_jobs(found, sound)


def test_a_topology_that_contradicts_the_flows_does_no_harm(made: ScenarioRun) -> None:
    mixed = made.topology.with_columns(host=pl.col("host").reverse(), switch=pl.lit("one"))
    found = diagnose(made.flows, mixed)
    assert "</html>" in render_report(found, build_timeline(found))
    json.dumps(found.to_json(), allow_nan=False)


def test_one_host_for_everything_does_no_harm(made: ScenarioRun) -> None:
    found = diagnose(made.flows, made.topology.with_columns(host=pl.lit("h")))
    assert found.jobs and all(job.hosts == ("h",) for job in found.jobs)
    json.dumps(found.to_json(), allow_nan=False)


times = st.integers(-(2**40), 2**60)
names = st.sampled_from(["a", "b", "c", "d", "10.0.0.1"])
rows = st.lists(st.tuples(times, st.none() | times, names, names, st.integers(-1, 2**62)), max_size=40)


@settings(max_examples=25)
@given(rows, st.booleans())
def test_whatever_the_flows_there_is_an_answer(given_rows: list[tuple[object, ...]], with_topology: bool) -> None:
    flows = pl.DataFrame(given_rows, schema=FLOWS.required, orient="row")
    topology = pl.DataFrame([("a", "h", 0, "s"), ("b", "h", 1, None)], schema=TOPOLOGY.required, orient="row")
    for method in (diagnose, diagnose_as_published):
        found = method(flows, topology if with_topology else None)
        assert {e for job in found.jobs for e in job.endpoints} <= set(flows["src"]) | set(flows["dst"])
        json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("flows.csv", "start_ns,end_ns,src,dst,bytes\n1,2,a,b,12k\n", "bytes"),
        ("flows.csv", "start_ns,end_ns,src,bytes\n1,2,a,5\n", "dst"),
        ("flows.parquet", "PAR1 nothing else", "flows.parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    result = CliRunner().invoke(app, ["diagnose", str(tmp_path / name)])
    assert result.exit_code != 0
    assert says in str(result.exception)
    assert "\n" not in str(result.exception)


def test_a_topology_without_hosts_is_one_line(made: ScenarioRun, tmp_path: Path) -> None:
    made.flows.head(10).write_parquet(tmp_path / "flows.parquet")
    (tmp_path / "topology.csv").write_text("address,rail\n10.0.0.1,0\n")
    result = CliRunner().invoke(
        app, ["diagnose", str(tmp_path / "flows.parquet"), "--topology", str(tmp_path / "topology.csv")]
    )
    assert result.exit_code != 0
    assert "topology.csv" in str(result.exception) and "host" in str(result.exception)


def test_noise_is_no_job() -> None:
    rng = np.random.default_rng(0)
    start = np.sort(rng.integers(0, 60 * 10**9, 2000))
    flows = pl.DataFrame(
        {
            "start_ns": start,
            "end_ns": start + rng.integers(1, 10**6, 2000),
            "src": [f"10.1.0.{i}" for i in rng.integers(0, 40, 2000)],
            "dst": [f"10.2.0.{i}" for i in rng.integers(0, 40, 2000)],
            "bytes": rng.integers(64, 10**6, 2000),
        }
    )
    assert diagnose(flows).findings == ()


def test_the_page_gives_no_clean_bill_where_nothing_inside_a_step_can_be_seen(sound: Diagnosis) -> None:
    blind = tuple(replace(job, visible=replace(job.visible, inside=False)) for job in sound.jobs)
    page = render_report(replace(sound, jobs=blind, findings=()), build_timeline(sound))
    assert "Nothing is out of the ordinary" not in page and "nothing can be seen" in page
