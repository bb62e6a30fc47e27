"""The rules and the dashboard that are shipped ask for metrics that are served, and their own tools take them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prism.cli.main import app
from prism.incidents import AlertConfig, Channel
from prism.serve.folder import Folder
from prism.serve.incidents import KeptIncidents
from prism.serve.library import Library
from prism.serve.web.metrics import render_metrics


def written(tmp_path: Path, option: str) -> Path:
    path = tmp_path / "file"
    done = CliRunner().invoke(app, ["serve", option, str(path)])
    assert done.exit_code == 0, done.output
    return path


@pytest.mark.parametrize("option", ["--rules", "--grafana"])
def test_every_metric_that_is_asked_for_is_served(tmp_path: Path, option: str) -> None:
    kept = KeptIncidents(AlertConfig(channels=(Channel(name="a", type="webhook", url="http://127.0.0.1:9"),)), None)
    (tmp_path / "folder").mkdir()
    text = render_metrics(Library(Folder(tmp_path / "folder")).refresh(), kept)
    kept.close()
    asked = set(re.findall(r"prism_serve_\w+", written(tmp_path, option).read_text()))
    served = set(re.findall(r"^# TYPE (\S+)", text, flags=re.MULTILINE))
    assert asked and asked <= served


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", str(written(tmp_path, "--rules"))], capture_output=True, text=True
    )
    assert done.returncode == 0 and "6 rules found" in done.stdout, done.stdout + done.stderr


def test_the_dashboard_has_panels_apart_and_annotations(tmp_path: Path) -> None:
    board = json.loads(written(tmp_path, "--grafana").read_text())
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]]
    assert len(set(places)) == len(places) == 7 and board["annotations"]["list"]
