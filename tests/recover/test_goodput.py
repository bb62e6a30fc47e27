"""Where GPU time went, against run folders whose truth is known."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from prism.cli.main import app
from prism.errors import BadFileError
from prism.recover.progress import attempt_dir
from prism.recover.supervise.goodput import read_goodput, total_hours, write_metrics

START = 1_780_000_000.0


class Run:
    """Writes a run folder, second by second."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = START
        self.attempt = 0
        folder.mkdir()

    def decide(self, event: dict, *actions: dict) -> None:
        line = {"time": self.now, "event": event, "actions": list(actions)}
        with (self.folder / "decisions.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")

    def launch(self, event: dict | None = None) -> None:
        self.attempt += 1
        self.decide(event or {"kind": "Tick"}, {"action": "Launch", "attempt": self.attempt})
        attempt_dir(self.folder, self.attempt).mkdir(parents=True)
        for rank in range(4):
            (attempt_dir(self.folder, self.attempt) / f"beat-{rank:05d}.json").write_text("{}")

    def report(self, kind: str, **fields: object) -> None:
        with (attempt_dir(self.folder, self.attempt) / "steps.jsonl").open("a") as log:
            log.write(json.dumps({"kind": kind, "time": self.now, **fields}) + "\n")

    def steps(self, first: int, last: int, seconds: float = 1.0) -> None:
        for step in range(first, last + 1):
            self.now += seconds
            self.report("step", step=step)

    def fail(self, reason: str, after_s: float, restart_s: float) -> None:
        self.now += after_s
        self.decide({"kind": "Exited"}, {"action": "Kill"}, {"action": "Explain"})
        self.now += restart_s
        self.launch({"kind": "Explained", "verdict": {"reason": reason}})

    def finish(self, outcome: str = "done") -> None:
        self.decide({"kind": "Exited"}, {"action": "Kill"}, {"action": "Finish", "outcome": outcome})


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """100 s of start, 300 steps with a save of 4 s, a kill that costs 40 steps, an evaluation, a hang, the end."""
    run = Run(tmp_path / "run")
    run.launch()
    run.now += 99.0
    run.steps(1, 100)
    run.now += 4.0
    run.steps(101, 140)
    run.report("saved", step=100)
    run.fail("SIGKILL", after_s=0.5, restart_s=10.0)
    run.now += 29.0
    run.report("restored", step=100, source="storage")
    run.steps(101, 200)
    run.report("paused", what="evaluation")
    run.now += 60.0
    run.report("resumed")
    run.steps(201, 250)
    run.now += 300.0
    run.decide({"kind": "Tick"}, {"action": "TakeStacks"}, {"action": "Kill"})
    run.decide({"kind": "Exited"}, {"action": "Kill"}, {"action": "Explain"})
    run.now += 5.0
    run.launch({"kind": "Explained", "verdict": {"reason": "Unknown"}})
    run.now += 20.0
    run.report("restored", step=250, source="memory")
    run.steps(251, 300)
    run.finish()
    return run


def seconds(spans: pl.DataFrame) -> dict[str, float]:
    return {row["kind"]: row["gpu_hours"] * 3600.0 / 4 for row in total_hours(spans, "kind").to_dicts()}


def test_every_second_of_a_run_is_reported_once_and_equals_the_truth(run: Run):
    spans = read_goodput([run.folder])
    found = seconds(spans)
    assert sum(found.values()) == pytest.approx(run.now - START)
    truth = {
        "startup": 100.0,
        "training": 99.0 + 99.0 + 50.0 + 49.0,
        "checkpoint stall": 4.0,
        "lost work": 40.0 + 0.5,
        "restart": 10.0 + 30.0 + 5.0 + 21.0,
        "evaluation": 60.0,
        "hang": 300.0,
    }
    assert found == pytest.approx(truth, rel=0.01)


