"""The history: rows of the past, updated file by file, and rebuilt from the files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from served_folder import EPOCH_S, make_run
from starlette.testclient import TestClient

from prism.recover.progress import STEPS_FILE, attempt_dir
from prism.recover.supervise.goodput import read_goodput, total_hours
from prism.serve.folder import Folder
from prism.serve.history import Asked, HistoryConfig, HistoryIndex
from prism.serve.history.database import forget_index
from prism.serve.history.notes import Notes
from prism.serve.history.queries import find_days, find_entries
from prism.serve.library import Library, LookConfig
from prism.serve.web.app import AppConfig, create_app
from prism.serve.web.guard import GuardConfig

DAY_NS = 86_400 * 10**9
START_NS = EPOCH_S * 10**9
WRITE = {"X-Prism-Write": "1"}


def write_diagnosis(place: Path, *, at_ns: int = START_NS, step_s: float = 1.0, hosts: int = 2, slow: str = "") -> None:
    """A diagnosis of one job of eight endpoints and ten steps."""
    length = int(step_s * 1e9)
    job = {
        "id": "job-1", "endpoints": [f"10.0.0.{i}" for i in range(8)], "hosts": [f"node-{i}" for i in range(hosts)],
        "layout": {"dp": 8, "pp": 1, "tp": 1, "cp": 1, "ep": 1}, "pairs": [], "groups": [], "stages": {},
        "state": "running", "started_ns": at_ns,
        "steps": [{"index": i, "start_ns": at_ns + i * length, "end_ns": at_ns + (i + 1) * length} for i in range(10)],
    }  # fmt: skip
    finding = {
        "kind": "slow_compute", "job": "job-1", "culprit": {"type": "host", "id": slow}, "score": 0.9,
        "start_ns": at_ns + length, "end_ns": at_ns + 2 * length, "lost_gpu_seconds": 80.0, "evidence": "late by half",
    }  # fmt: skip
    place.mkdir(parents=True, exist_ok=True)
    document = {"schema": "prism.diagnosis/1", "jobs": [job], "findings": [finding] if slow else [], "notes": []}
    (place / "diagnosis.json").write_text(json.dumps(document))


def bring_up(index: HistoryIndex, folder: Path, **config: Any) -> int:
    """Look at a folder and index it; how many sources were read."""
    library = Library(Folder(folder), LookConfig(**config))
    library.refresh()
    return index.update(library.readings, library.load)


def list_all(index: HistoryIndex, **asked: Any) -> list[tuple[str, str, int]]:
    return [(row.kind, row.key, row.until_ns) for row in find_entries(index, Asked(limit=1_000, **asked)).rows]


OpenIndex = Callable[..., HistoryIndex]


@pytest.fixture
def open_index() -> Iterator[OpenIndex]:
    """Opens indexes, which are closed when the test ends."""
    with ExitStack() as opened:
        yield lambda *arguments, **named: opened.enter_context(closing(HistoryIndex(*arguments, **named)))


def test_looks_at_one_job_on_several_days_have_one_lasting_name(tmp_path: Path, open_index: OpenIndex) -> None:
    for day, step_s in enumerate((1.0, 1.1, 2.0)):
        write_diagnosis(tmp_path / f"day-{day}", at_ns=START_NS + day * DAY_NS, step_s=step_s, slow="node-1")
    index = open_index(HistoryConfig())
    assert bring_up(index, tmp_path) == 3
    looks = find_entries(index, Asked(kind="look")).rows
    assert len(looks) == 3 and len({row.job for row in looks}) == 1
    assert [row.step_s for row in looks] == pytest.approx([2.0, 1.1, 1.0])  # newest first
    days = find_days(index, Asked(job=looks[0].job))
    assert [day.num_findings for day in days] == [1, 1, 1] and days[-1].step_s == pytest.approx(2.0)
    assert days[-1].gpu_s == pytest.approx(8 * 20.0) and days[-1].lost_gpu_s == 80.0


def test_only_files_that_changed_are_read_again(tmp_path: Path, open_index: OpenIndex) -> None:
    write_diagnosis(tmp_path / "a")
    write_diagnosis(tmp_path / "b")
    index = open_index(HistoryConfig())
    assert bring_up(index, tmp_path) == 2
    assert bring_up(index, tmp_path) == 0
    before = (tmp_path / "a" / "diagnosis.json").stat()
    aside = tmp_path / "a" / "aside"
    aside.write_bytes((tmp_path / "a" / "diagnosis.json").read_bytes())
    os.utime(aside, ns=(before.st_atime_ns, before.st_mtime_ns))
    aside.replace(tmp_path / "a" / "diagnosis.json")  # the same size and time, another file
    assert bring_up(index, tmp_path) == 1


def test_an_index_rebuilt_from_the_files_has_the_same_content_and_survives_a_restart(
    tmp_path: Path, open_index: OpenIndex
) -> None:
    served, state = tmp_path / "served", tmp_path / "state"
    make_run(served / "run")
    write_diagnosis(served / "a", slow="node-1")
    first = open_index(HistoryConfig(state=state))
    bring_up(first, served)
    rows = list_all(first)
    first.close()
    again = open_index(HistoryConfig(state=state))
    assert list_all(again) == rows and bring_up(again, served) == 0
    again.close()
    forget_index(state)
    anew = open_index(HistoryConfig(state=state))
    assert list_all(anew) == [] and bring_up(anew, served) == 2
    assert sorted(list_all(anew)) == sorted(rows)


def test_a_damaged_index_is_rebuilt(tmp_path: Path, open_index: OpenIndex) -> None:
    write_diagnosis(tmp_path / "served" / "a")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "history.sqlite").write_bytes(b"not a database at all" * 100)
    index = open_index(HistoryConfig(state=tmp_path / "state"))
    assert bring_up(index, tmp_path / "served") == 1 and len(list_all(index)) == 1


def test_history_outlives_its_files_until_it_is_too_old(tmp_path: Path, open_index: OpenIndex) -> None:
    write_diagnosis(tmp_path / "a")
    now_ns = [START_NS + 20 * DAY_NS]
    index = open_index(HistoryConfig(keep_days=30), clock=lambda: now_ns[0])
    bring_up(index, tmp_path)
    (tmp_path / "a" / "diagnosis.json").unlink()
    bring_up(index, tmp_path)
    (row,) = find_entries(index, Asked()).rows
    assert row.gone
    now_ns[0] += 20 * DAY_NS
    bring_up(index, tmp_path)
    assert list_all(index) == []


def test_a_run_of_days_has_a_row_for_each_day_with_its_restarts(tmp_path: Path, open_index: OpenIndex) -> None:
    make_run(tmp_path / "run")
    steps = attempt_dir(tmp_path / "run", 3) / STEPS_FILE
    lines = [{"kind": "step", "time": EPOCH_S + 86_400 + i, "step": 161 + i, "loss": 2.0} for i in range(20)]
    steps.write_text(steps.read_text() + "".join(json.dumps(line) + "\n" for line in lines))
    index = open_index(HistoryConfig())
    bring_up(index, tmp_path)
    days = find_entries(index, Asked(kind="run_day", job="run")).rows
    assert [row.num_steps for row in days] == [20, 60 + 70 + 80]
    assert [row.restarts for row in days] == [0, 2] and days[0].step_s == pytest.approx(1.0)
    (whole,) = find_entries(index, Asked(kind="run")).rows
    assert whole.restarts == 2 and whole.num_steps == 160
    assert find_entries(index, Asked(host="node-2", kind="run")).total == 1


def test_a_runs_goodput_is_what_the_command_says(tmp_path: Path, open_index: OpenIndex) -> None:
    make_run(tmp_path / "run")
    index = open_index(HistoryConfig())
    bring_up(index, tmp_path)
    (row,) = find_entries(index, Asked(kind="run")).rows
    hours = total_hours(read_goodput([tmp_path / "run"]), "kind")
    (share,) = hours.filter(pl.col("kind") == "training")["share"]
    assert 0 < share < 1 and row.goodput == pytest.approx(share)


def test_a_watch_that_overwrites_its_state_keeps_its_past(tmp_path: Path, open_index: OpenIndex) -> None:
    index = open_index(HistoryConfig(sample_s=600))
    for number, step_s in enumerate((1.0, 1.5, 2.0)):
        job = {"endpoints": ["a", "b"], "first_seen_ns": START_NS, "last_seen_ns": START_NS + number * 900 * 10**9,
               "step_s": step_s}  # fmt: skip
        document = {"schema": "prism.watch-state/1", "jobs": {"job-1": job}, "findings": []}
        (tmp_path / "state.json").write_text(json.dumps(document))
        bring_up(index, tmp_path)
    rows = find_entries(index, Asked(kind="look")).rows
    assert [row.step_s for row in rows] == [2.0, 1.5, 1.0] and len({row.job for row in rows}) == 1


def test_old_sources_are_indexed_but_not_held_in_memory_and_still_open(tmp_path: Path) -> None:
    for number in range(5):
        make_run(tmp_path / f"run-{number}")
        os.utime(tmp_path / f"run-{number}" / "state.json", (EPOCH_S + number, EPOCH_S + number))
        for path in (tmp_path / f"run-{number}").rglob("*"):
            os.utime(path, (EPOCH_S + number, EPOCH_S + number))
    library = Library(Folder(tmp_path), LookConfig(most_live=2))
    snapshot = library.refresh()
    assert {source.place for source in snapshot.sources} == {"run-3", "run-4"}  # type: ignore[union-attr]
    assert snapshot.num_archived == 3
    config = AppConfig(folder=tmp_path, looks=LookConfig(most_live=2))
    with TestClient(create_app(config), base_url="http://127.0.0.1") as client:
        assert client.get("/api/overview").json()["num_archived"] == 3
        assert client.get("/api/history", params={"kind": "run"}).json()["total"] == 5
        assert client.get("/api/run", params={"key": "run-0~run"}).json()["run"]["attempt"] == 3
        verdict = client.get("/api/history", params={"kind": "verdict", "job": "run-1"}).json()["entries"][0]
        assert client.get("/api/verdict", params={"id": verdict["key"]}).json()["verdict"]["reason"] == "NVLinkError"


@pytest.fixture
def keeper(tmp_path: Path) -> Any:
    """A service that may write notes, over two days of one job."""
    write_diagnosis(tmp_path / "served" / "monday", slow="node-1")
    write_diagnosis(tmp_path / "served" / "tuesday", at_ns=START_NS + DAY_NS, step_s=2.0, hosts=1)
    config = AppConfig(
        folder=tmp_path / "served",
        history=HistoryConfig(state=tmp_path / "state"),
        guard=GuardConfig(writable=True, most_writes=20),
    )
    with TestClient(create_app(config), base_url="http://127.0.0.1") as client:
        yield client


def test_two_looks_or_two_days_are_compared_figure_by_figure(keeper: TestClient) -> None:
    looks = keeper.get("/api/history", params={"kind": "look"}).json()["entries"]
    answer = keeper.get("/api/difference", params={"first": looks[1]["ref"], "second": looks[0]["ref"]}).json()
    step = next(row for row in answer["rows"] if row["name"] == "step_s")
    assert (step["first"], step["second"], step["ratio"]) == pytest.approx((1.0, 2.0, 2.0)) and step["unit"] == "s"
    days = [day["day"] for day in keeper.get("/api/history").json()["days"]]
    answer = keeper.get("/api/difference", params={"first": f"day:{days[0]}", "second": f"day:{days[1]}"}).json()
    found = next(row for row in answer["rows"] if row["name"] == "num_findings")
    assert (found["first"], found["second"]) == (1, 0)
    for wrong in ("day:2026-99-99", "day:1999-01-01", "look:nothing:1", "x"):
        assert keeper.get("/api/difference", params={"first": wrong, "second": wrong}).status_code == 404


def test_a_search_finds_jobs_hosts_and_findings_by_any_word(keeper: TestClient) -> None:
    answer = keeper.get("/api/search", params={"q": "node-1"}).json()
    assert answer["hosts"] == [{"host": "node-1", "num_entries": 2}]
    assert len(answer["findings"]) == 1 and answer["findings"][0]["page"].startswith("/job?key=monday~job-1&from=")
    assert keeper.get("/api/search", params={"q": "LATE half"}).json()["findings"]
    for nothing in ("%", "_", "zebra", "' OR 1=1 --"):
        assert keeper.get("/api/search", params={"q": nothing}).json()["findings"] == [], nothing


def test_a_host_page_shows_everything_known_about_the_host(keeper: TestClient) -> None:
    answer = keeper.get("/api/host", params={"name": "node-1"}).json()
    assert {entry["kind"] for entry in answer["entries"]} == {"look", "finding"} and answer["total"] == 2
    assert keeper.get("/api/host", params={"name": "nobody"}).status_code == 404


def test_annotations_survive_a_rebuild_and_a_restart(keeper: TestClient, tmp_path: Path) -> None:
    body = {"text": "switch replaced", "at_ns": START_NS, "job": "job-x"}
    done = keeper.post("/api/annotations", json=body, headers=WRITE)
    assert done.status_code == 200, done.text
    (tmp_path / "state" / "history.sqlite").unlink()
    again = Notes(tmp_path / "state")
    assert [note.text for note in again.annotations(job="job-x")] == ["switch replaced"]
    assert again.annotations(job="another") == []
    assert (
        keeper.request("DELETE", "/api/annotations", params={"id": done.json()["id"]}, headers=WRITE).status_code == 200
    )
    assert keeper.get("/api/annotations").json()["annotations"] == [] and Notes(tmp_path / "state").annotations() == []
    with (tmp_path / "state" / "notes.jsonl").open("a") as handle:
        handle.write('{"note": "annotation", "id": "half')
    assert Notes(tmp_path / "state").annotations() == []


def test_only_our_own_pages_write_and_not_without_end(keeper: TestClient, tmp_path: Path) -> None:
    body = {"text": "a", "at_ns": 1}
    assert keeper.post("/api/annotations", json=body).status_code == 403
    other = {**WRITE, "Origin": "http://evil.example"}
    assert keeper.post("/api/annotations", json=body, headers=other).status_code == 403
    own = {**WRITE, "Origin": "http://127.0.0.1"}
    assert keeper.post("/api/annotations", json=body, headers=own).status_code == 200
    assert keeper.post("/api/annotations", content=b"{" * 9_000, headers=WRITE).status_code == 413
    for bad in (
        b"{",
        b"[]",
        b"{" * 5_000,
        json.dumps({**body, "text": ""}).encode(),
        json.dumps({**body, "x": 1}).encode(),
    ):
        answer = keeper.post("/api/annotations", content=bad, headers=WRITE)
        assert answer.status_code == 422 and answer.json()["error"]["message"], bad
    assert keeper.post("/api/version", json=body, headers=WRITE).status_code == 405
    with TestClient(create_app(AppConfig(folder=tmp_path / "served")), base_url="http://127.0.0.1") as reader:
        assert reader.post("/api/annotations", json=body, headers=WRITE).status_code == 405  # no state folder there
    codes = {keeper.post("/api/annotations", json=body, headers=WRITE).status_code for _ in range(30)}
    assert codes == {200, 429}
