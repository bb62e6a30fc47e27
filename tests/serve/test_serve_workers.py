"""Several processes answer as one: all know the same, one is started again where it ended, and all end together."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from service import RunningService, run_service
from test_serve_truth import job_document, write_diagnosis

NUM_WORKERS = 2


def children(pid: int) -> list[int]:
    """Worker processes of a service; the helper that Python starts beside them is none."""
    found = [one for task in Path(f"/proc/{pid}/task").iterdir() for one in (task / "children").read_text().split()]
    return [int(one) for one in found if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]


def ask_each(address: str, path: str, times: int = 12) -> list[httpx.Response]:
    """Ask on connections of their own, which the kernel spreads over the workers."""
    return [httpx.get(f"{address}{path}", timeout=600, headers={"Connection": "close"}) for _ in range(times)]


def write_jobs(folder: Path, *numbers: int) -> None:
    """A diagnosis of jobs, whole at once: it is written aside and renamed."""
    aside = folder.parents[1] / folder.name
    write_diagnosis(aside, [job_document(number) for number in numbers], [])
    aside.rename(folder)


def wait_until(is_so: Callable[[], bool], seconds: float = 600.0) -> None:
    """Wait for something that takes as long as the machine is busy."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, RunningService]]:
    top = tmp_path_factory.mktemp("workers")
    (top / "served").mkdir()
    write_jobs(top / "served" / "one", 1)
    options = ("--workers", str(NUM_WORKERS), "--state", str(top / "state"))
    with run_service(top / "served", *options) as service:
        yield top, service
        workers = children(service.pid)
    assert workers
    wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))


def know(service: RunningService, jobs: int) -> bool:
    """Whether every worker knows of as many jobs."""
    try:
        return {len(answer.json()["jobs"]) for answer in ask_each(service.address, "/api/jobs")} == {jobs}
    except httpx.TransportError:  # one was in the queue of a worker that ended
        return False


@pytest.fixture
def served_more(served: tuple[Path, RunningService]) -> Iterator[tuple[Path, RunningService]]:
    """A second folder for one test; it is gone afterwards, so that tests may run in any order."""
    top, service = served
    write_jobs(top / "served" / "more", 2, 3)
    wait_until(lambda: know(service, 3))
    yield top, service
    shutil.rmtree(top / "served" / "more", ignore_errors=True)
    wait_until(lambda: know(service, 1))


def test_a_change_is_published_when_every_worker_knows_of_it(served: tuple[Path, RunningService]) -> None:
    top, service = served
    wait_until(lambda: know(service, 1))
    with httpx.stream("GET", f"{service.address}/api/events", timeout=600) as stream:
        lines = (line for line in stream.iter_lines() if line.startswith("data: "))
        before = int(next(lines).removeprefix("data: "))
        write_jobs(top / "served" / "more", 2, 3)
        told = next(int(line.removeprefix("data: ")) for line in lines)
    assert told > before
    answers = ask_each(service.address, "/api/jobs")
    assert {len(answer.json()["jobs"]) for answer in answers} == {3}, "no worker answers from before"
    shutil.rmtree(top / "served" / "more")
    wait_until(lambda: know(service, 1))


def test_what_one_worker_writes_all_know(served_more: tuple[Path, RunningService]) -> None:
    _, service = served_more
    written = httpx.post(
        f"{service.address}/api/annotations",
        json={"text": "a new cable", "at_ns": 1},
        headers={"X-Prism-Write": "1"},
        timeout=600,
    )
    assert written.status_code == 200
    for answer in ask_each(service.address, "/api/annotations"):
        assert [row["text"] for row in answer.json()["annotations"]] == ["a new cable"]
    wait_until(
        lambda: all(answer.json()["total"] == 3 for answer in ask_each(service.address, "/api/history?kind=look"))
    )


def test_the_index_has_one_writer(served_more: tuple[Path, RunningService]) -> None:
    top, service = served_more

    def holds_index(worker: int) -> bool:
        held = [str(path.readlink()) for path in Path(f"/proc/{worker}/fd").iterdir() if path.is_symlink()]
        return any("history.sqlite" in path for path in held)

    def each_reads() -> bool:
        """A worker opens the index at the first request for its content."""
        ask_each(service.address, "/api/history")
        workers = children(service.pid)
        return len(workers) == NUM_WORKERS and all(map(holds_index, workers))

    wait_until(each_reads)
    with contextlib.closing(sqlite3.connect(top / "state" / "history.sqlite")) as database:
        assert database.execute("SELECT count(*) FROM source").fetchone() == (2,)


def test_a_worker_that_was_killed_is_started_again(served_more: tuple[Path, RunningService]) -> None:
    top, service = served_more
    lost, *others = children(service.pid)
    os.kill(lost, signal.SIGKILL)
    wait_until(lambda: len(children(service.pid)) == NUM_WORKERS and lost not in children(service.pid))
    shutil.rmtree(top / "served" / "more")
    wait_until(lambda: know(service, 1))
    assert set(others) <= set(children(service.pid))


def test_workers_end_when_their_keeper_was_killed_and_write_nothing_without_a_state(tmp_path: Path) -> None:
    with run_service(tmp_path, "--workers", "2") as service:
        workers = children(service.pid)
        assert httpx.get(f"{service.address}/api/alerts", timeout=600).json()["writable"] is False
        assert (
            httpx.post(f"{service.address}/api/annotations", headers={"X-Prism-Write": "1"}, timeout=600).status_code
            == 405
        )
        os.kill(service.pid, signal.SIGKILL)
        wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    assert workers
