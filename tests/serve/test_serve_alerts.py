"""Alerts: decided once, sent to every channel, silenced, and linked to their moment. Tokens with scopes and an end."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from served_folder import make_diagnosis
from starlette.testclient import TestClient

from prism.errors import BadFileError
from prism.incidents import AlertConfig, Channel, Incident, IncidentStore, read_alerts
from prism.incidents.events import Keep
from prism.records.findings import label_alert
from prism.serve.folder import Folder
from prism.serve.history import HistoryConfig
from prism.serve.history.notes import Notes
from prism.serve.incidents import KeptIncidents
from prism.serve.library import Library, LookConfig
from prism.serve.tokens import Token, digest_of, read_tokens
from prism.serve.web.app import AppConfig, create_app
from prism.serve.web.guard import GuardConfig
from prism.serve.witnesses import Witnesses

NOW_NS = time.time_ns()
S = 10**9


def write_state(folder: Path, *, over: bool = False, cost: float = 100.0, age_s: float = 30.0) -> None:
    """What a watch saves that follows one hang of node-3."""
    end_ns = NOW_NS - int(age_s * S)
    finding = {
        "id": "finding-1", "kind": "hang", "job": "job-1", "culprit_type": "host", "culprit": "node-3",
        "start_ns": end_ns - 10 * S, "end_ns": end_ns, "cost": cost, "told_cost": cost, "sightings": 2, "look": 2,
        "unseen": 0, "resolved": over, "score": 0.9, "evidence": "silent <for> 10 s", "well": "steps again" if over else "",
    }  # fmt: skip
    job = {"endpoints": ["10.0.0.1"], "first_seen_ns": end_ns - 60 * S, "last_seen_ns": end_ns, "step_s": 1.0}
    document = {"schema": "prism.watch-state/1", "jobs": {"job-1": job}, "findings": [finding]}
    (folder / "watch").mkdir(exist_ok=True)
    (folder / "watch" / "state.json").write_text(json.dumps(document))


class Round:
    """A folder that is looked at when the test says so."""

    def __init__(self, folder: Path, state: Path | None, alerts: AlertConfig) -> None:
        self.library, self.notes = Library(Folder(folder), LookConfig(settle_s=0.0)), Notes(state)
        self.incidents = KeptIncidents(alerts, state)

    def look(self) -> list[str]:
        self.incidents.tend(self.library.refresh(), self.notes)
        self.incidents.desk.teller.sender.drain(60)
        return [one.state for one in self.incidents.list()]


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[Any]]]:
    """A server that writes down what is posted to it; /no answers 500."""
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(500 if self.path.startswith("/no") else 200)
            self.end_headers()

        def log_message(self, *words: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    server.server_close()


def hook(url: str) -> AlertConfig:
    return AlertConfig(channels=(Channel(name="hook", type="webhook", url=url),), public_url="https://p/")


def test_a_finding_is_told_once_and_its_end_once_with_what_shows_it(
    tmp_path: Path, receiver: tuple[str, list[Any]]
) -> None:
    url, got = receiver
    write_state(tmp_path)
    one = Round(tmp_path, tmp_path / "state", hook(url))
    assert one.look() == one.look() == ["open"]
    write_state(tmp_path, cost=120.0, age_s=25.0)
    assert one.look() == ["open"]
    write_state(tmp_path, over=True, age_s=25.0)
    assert one.look() == ["resolved"]
    bodies = [body for _, body in got]
    assert [body["status"] for body in bodies] == ["opened", "resolved"]
    assert bodies[0]["hosts"] == ["node-3"] and bodies[0]["action"] and bodies[0]["since"] and bodies[0]["cost"]
    assert bodies[0]["link"] == "https://p/incident?id=i-1" and bodies[1]["why_state"] == "steps again"
    one.incidents.close()


def test_a_file_that_is_damaged_resolves_nothing_and_is_told_itself(
    tmp_path: Path, receiver: tuple[str, list[Any]]
) -> None:
    url, got = receiver
    write_state(tmp_path)
    one = Round(tmp_path, tmp_path / "state", hook(url))
    one.look()
    (tmp_path / "watch" / "state.json").write_text("{")
    assert one.look() == ["lost", "open"]
    write_state(tmp_path)
    assert one.look() == ["open", "resolved"]
    assert [(body["status"], body["kind"]) for _, body in got] == [
        ("opened", "hang"), ("opened", "source_lost"), ("resolved", "source_lost")]  # fmt: skip
    one.incidents.close()


def test_a_file_that_goes_says_so_and_no_other_incident_fires_on_for_it(tmp_path: Path) -> None:
    write_state(tmp_path)
    (tmp_path / "watch" / "note.json").write_text('{"schema": "prism.goodput/1", "gpu_hours": 1.0, "goodput": 0.9}')
    one = Round(tmp_path, None, AlertConfig())
    one.look()
    (tmp_path / "watch" / "note.json").unlink()
    write_state(tmp_path, over=True)
    assert one.look()[0] == "resolved"
    one.incidents.close()


def test_lines_that_a_watch_printed_are_over_where_they_say_so(tmp_path: Path) -> None:
    line = {
        "kind": "hang", "job": "job-1", "culprit": {"type": "host", "id": "n3"}, "start_ns": NOW_NS - 40 * S,
        "end_ns": NOW_NS - 30 * S, "lost_gpu_seconds": 1.0, "score": 0.9, "evidence": "silent", "id": "f-1",
    }  # fmt: skip
    path = tmp_path / "findings.jsonl"
    path.write_text(json.dumps(line) + "\n")
    one = Round(tmp_path, None, AlertConfig())
    assert one.look() == ["open"]
    path.write_text(json.dumps(line) + "\n" + json.dumps({**line, "status": "resolved"}) + "\n")
    assert one.look() == ["resolved"]
    one.incidents.close()


def test_a_folder_of_last_year_calls_nobody(tmp_path: Path, receiver: tuple[str, list[Any]]) -> None:
    url, got = receiver
    write_state(tmp_path, age_s=400 * 86_400)
    one = Round(tmp_path, tmp_path / "state", hook(url))
    assert one.look() == ["expired"] and got == []
    one.incidents.close()


def test_a_message_waits_for_a_receiver_that_is_down_and_comes_before_its_end(
    tmp_path: Path, receiver: tuple[str, list[Any]]
) -> None:
    url, got = receiver
    write_state(tmp_path)
    down = Round(tmp_path, tmp_path / "state", hook("http://127.0.0.1:9"))
    down.incidents.tend(down.library.refresh(), down.notes)
    down.incidents.close()
    write_state(tmp_path, over=True)
    again = Round(tmp_path, tmp_path / "state", hook(url))  # after a restart as well
    again.look()
    assert [body["status"] for _, body in got] == ["opened", "resolved"]
    again.look()
    again.incidents.close()
    third = Round(tmp_path, tmp_path / "state", hook(url))
    third.look()
    assert len(got) == 2, "told before the restart"
    third.incidents.close()


def test_what_was_decided_before_a_crash_is_told_after_it(tmp_path: Path, receiver: tuple[str, list[Any]]) -> None:
    url, got = receiver
    write_state(tmp_path)
    one = Round(tmp_path, tmp_path / "state", AlertConfig())
    actions = one.incidents.desk.book.handle(next(iter(Witnesses().compare(one.library.refresh(), NOW_NS))))
    one.incidents.desk.store.save(action.incident for action in actions if isinstance(action, Keep))
    one.incidents.close()  # as after kill -9 between the decision and the message
    again = Round(tmp_path, tmp_path / "state", hook(url))
    again.look()
    assert [body["status"] for _, body in got] == ["opened"]
    again.incidents.close()


def test_incidents_go_on_in_memory_on_a_full_disk_and_say_so(tmp_path: Path) -> None:
    write_state(tmp_path)
    one = Round(tmp_path, tmp_path / "state", AlertConfig())
    disk = one.incidents.desk.store._disk
    disk.execute(f"PRAGMA max_page_count = {disk.execute('PRAGMA page_count').fetchone()[0]}")
    with patch.object(Incident, "to_json", lambda self: {"long": "x" * 100_000}):
        assert one.look() == ["open"] and "memory" in one.incidents.trouble
    disk.execute("PRAGMA max_page_count = 1000000")
    one.look()
    assert one.incidents.trouble == ""
    one.incidents.close()


def test_every_channel_gets_a_message_in_its_own_format(tmp_path: Path, receiver: tuple[str, list[Any]]) -> None:
    url, got = receiver
    channels = (
        Channel(name="hook", type="webhook", url=f"{url}/hook"),
        Channel(name="chat", type="slack", url=f"{url}/chat"),
        Channel(name="am", type="alertmanager", url=url),
        Channel(name="pager", type="pagerduty", url=f"{url}/pager", key="K"),
        Channel(name="other", type="webhook", url=f"{url}/other", owner="training"),
    )
    write_state(tmp_path)
    one = Round(tmp_path, tmp_path / "state", AlertConfig(channels=channels, public_url="https://p", price=2.0))
    one.look()
    bodies = dict(got)
    assert bodies["/hook"]["status"] == "opened" and "$" in bodies["/hook"]["cost"]
    text = bodies["/chat"]["text"]
    assert "&lt;for&gt;" in text and "<https://p/incident?id=i-1|" in text and "*Do:*" in text and "node-3" in text
    (raised,) = bodies["/api/v2/alerts"]
    assert raised["labels"]["culprit"] == "node-3" and raised["generatorURL"].startswith("https://p/incident?")
    assert raised["labels"] == {**label_alert("hang", "job-1", "host", "node-3"), "severity": "page",
                                "owner": "infrastructure"}  # fmt: skip
    pager = bodies["/pager"]
    assert (pager["event_action"], pager["routing_key"], pager["payload"]["severity"]) == ("trigger", "K", "critical")
    assert {"summary", "source", "severity", "timestamp"} <= pager["payload"].keys() and "/other" not in bodies
    got.clear()
    write_state(tmp_path, over=True)
    one.look()
    ends = dict(got)
    assert ends["/pager"]["event_action"] == "resolve" and ends["/pager"]["dedup_key"] == pager["dedup_key"]
    assert ends["/api/v2/alerts"][0]["endsAt"] < raised["endsAt"]
    one.incidents.close()


def test_a_test_button_shows_whether_the_message_arrived_and_no_page_holds_the_address(
    tmp_path: Path, receiver: tuple[str, list[Any]]
) -> None:
    url, got = receiver
    channels = (
        Channel(name="good", type="webhook", url=f"{url}/hook-SECRET"),
        Channel(name="bad", type="slack", url=f"{url}/no-SECRET", headers={"Authorization": "Bearer SECRET"}),
    )
    config = AppConfig(
        folder=tmp_path,
        alerts=AlertConfig(channels=channels),
        guard=GuardConfig(writable=True),
        history=HistoryConfig(state=tmp_path / "state"),
    )
    with TestClient(create_app(config), base_url="http://127.0.0.1") as client:
        ask = {"headers": {"X-Prism-Write": "1"}}
        good = client.post("/api/alerts/test", json={"channel": "good"}, **ask)
        bad = client.post("/api/alerts/test", json={"channel": "bad"}, **ask)
        assert good.json()["last_ok"] is True and got[0][1]["status"] == "test"
        assert bad.json()["last_ok"] is False and bad.json()["last_why"] == "answered 500"
        assert client.post("/api/alerts/test", json={"channel": "no"}, **ask).status_code == 404
        listed = client.get("/api/alerts")
        for answer in (good, bad, listed, client.get("/api/overview"), client.get("/metrics")):
            assert "SECRET" not in answer.text
    assert "SECRET" not in repr(channels)


def test_a_wrong_file_of_channels_is_named(tmp_path: Path) -> None:
    path = tmp_path / "alerts.yaml"
    for text, said in (
        ("channels: 1", "expected a list"),
        ("channels: [{type: pager, url: 'http://a'}]", "type is 'pager'"),
        ("channels: [{type: slack, url: 'file:///etc/passwd'}]", "url does not begin"),
        ("channels: [{type: slack, url: 'http://a'}, {type: slack, url: 'http://b'}]", "one name"),
    ):
        path.write_text(text)
        with pytest.raises(BadFileError, match=said):
            read_alerts(path)
    path.write_text("public_url: https://p\nchannels: [{name: a, type: alertmanager, url: 'http://am:9093'}]")
    assert read_alerts(path).channels[0].type == "alertmanager"


def test_tokens_have_scopes_and_an_end(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    rows = [("reader", "read", None), ("scraper", "metrics", None), ("old", "read", "2020-01-01")]
    path.write_text(json.dumps([
        {"name": name, "sha256": digest_of(f"token-of-{name}"), "scopes": [scope], "expires": end}
        for name, scope, end in rows
    ]))  # fmt: skip
    guard = GuardConfig(hosts=None, writable=True, tokens=read_tokens(path))
    (tmp_path / "served").mkdir()
    config = AppConfig(folder=tmp_path / "served", guard=guard, history=HistoryConfig(state=tmp_path / "state"))
    with TestClient(create_app(config), base_url="http://127.0.0.1") as client:

        def ask(name: str, path: str, method: str = "GET") -> int:
            headers = {"Authorization": f"Bearer token-of-{name}", "X-Prism-Write": "1"}
            body = {"json": {"text": "a", "at_ns": 1}} if method == "POST" else {}
            return client.request(method, path, headers=headers, **body).status_code

        assert ask("reader", "/api/version") == ask("reader", "/metrics") == ask("scraper", "/metrics") == 200
        assert ask("scraper", "/api/version") == ask("reader", "/api/annotations", "POST") == 403
        assert ask("old", "/api/version") == ask("nobody", "/api/version") == 401


def test_a_proxy_names_the_user_only_from_its_own_address(tmp_path: Path) -> None:
    def ask(network: str) -> int:
        guard = GuardConfig(
            hosts=None,
            tokens=(Token(name="a", digest=digest_of("a")),),
            trusted_proxies=(ip_network(network),),
            user_header="X-Forwarded-User",
        )
        app = create_app(AppConfig(folder=tmp_path, guard=guard))
        with TestClient(app, base_url="http://127.0.0.1", client=("10.0.0.5", 1)) as client:
            assert client.get("/api/version").status_code == 401
            return client.get("/api/version", headers={"X-Forwarded-User": "ann"}).status_code

    assert ask("10.0.0.0/24") == 200 and ask("10.0.1.0/24") == 401


def test_a_wrong_file_of_tokens_is_named(tmp_path: Path) -> None:
    path, good = tmp_path / "tokens.yaml", digest_of("x")
    for text, said in (
        ("a: 1", "expected a list"),
        ("[{name: a, sha256: abc}]", "64 hexadecimal"),
        (f"[{{name: a, sha256: {good}, scopes: [root]}}]", "unknown scope root"),
        (f"[{{name: a, sha256: {good}, expires: soon}}]", "expected a date"),
    ):
        path.write_text(text)
        with pytest.raises(BadFileError, match=said):
            read_tokens(path)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus-alertmanager") is None, reason="needs Debian's prometheus-alertmanager")
def test_a_real_alertmanager_takes_an_alert_lists_its_link_and_sees_its_end(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    (tmp_path / "am.yml").write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    command = [
        "prometheus-alertmanager",
        f"--config.file={tmp_path / 'am.yml'}",
        f"--storage.path={tmp_path}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    url = f"http://127.0.0.1:{port}"
    manager = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: httpx.get(f"{url}/-/ready", timeout=60).status_code == 200)
        config = AlertConfig(
            channels=(Channel(name="am", type="alertmanager", url=url),), public_url="https://prism.example.com"
        )
        write_state(tmp_path)
        one = Round(tmp_path, tmp_path / "state", config)
        one.look()
        assert one.incidents.deliveries()["am"].ok, one.incidents.deliveries()["am"].why
        (alert,) = httpx.get(f"{url}/api/v2/alerts", timeout=600).json()
        assert alert["labels"]["prism_job"] == "job-1" and alert["status"]["state"] == "active"
        assert alert["generatorURL"] == "https://prism.example.com/incident?id=i-1"
        write_state(tmp_path, over=True)
        one.look()
        wait_until(lambda: httpx.get(f"{url}/api/v2/alerts", timeout=60).json() == [])
        one.incidents.close()
    finally:
        manager.terminate()
        manager.wait(600)


def wait_until(condition: Callable[[], bool], seconds: float = 600.0) -> None:
    """Ask until it holds; a service that does not answer yet does not hold."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            if condition():
                return
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds:g} s")


def test_a_source_with_tables_is_compared_too_and_a_round_that_fails_is_made_up_for(tmp_path: Path) -> None:
    write_state(tmp_path)
    (tmp_path / "watch" / "topology.csv").write_text("address,host,rail,switch\n10.0.0.1,node-3,0,s1\n")
    make_diagnosis(tmp_path / "report", "slow-gpu-64")
    one = Round(tmp_path, None, AlertConfig())
    with patch.object(IncidentStore, "save", side_effect=ZeroDivisionError), pytest.raises(ZeroDivisionError):
        one.look()
    one.look()
    write_state(tmp_path, cost=200.0, age_s=20.0)
    states = one.look()
    assert "open" in states, "both are seen, over several looks"
    one.incidents.close()
