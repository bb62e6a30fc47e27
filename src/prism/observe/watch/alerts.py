"""Alerts to other systems: posted and retried in a thread, so that they never delay the watch."""

from __future__ import annotations

import json
import queue
import threading
import time
import urllib.request
from collections import Counter
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import urlsplit

from prism.errors import BadConfigError
from prism.records.findings import label_alert

_TIMEOUT_S = 5.0
_PAUSES_S = (0.5, 2.0, 8.0)  # between tries
_MAX_QUEUED = 1_000
_REPEAT_S = 60.0  # Alertmanager treats an alert that is not repeated as resolved, by default after five minutes.
_HOLDS_S = 300.0


class AlertSink(Protocol):
    """Where findings are sent besides stdout."""

    outcomes: Counter[str]  # sent, failed, dropped

    def send(self, document: dict[str, Any]) -> None:
        """A finding that is new, has grown, or is over."""
        ...

    def resume(self, documents: list[dict[str, Any]]) -> None:
        """Findings that an earlier run reported and that are not resolved."""
        ...

    def keep_up(self) -> None:
        """Called after every analysis of the window."""
        ...

    def close(self, wait_s: float = 5.0) -> None:
        """Send what is queued, but do not wait longer than this."""
        ...


class _Poster:
    """POSTs JSON from a thread; `outcomes` counts sent, failed and dropped."""

    def __init__(self, url: str, option: str, pauses_s: tuple[float, ...]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadConfigError(f"{option} {url}: expected http://HOST/... or https://HOST/...")
        self.outcomes: Counter[str] = Counter()
        self._url = url
        self._pauses_s = pauses_s
        self._queue: queue.Queue[Any] = queue.Queue(_MAX_QUEUED)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="prism-alerts", daemon=True)
        self._thread.start()

    def close(self, wait_s: float = 5.0) -> None:
        """Send what is queued, but do not wait longer than this."""
        end = time.monotonic() + wait_s
        while self._queue.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.02)
        self._stop.set()
        self.outcomes["dropped"] += self._queue.unfinished_tasks

    def _post(self, body: Any) -> None:
        """Queue a document; if the receiver is down for long, the newest are dropped and counted."""
        try:
            self._queue.put_nowait(body)
        except queue.Full:
            self.outcomes["dropped"] += 1

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                body = self._queue.get(timeout=0.2)
            except queue.Empty:
                continue
            self.outcomes["sent" if self._deliver(body) else "failed"] += 1
            self._queue.task_done()

    def _deliver(self, body: Any) -> bool:
        for pause in (*self._pauses_s, None):
            request = urllib.request.Request(
                self._url,
                data=json.dumps(body).encode(),
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


class WebhookAlerts(_Poster):
    """POSTs each finding when it is reported."""

    def __init__(self, url: str, pauses_s: tuple[float, ...] = _PAUSES_S) -> None:
        super().__init__(url, "--webhook", pauses_s)

    def send(self, document: dict[str, Any]) -> None:
        """Queue a finding."""
        self._post(document)

    def resume(self, documents: list[dict[str, Any]]) -> None:
        """Nothing to do: a webhook gets each finding once."""

    def keep_up(self) -> None:
        """Nothing to do: a webhook gets each finding once."""


class AlertmanagerAlerts(_Poster):
    """Keeps Alertmanager's alerts in line with the findings: raises, updates, repeats and ends them."""

    def __init__(self, url: str, pauses_s: tuple[float, ...] = _PAUSES_S) -> None:
        super().__init__(url.rstrip("/") + "/api/v2/alerts", "--alertmanager", pauses_s)
        self._firing: dict[str, dict[str, Any]] = {}
        self._repeat_at = 0.0

    def send(self, document: dict[str, Any]) -> None:
        """Raise an alert, change it, or end it."""
        if document.get("status") == "resolved":
            self._firing.pop(document["id"], None)
            ended = _to_alert(document, ends_s=time.time())
            if all(_to_alert(other, ends_s=0.0)["labels"] != ended["labels"] for other in self._firing.values()):
                self._post([ended])
            return
        self._firing[document["id"]] = document
        self._post([_to_alert(document, ends_s=time.time() + _HOLDS_S)])

    def resume(self, documents: list[dict[str, Any]]) -> None:
        """Continue the alerts of an earlier run."""
        self._firing = {document["id"]: document for document in documents}
        self._repeat_at = 0.0

    def keep_up(self) -> None:
        """Repeat unresolved alerts from time to time."""
        if time.monotonic() < self._repeat_at:
            return
        self._repeat_at = time.monotonic() + _REPEAT_S
        if self._firing:
            ends_s = time.time() + _HOLDS_S
            self._post([_to_alert(document, ends_s=ends_s) for document in self._firing.values()])


def _to_alert(document: dict[str, Any], *, ends_s: float) -> dict[str, Any]:
    """An alert in the form of Alertmanager's API; its labels stay the same for as long as the finding lasts."""
    culprit = document["culprit"]
    return {
        "labels": label_alert(document["kind"], document["job"], culprit["type"], culprit["id"]),
        "annotations": {
            "culprit": culprit["id"],
            "summary": f"{document['kind']} of {document['job']}: {culprit['type']} {culprit['id']}",
            "description": document["evidence"],
            "lost_gpu_seconds": f"{document['lost_gpu_seconds']:.1f}",
        },
        "startsAt": _written(min(document["start_ns"] / 1e9, time.time())),
        "endsAt": _written(ends_s),
    }


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
