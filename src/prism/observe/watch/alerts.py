"""Alerts to other systems, through the sender, so that they never delay the watch."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from prism.machine.requests import Receiver, check_url
from prism.machine.sender import Sender, SenderConfig
from prism.records.findings import label_alert

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
    """Hands documents to the sender; with a state folder they wait on disk until they are taken."""

    def __init__(self, name: str, url: str, queue: Path | None, config: SenderConfig | None) -> None:
        receiver = Receiver(name=name, url=check_url(url, f"--{name}"))
        self._name = name
        self._sender = Sender((receiver,), None if queue is None else queue / f"{name}.sqlite", config)
        self.outcomes = self._sender.outcomes

    def close(self, wait_s: float = 5.0) -> None:
        """Send what is queued, but do not wait longer than this; with a state folder the rest is sent next time."""
        self._sender.close(wait_s)

    def _post(self, body: Any, key: str = "") -> None:
        self._sender.send(self._name, body, key=key)


class WebhookAlerts(_Poster):
    """POSTs each finding when it is reported."""

    def __init__(self, url: str, queue: Path | None = None, config: SenderConfig | None = None) -> None:
        super().__init__("webhook", url, queue, config)

    def send(self, document: dict[str, Any]) -> None:
        """Queue a finding."""
        self._post(document)

    def resume(self, documents: list[dict[str, Any]]) -> None:
        """Nothing to do: a webhook gets each finding once."""

    def keep_up(self) -> None:
        """Nothing to do: a webhook gets each finding once."""


class AlertmanagerAlerts(_Poster):
    """Keeps Alertmanager's alerts in line with the findings: raises, updates, repeats and ends them."""

    def __init__(self, url: str, queue: Path | None = None, config: SenderConfig | None = None) -> None:
        super().__init__("alertmanager", url.rstrip("/") + "/api/v2/alerts", queue, config)
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
            self._post([_to_alert(document, ends_s=ends_s) for document in self._firing.values()], key="repeat")


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
