"""`prism emulate` and `prism calibrate` as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from prism.cli import calibrate, emulate
from prism.errors import BadConfigError

SCRIPTS = Path(__file__).parent / "scripts"

app = typer.Typer()
app.command("emulate")(emulate.run_emulate)
app.command("calibrate")(calibrate.run_calibrate)


def test_the_document_has_the_shape_that_others_rely_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a folder for the output is usually given relative to where one is
    arguments = [
        "--world-size",
        "4",
        "--iterations",
        "2",
        "--at-once",
        "1",
        "--gpus-per-node",
        "2",
        "--json",
        "--no-measure-host",
    ]
    result = CliRunner().invoke(
        app,
        ["emulate", *arguments, "--output", "out", "--chakra", "--", str(SCRIPTS / "ddp.py")],
        catch_exceptions=False,
    )
    document = json.loads(result.stdout)
    assert document["schema"] == "prism.emulation/1"
    assert document["world_size"] == 4
    assert set(document["iteration_ms"]) == {"median", "mean", "p95"}
    assert document["predicted_ms"] == document["iteration_ms"]["median"] > 0
    assert [rank for c in document["classes"] for rank in c["ranks"]] == [0, 1, 2, 3]
    assert all(c["peak_allocated_bytes"] > 0 for c in document["classes"])
    assert document["provenance"]["compute"] == "measured"
    assert document["provenance"]["communication"] == "modelled"
    assert sum(document["split"][part] for part in ("compute", "exposed_communication", "bubble")) == pytest.approx(
        1, abs=0.01
    )
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written >= {
        "emulation.json", "timeline.parquet", "timeline.perfetto-trace", "report.html", "graph", "flows.parquet",
        "topology.csv", "chakra",
    }  # fmt: skip
    assert "ms per iteration" in (tmp_path / "out" / "report.html").read_text()


def test_collectives_between_two_ranks_become_a_calibration_that_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prism.emulate import calibrating
    from prism.emulate.predict import choose_costs
    from prism.simulate.costs import estimate

    monkeypatch.setattr(calibrating, "list_sizes", lambda largest: [1 << 16])  # one size is enough here
    path = tmp_path / "here.parquet"
    CliRunner().invoke(
        app,
        ["calibrate", "--world-size", "2", "--largest", "1", "--no-pin", "-o", str(path), "--json"],
        catch_exceptions=False,
    )
    costs = choose_costs("cpu", 2, 2, None, path)
    found = estimate("all_reduce", 1 << 16, costs.place([0, 0], [0, 1]), costs.cluster, costs.calibration)
    assert found.provenance == "measured"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["calibrate", "--backend", "mpi", "-o", "x.parquet"], "expected gloo or nccl"),
        (["calibrate", "-o", "x.txt"], "is written as"),
        (["calibrate", "--backend", "nccl", "--world-size", "2", "-o", "x.csv"], "nccl needs one GPU per rank"),
        (["calibrate", "--world-size", "1", "-o", "x.csv"], "at least 2"),
        (["emulate", "--world-size", "4"], "no script given"),
        (["emulate", "--ranks", "9", "--", str(SCRIPTS / "ddp.py")], "rank 9 does not exist"),
        (["emulate", "--routing", "odd", "--", str(SCRIPTS / "ddp.py")], "--routing is 'odd'"),
    ],
)
def test_wrong_use_is_reported_in_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(BadConfigError, match=message):
        CliRunner().invoke(app, arguments, catch_exceptions=False)
