"""What a drill of truth keeps: what happened, what was told, and the documents that it writes itself."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Ledger:
    """What happened, what was told, and what was untrue."""

    events: int = 0
    harms: list[str] = field(default_factory=list)
    delays_s: list[float] = field(default_factory=list)
    sick: dict[str, float] = field(default_factory=dict)  # what is known to be sick, and since when
    looks: int = 0

    def harm(self, text: str) -> None:
        """Count one."""
        self.harms.append(f"{time.strftime('%H:%M:%S')} {text}")
        print(f"  HARM {text}", flush=True)


class Hook(ThreadingHTTPServer):
    """The receiver of messages; while it is down it answers nothing but 503."""

    def __init__(self) -> None:
        self.got: list[tuple[float, dict[str, Any]]] = []
        self.down = False
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def find(self, since: int, status: str, kind: str, word: str) -> float | None:
        """When such a message came."""
        for at, body in self.got[since:]:
            whole = json.dumps(body)
            if body["status"] == status and kind in ("", body["kind"]) and word in whole:
                return at
        return None


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        hook = self.server
        assert isinstance(hook, Hook)
        if not hook.down:
            hook.got.append((time.time(), body))
        self.send_response(503 if hook.down else 200)
        self.end_headers()

    def log_message(self, *words: Any) -> None:
        """Say nothing."""


def write_diagnosis(path: Path, name: str, *, sick: bool, age_s: float = 0.0) -> None:
    """What `prism diagnose --output` writes of one job of four hosts, two of them of a name of its own."""
    now_ns = int((time.time() - age_s) * 1e9)
    hosts = [f"{name}-n{n}" for n in range(4)]
    finding = {
        "kind": "slow_compute", "job": f"{name}-job", "culprit": {"type": "host", "id": hosts[0]}, "score": 0.9,
        "start_ns": now_ns - 30 * 10**9, "end_ns": now_ns - 2 * 10**9, "lost_gpu_seconds": 90.0, "evidence": "1.4x",
    }  # fmt: skip
    steps = [
        {"index": n, "start_ns": now_ns - (20 - n) * 10**9, "end_ns": now_ns - (19 - n) * 10**9} for n in range(20)
    ]
    job = {
        "id": f"{name}-job", "endpoints": [f"10.0.{n}.1" for n in range(4)], "hosts": hosts, "pairs": [], "groups": [],
        "layout": {"dp": 4, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "confidence": 0.9}, "stages": {}, "steps": steps,
        "state": "running", "started_ns": now_ns - 60 * 10**9,
    }  # fmt: skip
    document = {"schema": "prism.diagnosis/1", "jobs": [job], "findings": [finding] if sick else [], "notes": []}
    aside = path.with_suffix(".writing")
    aside.write_text(json.dumps(document))
    aside.replace(path)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def seen_by(state: Path) -> float | None:
    """When a watch reported its first slow GPU; None before it did."""
    with suppress(OSError, ValueError, KeyError):
        document = json.loads((state / "state.json").read_text())
        if any(one["kind"] == "slow_compute" and one["told_cost"] is not None for one in document["findings"]):
            return (state / "state.json").stat().st_mtime
    return None


@contextmanager
def open_page(wanted: bool) -> Iterator[Any]:
    """The front page in a real browser, which stays open and follows by itself."""
    if not wanted or shutil.which("chromium") is None:
        yield None
        return
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield browser
    finally:
        browser.quit()
