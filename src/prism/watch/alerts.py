"""Alerts by webhook: posted from a thread, tried again, never holding the watch up."""

from __future__ import annotations

import json
import queue
import threading
import time
import urllib.request
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

from prism.errors import BadConfigError

_TIMEOUT_S = 5.0
_PAUSES_S = (0.5, 2.0, 8.0)  # between tries
_MAX_QUEUED = 1_000


class WebhookAlerts:
    """POSTs each finding as JSON; `outcomes` counts sent, failed and dropped."""

    def __init__(self, url: str, pauses_s: tuple[float, ...] = _PAUSES_S) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadConfigError(f"--webhook {url}: expected http://HOST/... or https://HOST/...")
        self.outcomes: Counter[str] = Counter()
        self._url = url
        self._pauses_s = pauses_s
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(_MAX_QUEUED)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="prism-alerts", daemon=True)
        self._thread.start()

    def send(self, document: dict[str, Any]) -> None:
        """Queue an alert; when the other side is down for long, the newest are dropped and counted."""
        try:
            self._queue.put_nowait(document)
        except queue.Full:
            self.outcomes["dropped"] += 1

    def close(self, wait_s: float = 5.0) -> None:
        """Send what is queued, but do not wait longer than this."""
        end = time.monotonic() + wait_s
        while self._queue.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.02)
        self._stop.set()
        self.outcomes["dropped"] += self._queue.unfinished_tasks

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                document = self._queue.get(timeout=0.2)
            except queue.Empty:
                continue
            if document is not None:
                self.outcomes["sent" if self._deliver(document) else "failed"] += 1
            self._queue.task_done()

    def _deliver(self, document: dict[str, Any]) -> bool:
        for pause in (*self._pauses_s, None):
            request = urllib.request.Request(
                self._url,
                data=json.dumps(document).encode(),
                headers={"Content-Type": "application/json"},
                method="POST",
            )
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
                    return True
            except (OSError, ValueError):
                if pause is None or self._stop.wait(pause):
                    return False
        return False
