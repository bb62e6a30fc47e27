"""The Grafana dashboard asks for metrics that a watch serves, and `prism watch --grafana` hands it out."""

from __future__ import annotations

import json
import re
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from prism.cli.main import app
from prism.observe.watch.metrics import WatchStatus, render_metrics


def dashboard() -> Any:
    return json.loads(files("prism.observe.watch").joinpath("grafana/prism-watch.json").read_text())


def expressions() -> list[str]:
    return [t["expr"] for panel in dashboard()["panels"] for t in panel.get("targets", ())]


def test_every_metric_it_asks_for_is_served() -> None:
    some = Counter({"x": 1})
    status = WatchStatus(
        dropped=some, malformed=some, events=some, findings=some, alerts=some, lag_seconds=1.0, jobs={"job-1": (8, 1.0)}
    )
    served = set(re.findall(r"^# TYPE (\S+)", render_metrics(status), flags=re.MULTILINE))
    asked = {name for text in expressions() for name in re.findall(r"prism_watch_\w+", text)}
    assert asked <= served
    # What is served and not drawn: how many datagrams came, how many looks were taken, and a disk that is full.
    assert served - asked == {
        "prism_watch_received_total",
        "prism_watch_looks_total",
        "prism_watch_state_in_memory_only",
    }


def test_labels_it_groups_by_are_those_of_the_metrics() -> None:
    text = render_metrics(
        WatchStatus(
            dropped=Counter(a=1),
            malformed=Counter(a=1),
            events=Counter(a=1),
            findings=Counter(a=1),
            alerts=Counter(a=1),
        )
    )
    for expression in expressions():
        for label, metric in re.findall(r"sum by \((\w+)\) \((?:rate|increase)\((prism_watch_\w+)", expression):
            assert f"{metric}{{{label}=" in text


def test_panels_do_not_overlap_and_have_their_own_numbers() -> None:
    panels = dashboard()["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for place in (p["gridPos"] for p in panels):
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells


def test_brackets_of_every_expression_close() -> None:
    for text in expressions():
        for a, b in ("()", "{}", "[]"):
            assert text.count(a) == text.count(b), text


def test_watch_hands_it_out_without_a_source(tmp_path: Path) -> None:
    target = tmp_path / "dashboard.json"
    assert CliRunner().invoke(app, ["watch", "--grafana", str(target)]).exit_code == 0
    assert json.loads(target.read_text()) == dashboard()
