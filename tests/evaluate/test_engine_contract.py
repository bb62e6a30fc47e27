"""What every engine does alike: one test for local processes and for Ray."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_jobs import Act

from prism.evaluate.run.engines import Engine, Gone, LocalEngine, Report, Returned
from prism.evaluate.run.engines.engine import WorkerSpec
from prism.evaluate.schedule.events import Failure


@pytest.fixture
def engine(open_any_engine: Callable[[], Any]) -> Iterator[Any]:
    opened = open_any_engine()
    yield opened
    opened.close()


def start(engine: Engine, *names: str) -> None:
    node = engine.nodes()[0]
    for name in names:
        engine.start(WorkerSpec(id=name, node=node.id))


def collect(engine: Engine, count: int, limit_s: float = 600.0) -> dict[str, Report]:
    found: dict[str, Report] = {}
    end = time.monotonic() + limit_s
    while len(found) < count and time.monotonic() < end:
        found |= {report.worker: report for report in engine.wait(0.5)}
    return found


def test_a_worker_runs_no_file_of_the_folder_it_is_started_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('a file of the current folder was run')")
    monkeypatch.chdir(tmp_path)
    engine = LocalEngine()
    try:
        start(engine, "a")
        engine.submit("a", Act("echo", 1))
        assert isinstance(collect(engine, 1)["a"], Returned)
    finally:
        engine.close()


def test_the_whole_contract(engine: Any) -> None:
    """One long test, since starting processes is what takes the time."""
    assert engine.nodes()[0].cpus >= 1
    start(engine, "a", "b")

    # Jobs run in processes of their own, which keep what is in their cache.
    engine.submit("a", Act("keep", "m1"))
    engine.submit("b", Act("keep", "m1"))
    first = collect(engine, 2)
    assert all(isinstance(report, Returned) for report in first.values())
    pids = {name: report.outcome.value for name, report in first.items() if isinstance(report, Returned)}
    assert len({os.getpid(), *pids.values()}) == 3
    engine.submit("a", Act("keep", "m1"))
    again = collect(engine, 1)["a"]
    assert isinstance(again, Returned) and again.outcome.value == pids["a"]

    # Whatever a job raises comes back as an outcome, and the worker goes on.
    for word, failure in (
        ("memory", Failure.MEMORY),
        ("disk", Failure.DISK),
        ("file", Failure.LOAD),
        ("bug", Failure.OTHER),
    ):
        engine.submit("a", Act("raise", word))
        told = collect(engine, 1)["a"]
        assert isinstance(told, Returned) and told.outcome.failure is failure, word

    # A wait without news ends in time.
    engine.submit("a", Act("sleep", 60))
    before = time.monotonic()
    assert engine.wait(0.3) == [] and time.monotonic() - before < 60

    # A stopped worker is never heard of again; another of the same node takes jobs.
    engine.stop("a")
    engine.submit("b", Act("echo", "alive"))
    told = collect(engine, 1)["b"]
    assert isinstance(told, Returned) and told.outcome.value == "alive"

    # A worker that dies is reported, whether by its own doing or killed from outside.
    engine.submit("b", Act("die"))
    assert isinstance(collect(engine, 1)["b"], Gone)
    start(engine, "c")
    engine.submit("c", Act("pid"))
    pid = collect(engine, 1)["c"].outcome.value
    engine.submit("c", Act("sleep", 60))
    time.sleep(0.3)
    os.kill(pid, signal.SIGKILL)
    assert isinstance(collect(engine, 1)["c"], Gone)

    # A job for one that is gone is no mistake: the news may be on its way.
    engine.submit("c", Act("echo", "anyone?"))
    assert isinstance(collect(engine, 1)["c"], Gone)


def test_the_report_of_a_local_worker_that_died_names_the_file_with_its_output(tmp_path: Path) -> None:
    opened = LocalEngine(log=tmp_path / "workers.log")
    try:
        start(opened, "a")
        opened.submit("a", Act("die"))
        report = collect(opened, 1)["a"]
        assert isinstance(report, Gone) and report.text.endswith(f"{tmp_path / 'workers.log'} holds what it printed")
    finally:
        opened.close()
