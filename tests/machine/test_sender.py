"""The sender: nothing that was queued is lost, whoever is down, in the order it was queued."""

from __future__ import annotations

import http.server
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prism.errors import BadConfigError
from prism.machine.requests import Receiver, check_url, post_once
from prism.machine.sender import Sender, SenderConfig, read_deliveries

QUICK = SenderConfig(first_pause_s=0.01, longest_pause_s=0.05, timeout_s=2.0)


class Hook(http.server.ThreadingHTTPServer):
    """Keeps what it takes; answers each POST with the next of `answers`, then with 200."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.seen = 0
        self.answers: list[int] = []
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        hook = self.server
        assert isinstance(hook, Hook)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        hook.seen += 1
        code = hook.answers.pop(0) if hook.answers else 200
        if code < 300:
            hook.taken.append(body)
        self.send_response(code)
        if code == 302:
            self.send_header("Location", hook.url)
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[Hook]:
    server = Hook()
    yield server
    server.shutdown()
    server.server_close()


def until(check: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not check():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def test_messages_come_in_order_though_the_receiver_fails_in_between(hook: Hook, tmp_path: Path) -> None:
    hook.answers = [200, 503, 500, 200, 429]
    sender = Sender((Receiver(name="a", url=hook.url),), tmp_path / "q.sqlite", QUICK)
    for number in range(5):
        sender.send("a", number)
    assert sender.drain(60)
    assert hook.taken == [0, 1, 2, 3, 4]
    assert (sender.outcomes["sent"], sender.outcomes["failed"]) == (5, 3)
    assert sender.delivery("a").ok and sender.delivery("a").num_sent == 5
    assert read_deliveries(tmp_path / "q.sqlite")["a"].num_sent == 5, "another process sees it, too"
    sender.close()


def test_what_a_killed_process_had_queued_is_sent_by_the_next(hook: Hook, tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from prism.machine.sender import *\n"
        "s = Sender((Receiver(name='a', url='http://127.0.0.1:9/'),), Path(sys.argv[1]))\n"
        "for n in range(20): s.send('a', n)\n"
        "print('queued', flush=True); time.sleep(600)"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "q.sqlite")], stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"queued\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    sender = Sender((Receiver(name="a", url=hook.url),), tmp_path / "q.sqlite", QUICK)
    assert sender.drain(60) and hook.taken == list(range(20))
    sender.close()


def test_a_receiver_that_is_down_does_not_hold_up_another(hook: Hook) -> None:
    sender = Sender((Receiver(name="dead", url="http://127.0.0.1:9/"), Receiver(name="a", url=hook.url)), None, QUICK)
    for number in range(3):
        sender.send("dead", number)
        sender.send("a", number)
    until(lambda: hook.taken == [0, 1, 2])
    assert sender.delivery("dead").num_waiting == 3 and sender.delivery("dead").ok in (None, False)
    sender.close(0.0)
    assert sender.outcomes["dropped"] == 3, "without a file what waits at the end is lost, and counted"


def test_a_body_that_is_refused_for_good_does_not_hold_up_the_next(hook: Hook) -> None:
    hook.answers = [400]
    sender = Sender((Receiver(name="a", url=hook.url),), None, QUICK)
    sender.send("a", "bad")
    sender.send("a", "good")
    assert sender.drain(60) and hook.taken == ["good"] and sender.delivery("a").num_lost == 1
    sender.close()


def test_an_old_message_is_given_up_and_counted(hook: Hook, tmp_path: Path) -> None:
    now = [1_000.0]
    receiver = Receiver(name="a", url="http://127.0.0.1:9/")
    sender = Sender((receiver,), tmp_path / "q.sqlite", QUICK, clock=lambda: now[0])
    sender.send("a", "old")
    sender.close(0.0)
    now[0] += QUICK.oldest_s + 1
    again = Sender((Receiver(name="a", url=hook.url),), tmp_path / "q.sqlite", QUICK, clock=lambda: now[0])
    again.send("a", "new")
    assert again.drain(60) and hook.taken == ["new"] and again.delivery("a").num_lost == 1
    again.close()


def test_a_newer_state_takes_the_place_of_one_that_waits(hook: Hook) -> None:
    hook.answers = [503] * 40  # it is down until all are queued
    sender = Sender((Receiver(name="a", url=hook.url),), None, QUICK)
    for number in range(10):
        sender.send("a", number, key="state")
    hook.answers.clear()
    assert sender.drain(60)
    assert hook.taken[-1] == 9 and len(hook.taken) <= 2, "the one in flight, and the newest"
    sender.close()


def test_a_full_disk_loses_nothing_that_is_in_memory(hook: Hook, tmp_path: Path) -> None:
    path = tmp_path / "q.sqlite"
    hook.answers = [503] * 2
    sender = Sender((Receiver(name="a", url=hook.url),), path, QUICK)
    assert sender._disk is not None
    pages = sender._disk.execute("PRAGMA page_count").fetchone()[0]
    sender._disk.execute(f"PRAGMA max_page_count = {pages}")  # SQLite then says that the disk is full
    for number in range(50):
        sender.send("a", str(number) * 2_000)
    assert "memory" in sender.trouble and "full" in sender.trouble
    assert sender.drain(60) and len(hook.taken) == 50
    sender.close()


def test_a_damaged_queue_is_kept_aside(hook: Hook, tmp_path: Path) -> None:
    path = tmp_path / "q.sqlite"
    path.write_bytes(b"this is no database" * 100)
    sender = Sender((Receiver(name="a", url=hook.url),), path, QUICK)
    sender.send("a", 1)
    assert sender.drain(60) and hook.taken == [1] and path.with_suffix(".damaged").exists()
    sender.close()
    disk = sqlite3.connect(path)
    assert disk.execute("SELECT count(*) FROM message").fetchone() == (0,)
    disk.close()


def test_two_processes_never_send_from_one_queue(hook: Hook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prism.machine.sender._LOCK_WAIT_S", 0.0)
    first = Sender((Receiver(name="a", url="http://127.0.0.1:9/"),), tmp_path / "q.sqlite", QUICK)
    first.send("a", 1)
    second = Sender((Receiver(name="a", url=hook.url),), tmp_path / "q.sqlite", QUICK)
    assert "another process" in second.trouble and second.num_waiting == 0
    second.close()
    first.close(0.0)
    assert hook.seen == 0


def test_a_redirect_is_no_delivery_and_takes_no_secret_along(hook: Hook) -> None:
    hook.answers = [302]
    assert post_once(Receiver(name="a", url=hook.url, headers={"Authorization": "Bearer s"}), {}) == "answered 302"
    assert hook.seen == 1 and hook.taken == []


def test_an_address_is_never_shown() -> None:
    secret = Receiver(name="a", url="http://127.0.0.1:9/s3cret", headers={"X": "s3cret"})
    assert "s3cret" not in repr(secret) + post_once(secret, {})
    with pytest.raises(BadConfigError, match="expected http"):
        check_url("ftp://x", "--webhook")
