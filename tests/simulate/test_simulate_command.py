"""`prism simulate` from the outside."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
import typer
from meshes import Mesh, build_mesh
from typer.testing import CliRunner

from prism.cli.simulate import EPILOG, simulate_graph
from prism.errors import InputError
from prism.simulate import GraphBuilder, save_graph

app = typer.Typer()
app.command(epilog=EPILOG)(simulate_graph)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_graph(build_mesh(Mesh(2, 2, 2, 2, 2, 1, True, 2, 0), gpus_per_host=8), tmp_path / "graph")
    return tmp_path


def call(*words: str):
    return CliRunner().invoke(app, list(words))


def test_json_is_one_document_and_nothing_else(folder: Path):
    result = call(str(folder / "graph"), "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["schema"] == "prism.simulation/1"
    assert sum(document["step_ns"]) == document["total_ns"] > 0
    assert (document["ranks"], document["solved_ranks"]) == (16, 2)
    assert abs(sum(row["share"] for row in document["critical_path"]["kind"]) - 1) < 1e-9


def test_what_if_prints_before_and_after(folder: Path):
    result = call(str(folder / "graph"), "--what-if", "rank 3 speed 0.5", "--what-if", "tp bandwidth 2", "--json")
    document = json.loads(result.stdout)
    assert document["what_if"] == ["rank 3 speed 0.5", "tp bandwidth 2"]
    change = sum(row["change_ns"] for row in document["critical_path_change"])
    assert change == document["after"]["total_ns"] - document["before"]["total_ns"]
    shown = call(str(folder / "graph"), "--what-if", "rank 3 speed 0.5").output
    assert "where the time went" in shown and "critical path" in shown


def test_a_cluster_prices_and_output_writes_the_tables(folder: Path):
    out = folder / "out"
    result = call(str(folder / "graph"), "--cluster", "dgx-h100", "--output", str(out), "--chakra", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["total_ns"] > 0
    assert pl.read_parquet(out / "spans.parquet").height > 0
    assert pl.read_parquet(out / "critical_path.parquet")["end_ns"].max() == json.loads(result.stdout)["total_ns"]
    assert len(list((out / "chakra").glob("mesh.*.et"))) == 16


def test_sharing_links_is_at_least_as_long(folder: Path):
    plain, shared = (
        json.loads(call(str(folder / "graph"), "--cluster", "dgx-h100", *extra, "--json").stdout)["total_ns"]
        for extra in ([], ["--contention"])
    )
    assert shared >= plain


def test_jitter_gives_percentiles(folder: Path):
    document = json.loads(call(str(folder / "graph"), "--jitter", "0.1", "--draws", "5", "--json").stdout)
    spread = document["jitter"]
    assert spread["p5_ns"] <= spread["p50_ns"] <= spread["p95_ns"] <= spread["p99_ns"]
    assert "step time over 5 draws" in call(str(folder / "graph"), "--jitter", "0.1", "--draws", "5").output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "not a graph"),
        (["graph", "--what-if", "rank 99 speed 0.5"], "no rank 99"),
        (["graph", "--contention"], "give --cluster"),
        (["graph", "--cluster", "dgx-h1000"], "dgx-h100"),
    ],
)
def test_wrong_input_is_an_input_error(folder: Path, words: list[str], message: str):
    result = call(str(folder / words[0]), *words[1:])
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)


@pytest.mark.parametrize("words", [["--calibration", "x.csv"], ["--chakra"], ["--draws", "0"]])
def test_wrong_use_exits_two(folder: Path, words: list[str]):
    assert call(str(folder / "graph"), *words).exit_code == 2


def test_a_network_that_is_not_known_asks_for_a_calibration(folder: Path, monkeypatch):
    notes: list[str] = []
    monkeypatch.setattr("prism.cli.simulate.note", notes.append)
    result = call(str(folder / "graph"), "--cluster", "aws-p4d", "--json")
    known = json.loads(result.stdout)["communication"]
    assert known["calibrate"] and known["error_band_pct"] > 100 and known["measured_share"] == 0
    assert any("prism calibrate --nccl-tests" in text for text in notes)


def build_ring(num_ranks: int):
    job = GraphBuilder("ring")
    program = job.program()
    program.compute("forward", 1_000_000)
    program.all_reduce("dp", 2**20)
    ranks = range(num_ranks)
    job.ranks(ranks, [program.class_id] * num_ranks, [r // 8 for r in ranks], [r % 8 for r in ranks])
    job.group("dp", ranks)
    return job.build()


def test_one_host_is_known_well_enough(folder: Path, monkeypatch):
    notes: list[str] = []
    monkeypatch.setattr("prism.cli.simulate.note", notes.append)
    save_graph(build_ring(8), folder / "node")
    result = call(str(folder / "node"), "--cluster", "dgx-h100", "--json")
    known = json.loads(result.stdout)["communication"]
    assert (known["calibrate"], known["error_band_pct"]) == (False, 30.0)
    assert not notes


def test_a_preset_holds_65536_ranks(tmp_path: Path):
    save_graph(build_ring(65_536), tmp_path / "wide")
    result = call(str(tmp_path / "wide"), "--cluster", "dgx-h100", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["ranks"] == 65_536
