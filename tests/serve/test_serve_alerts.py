"""Alerts: decided once, sent to every channel, silenced, and linked to their moment. Tokens with scopes and an end."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from prism.errors import BadFileError
from prism.serve.alerts import AlertConfig, Alerter, Channel, decide_alerts, read_alerts, write_body
from prism.serve.history import HistoryConfig
from prism.serve.history.notes import Silence
from prism.serve.shapes.jobs import FindingRow
from prism.serve.tokens import Token, digest_of, read_tokens
from prism.serve.web.app import AppConfig, create_app
from prism.serve.web.guard import GuardConfig

ROW = FindingRow(
    job_key="watch~job-1", job="job-1", place="watch", kind="hang", culprit_type="host", culprit="node-3",
    origin_ns="1780000000000000000", from_ns=5_000_000_000, to_ns=15_000_000_000, lost_gpu_seconds=100.0, score=0.9,
    evidence="silent <for> 10 s",
)  # fmt: skip


NOW_S = 1_780_000_020.0  # seconds after the end of ROW


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


def test_a_finding_is_reported_once_and_its_end_once() -> None:
    config = AlertConfig(public_url="https://prism.example.com/")
    firing, told = decide_alerts({}, [ROW], [], config)
    assert [alert.status for alert in told] == ["firing"]
    grown = replace(ROW, to_ns=20_000_000_000, lost_gpu_seconds=200.0)
    firing, told = decide_alerts(firing, [grown], [], config)
    assert told == []
    firing, told = decide_alerts(firing, [], [], config)
    assert [alert.status for alert in told] == ["resolved"] and firing == {}


def test_what_lay_in_a_file_that_is_damaged_is_not_over() -> None:
    firing, _ = decide_alerts({}, [ROW], [], AlertConfig())
    still, told = decide_alerts(firing, [], [], AlertConfig(), lost={"watch"})
    assert told == [] and still == firing
    assert [alert.status for alert in decide_alerts(still, [], [], AlertConfig(), lost={"other"})[1]] == ["resolved"]


def test_a_finding_of_last_year_calls_nobody_and_one_of_this_hour_does() -> None:
    ended_ns = int(ROW.origin_ns) + ROW.to_ns
    for later_ns, number in ((400 * 86_400 * 10**9, 0), (3_600 * 10**9, 1)):
        assert len(decide_alerts({}, [ROW], [], AlertConfig(), ended_ns + later_ns)[1]) == number


def test_an_alert_waits_for_a_receiver_that_is_down_and_comes_before_its_end(
    tmp_path: Path, receiver: tuple[str, list[Any]]
) -> None:
    url, got = receiver
    down = AlertConfig(channels=(Channel(name="hook", type="webhook", url="http://127.0.0.1:9"),), timeout_s=0.5)
    Alerter(down, tmp_path, clock=lambda: NOW_S).look([ROW], [])
    up = AlertConfig(channels=(Channel(name="hook", type="webhook", url=url),))
    again = Alerter(up, tmp_path, clock=lambda: NOW_S + 30)  # after a restart as well
    again.look([], [])
    assert [body["status"] for _, body in got] == ["firing", "resolved"]
    again.look([], [])
    assert len(got) == 2


def test_an_alert_links_to_its_very_seconds() -> None:
    _, (alert,) = decide_alerts({}, [ROW], [], AlertConfig(public_url="https://prism.example.com/"))
    assert alert.link == (
        "https://prism.example.com/job?key=watch~job-1&from=1780000004000000000&to=1780000016000000000"
    )


def test_a_silence_holds_back_what_it_names_and_nothing_else() -> None:
    def told(**names: str) -> int:
        return len(decide_alerts({}, [ROW], [Silence(id="s", until_ns=1, **names)], AlertConfig())[1])

    assert told(job="job-1") == told(kind="hang") == told(culprit="node-3") == told() == 0
    assert told(job="job-2") == told(culprit="node-3", kind="slow_link") == 1
    assert len(decide_alerts({}, [ROW], [], AlertConfig(least_lost_gpu_s=101))[1]) == 0


def test_every_channel_gets_a_message_in_its_own_format(tmp_path: Path, receiver: tuple[str, list[Any]]) -> None:
    url, got = receiver
    channels = (
        Channel(name="hook", type="webhook", url=f"{url}/hook"),
        Channel(name="chat", type="slack", url=f"{url}/chat"),
        Channel(name="am", type="alertmanager", url=url),
    )
    alerter = Alerter(AlertConfig(channels=channels, public_url="https://p"), tmp_path, clock=lambda: NOW_S)
    alerter.look([ROW], [])
    bodies = dict(got)
    assert bodies["/hook"]["status"] == "firing" and bodies["/hook"]["link"].startswith("https://p/job?key=")
    assert "&lt;for&gt;" in bodies["/chat"]["text"] and "<https://p/job?key=" in bodies["/chat"]["text"]
    (raised,) = bodies["/api/v2/alerts"]
    assert raised["labels"]["culprit"] == "node-3" and raised["generatorURL"].startswith("https://p/job?")
    got.clear()
    assert (
        Alerter(AlertConfig(channels=channels[:1]), tmp_path, clock=lambda: NOW_S).look([ROW], []) == []
    )  # told before the restart
    assert got == []


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
        silence = client.post("/api/silences", json={"until_ns": 4 * 10**18, "job": "job-1"}, **ask)
        listed = client.get("/api/alerts")
        assert [row["id"] for row in listed.json()["silences"]] == [silence.json()["id"]]
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


def test_alertmanager_is_told_the_end_of_an_alert() -> None:
    _, (alert,) = decide_alerts({}, [ROW], [], AlertConfig())
    now_s = 1_780_000_100.0
    (over,) = write_body(replace(alert, status="resolved"), "alertmanager", now_s, 300.0)
    (firing,) = write_body(alert, "alertmanager", now_s, 300.0)
    assert over["endsAt"] < firing["endsAt"] and over["labels"] == firing["labels"]


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
        channel = Channel(name="am", type="alertmanager", url=url)
        config = AlertConfig(channels=(channel,), public_url="https://prism.example.com", oldest_s=math.inf)
        alerter = Alerter(config, tmp_path / "state")  # by the real clock, which Alertmanager compares with

        alerter.look([ROW], [])
        assert alerter.deliveries["am"].ok, alerter.deliveries["am"].why
        (alert,) = httpx.get(f"{url}/api/v2/alerts", timeout=600).json()
        assert alert["labels"]["prism_job"] == "job-1" and alert["status"]["state"] == "active"
        assert alert["generatorURL"] == (
            "https://prism.example.com/job?key=watch~job-1&from=1780000004000000000&to=1780000016000000000"
        )
        alerter.look([], [])
        wait_until(lambda: httpx.get(f"{url}/api/v2/alerts", timeout=60).json() == [])
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