def test_what_was_lost_is_reported_with_its_cause(run: Run):
    rows = total_hours(read_goodput([run.folder]), "kind", "cause").to_dicts()
    causes = {(row["kind"], row["cause"]) for row in rows if row["cause"]}
    assert causes == {("lost work", "SIGKILL"), ("restart", "SIGKILL"), ("hang", "Hang"), ("restart", "Hang")}


def test_gpus_that_are_named_outweigh_the_ranks_that_were_seen(run: Run):
    ranks, named = read_goodput([run.folder]), read_goodput([run.folder], gpus=8)
    assert named["gpu_seconds"].sum() == pytest.approx(2 * ranks["gpu_seconds"].sum())


def test_the_command_prints_one_document_and_prometheus_text(run: Run):
    result = CliRunner().invoke(app, ["goodput", str(run.folder), "--json"])
    document = json.loads(result.stdout)
    assert document["schema"] == "prism.goodput/1" and 0.3 < document["goodput"] < 0.5
    assert {row["week"] for row in document["by_week"]} == {"2026-W22"}
    text = CliRunner().invoke(app, ["goodput", str(run.folder), "--as-metrics"]).stdout
    assert text == write_metrics(read_goodput([run.folder]))
    assert f'prism_gpu_seconds{{run="{run.folder}",kind="hang",cause="Hang"}} 1200.000' in text
    assert "lost work" in CliRunner().invoke(app, ["goodput", str(run.folder)]).stdout


def test_a_run_whose_steps_are_only_in_its_log_is_not_called_a_run_without_training(tmp_path: Path):
    run = Run(tmp_path / "run")
    run.launch()
    run.now += 60
    run.finish()
    for words in ([], ["--json"]):
        told = CliRunner().invoke(app, ["goodput", str(run.folder), *words])
        assert "100% of the time is of jobs that report no steps" in told.stderr and "report" not in told.stdout[:9]


def test_a_folder_that_is_no_run_is_reported_in_one_line(tmp_path: Path):
    with pytest.raises(BadFileError, match="name the folder of a supervised run"):
        read_goodput([tmp_path])


def test_lines_that_a_kill_cut_off_are_passed_over(run: Run):
    with (attempt_dir(run.folder, 3) / "steps.jsonl").open("a") as log:
        log.write('{"kind": "step", "ti')
    assert read_goodput([run.folder])["gpu_seconds"].sum() == pytest.approx(4 * (run.now - START))


@pytest.mark.parametrize(
    "line",
    [
        '{"time": 1}',
        '{"time": NaN, "event": {"kind": "Tick"}, "actions": []}',
        '{"time": 1, "event": 3, "actions": [7]}',
    ],
)
def test_a_line_that_is_no_decision_is_named(tmp_path: Path, line: str):
    (tmp_path / "decisions.jsonl").write_text(line)
    with pytest.raises(BadFileError, match="decisions.jsonl line 1: not a decision"):
        read_goodput([tmp_path])


def test_a_run_without_an_attempt_has_no_hours(tmp_path: Path):
    (tmp_path / "decisions.jsonl").write_text("cut off")
    assert read_goodput([tmp_path]).is_empty()


def test_no_gpu_time_is_counted_while_a_stopped_run_waits_to_be_taken_up(tmp_path):
    run = Run(tmp_path / "run")
    run.launch()
    run.steps(1, 100)
    run.now += 5.0
    run.finish("stopped")
    run.now += 60 * 3600.0  # over a weekend
    run.launch()
    run.now += 9.0
    run.report("restored", step=100, source="storage")
    run.steps(101, 200)
    run.finish()
    spans = read_goodput([run.folder], gpus=1)
    hours = {(row["kind"], row["cause"]): row["gpu_hours"] for row in total_hours(spans, "kind", "cause").to_dicts()}
    seconds = {
        ("startup", ""): 1.0,
        ("training", ""): 198.0,
        ("lost work", "Stopped"): 5.0,
        ("restart", "Stopped"): 10.0,
    }
    assert hours == pytest.approx({kind: value / 3600.0 for kind, value in seconds.items()})
