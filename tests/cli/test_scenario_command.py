"""`prism scenario` on the command line."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from prism.cli import scenario
from prism.errors import InputError

app = typer.Typer()
app.command("scenario")(scenario.run_scenario)
app.command("other")(lambda: None)
runner = CliRunner()


def test_it_writes_the_four_files_and_says_so_in_json(tmp_path):
    result = runner.invoke(app, ["scenario", "dense-dp-16", "--output", str(tmp_path), "--seed", "3", "--json"])
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["gpus"] == 16 and document["seed"] == 3 and document["flows"] > 0
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"flows.parquet", "topology.csv", "spans.parquet", "truth.json"}
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert truth["schema"] == "prism.truth/1" and truth["jobs"][0]["layout"]["dp"] == 16


def test_the_list_names_every_scenario():
    listed = json.loads(runner.invoke(app, ["scenario", "--list", "--json"]).stdout)["scenarios"]
    assert len(listed) >= 30
    shown = runner.invoke(app, ["scenario", "--list"]).stdout
    assert "random" in shown and listed[0]["name"] in shown


@pytest.mark.parametrize(("arguments", "words"), [(["nothing-like-it", "-o", "x"], "no such scenario")])
def test_a_wrong_name_is_one_line(arguments, words, tmp_path):
    result = runner.invoke(app, ["scenario", *arguments])
    assert isinstance(result.exception, InputError) and words in str(result.exception)


def test_it_asks_for_a_name_and_a_place():
    assert runner.invoke(app, ["scenario"]).exit_code == 2
    assert runner.invoke(app, ["scenario", "dense-dp-16"]).exit_code == 2
