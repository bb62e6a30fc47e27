"""Alerts: decides which findings go to which channels, then sends them; each links to its moment of the timeline."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

import yaml

from prism.errors import BadFileError
from prism.machine.files import write_durably
from prism.records.findings import label_alert
from prism.serve.history.notes import Silence
from prism.serve.shapes.jobs import FindingRow

ChannelType = Literal["webhook", "slack", "alertmanager"]
_TYPES: tuple[ChannelType, ...] = ("webhook", "slack", "alertmanager")


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A receiver of alerts. Its address may hold a secret: only its name and type are ever shown."""

    name: str
    type: ChannelType
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertConfig:
    """The channels, the least loss that is worth an alert, and how links begin."""

    channels: tuple[Channel, ...] = ()
    public_url: str = ""  # of this service, for links
    least_lost_gpu_s: float = 0.0  # cheaper findings cause no alert
    repeat_s: float = 60.0  # Alertmanager drops alerts that are not sent again
    holds_s: float = 300.0
    timeout_s: float = 5.0
    tries: int = 3
    oldest_s: float = 86_400.0  # a finding that ended longer ago is history and calls nobody
    kept_s: float = 86_400.0  # how long a message that a receiver did not take is tried again
    most_kept: int = 1_000  # such messages of one channel


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert: a finding that is new, or that is over."""

    id: str
    status: Literal["firing", "resolved", "test"]
    kind: str
    job: str
    culprit_type: str
    culprit: str
    start_ns: int
    end_ns: int
    lost_gpu_seconds: float
    evidence: str
    link: str


def read_alerts(path: Path) -> AlertConfig:
    """The file of --alerts: public_url, least_lost_gpu_s, and channels with name, type, url and headers."""
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadFileError(f"{path}: cannot be read ({error}); check the file") from None
    rows = document.get("channels") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise BadFileError(f"{path}: expected a list 'channels', each with name, type and url")
    channels = tuple(_read_channel(row, f"{path} channel {number}") for number, row in enumerate(rows, start=1))
    if len({channel.name for channel in channels}) < len(channels):
        raise BadFileError(f"{path}: two channels have one name; give each its own")
    try:
        least = float(document.get("least_lost_gpu_s", 0.0))
    except (TypeError, ValueError):
        raise BadFileError(f"{path}: least_lost_gpu_s is not a number") from None
    return AlertConfig(channels=channels, public_url=str(document.get("public_url", "")), least_lost_gpu_s=least)


def _read_channel(row: Any, where: str) -> Channel:
    kind = row.get("type") if isinstance(row, dict) else None
    if kind not in _TYPES:
        raise BadFileError(f"{where}: type is {kind!r}; choose of {', '.join(_TYPES)}")
    url = str(row.get("url", ""))
    if urlsplit(url).scheme not in ("http", "https"):
        raise BadFileError(f"{where}: url does not begin with http:// or https://")
    headers = row.get("headers") or {}
    if not isinstance(headers, dict):
        raise BadFileError(f"{where}: headers is not a table of names and values")
    return Channel(
        name=str(row.get("name") or kind),
        type=kind,
        url=url,
        headers={str(name): str(value) for name, value in headers.items()},
    )


def decide_alerts(
    firing: Mapping[str, Alert],
    findings: Iterable[FindingRow],
    silences: Iterable[Silence],
    config: AlertConfig,
    now_ns: int = 0,
    lost: Collection[str] = (),
) -> tuple[dict[str, Alert], list[Alert]]:
    """The alerts that fire now, and those to send: new ones and ended ones. A silence holds back only new ones.

    What lay in a place whose documents cannot be read (`lost`) goes on firing: it was lost sight of, and is not over.
    """
    held = tuple(silences)
    now = {id: alert for id, alert in firing.items() if id.partition("~")[0] in lost}
    for row in findings:
        alert = describe_alert(row, config.public_url)
        quiet = row.lost_gpu_seconds < config.least_lost_gpu_s or any(is_silenced(alert, silence) for silence in held)
        quiet = quiet or alert.end_ns < now_ns - config.oldest_s * 1e9
        if alert.id in firing or not quiet:
            now[alert.id] = alert
    told = [alert for id, alert in now.items() if id not in firing]
    told += [replace(alert, status="resolved") for id, alert in firing.items() if id not in now]
    return now, told


def is_silenced(alert: Alert, silence: Silence) -> bool:
    """Whether a silence names this alert; an empty field of a silence matches every alert."""
    parts = ((silence.job, alert.job), (silence.kind, alert.kind), (silence.culprit, alert.culprit))
    return all(not wanted or wanted == given for wanted, given in parts)


def describe_alert(row: FindingRow, public_url: str) -> Alert:
    """A finding as an alert; its id stays the same while the finding grows."""
    start_ns = int(row.origin_ns) + row.from_ns
    end_ns = int(row.origin_ns) + row.to_ns
    margin = max(1_000, (end_ns - start_ns) // 10)
    window = {"key": row.job_key, "from": start_ns - margin, "to": end_ns + margin}
    return Alert(
        id=f"{row.job_key}/{row.kind}/{row.culprit_type}/{row.culprit}/{start_ns}",
        status="firing",
        kind=row.kind,
        job=row.job,
        culprit_type=row.culprit_type,
        culprit=row.culprit,
        start_ns=start_ns,
        end_ns=end_ns,
        lost_gpu_seconds=row.lost_gpu_seconds,
        evidence=row.evidence,
        link=f"{public_url.rstrip('/')}/job?{urlencode(window)}" if public_url else "",
    )


def write_body(alert: Alert, kind: ChannelType, now_s: float, holds_s: float) -> Any:
    """The body to post to a channel of this type."""
    what = f"{alert.kind.replace('_', ' ')}: {alert.culprit_type} {alert.culprit} in {alert.job}"
    if kind == "slack":
        mark = {"firing": "\N{LARGE RED CIRCLE}", "resolved": "\N{LARGE GREEN CIRCLE}", "test": "\N{BELL}"}[
            alert.status
        ]
        link = f"\n<{alert.link}|open the timeline>" if alert.link else ""
        return {"text": f"{mark} {_plain(what)} ({alert.status})\n{_plain(alert.evidence)}{link}"}
    if kind == "alertmanager":
        ends_s = now_s if alert.status == "resolved" else now_s + holds_s
        labels = label_alert(alert.kind, alert.job, alert.culprit_type, alert.culprit)
        return [{"labels": labels, "annotations": {"summary": what, "description": alert.evidence},
                 "startsAt": _clock(min(alert.start_ns / 1e9, now_s)), "endsAt": _clock(ends_s),
                 "generatorURL": alert.link}]  # fmt: skip
    names = ("id", "status", "kind", "job", "culprit_type", "culprit", "start_ns", "end_ns", "lost_gpu_seconds",
             "evidence", "link")  # fmt: skip
    return {"schema": "prism.alert/1", **{name: getattr(alert, name) for name in names}}


def _plain(text: str) -> str:
    """Text escaped so that Slack makes no link or mention of it."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(max(0.0, seconds), UTC).isoformat()


@dataclass(slots=True)
class Delivery:
    """How the last message to a channel went."""

    at_ns: int = 0
    ok: bool | None = None
    why: str = ""
    num_sent: int = 0


def post(channel: Channel, body: Any, timeout_s: float) -> str:
    """Send a body; "" if the receiver accepted it, else the reason, without the address."""
    url = channel.url
    if channel.type == "alertmanager" and not url.rstrip("/").endswith("/api/v2/alerts"):
        url = url.rstrip("/") + "/api/v2/alerts"
    headers = {"Content-Type": "application/json", **channel.headers}
    try:
        with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=timeout_s) as answer:
            return "" if 200 <= answer.status < 300 else f"answered {answer.status}"
    except Exception as error:  # An error of the receiver must not end this service.
        code = getattr(error, "code", None)
        reason = getattr(error, "reason", None)
        return f"answered {code}" if code else f"not reached ({type(reason or error).__name__})"


class Alerter:
    """Compares the open findings with what was sent, and sends the channels what changed."""

    def __init__(
        self, config: AlertConfig, state: Path | None, clock: Callable[[], float] = time.time, *, follows: bool = False
    ) -> None:
        self.config, self.clock = config, clock
        self.follows = follows  # another process sends alerts; this one only tests channels
        self.path = None if state is None else state / "alerts.json"
        self._deliveries: dict[str, Delivery] = {}
        self.firing: dict[str, Alert] = self._restore()
        self._lock = threading.Lock()
        self._repeat_at = 0.0
        self._unsent: dict[str, list[tuple[int, Alert]]] = self._restore_unsent()

    @property
    def num_firing(self) -> int:
        """Alerts that fire now."""
        return len(self._restore() if self.follows else self.firing)

    @property
    def deliveries(self) -> dict[str, Delivery]:
        """How the last message to each channel went, whichever process sent it."""
        with self._open_deliveries() as known:
            return {channel.name: known.get(channel.name, Delivery()) for channel in self.config.channels}

    def look(
        self, findings: Iterable[FindingRow], silences: Iterable[Silence], lost: Collection[str] = ()
    ) -> list[Alert]:
        """One round: decide, write the decision down, send; first what a receiver did not take before, in order."""
        with self._lock:
            now_ns = int(self.clock() * 1e9)
            self.firing, told = decide_alerts(self.firing, findings, silences, self.config, now_ns, lost)
            before = {name: list(rows) for name, rows in self._unsent.items()}
            for channel in self.config.channels:
                self._unsent.setdefault(channel.name, []).extend((now_ns, alert) for alert in told)
            if told:
                self._keep()
            again = self.clock() >= self._repeat_at
            for channel in self.config.channels:
                self._unsent[channel.name] = self._send_in_order(channel, now_ns)
                repeated = list(self.firing.values()) if again and channel.type == "alertmanager" else []
                fresh = {alert.id for alert in told} | {alert.id for _, alert in self._unsent[channel.name]}
                for alert in repeated:
                    if alert.id not in fresh:
                        self._tell(channel, alert)
            if told or self._unsent != before:
                self._keep_unsent()
            if again:
                self._repeat_at = self.clock() + self.config.repeat_s
            return told

    def test(self, name: str) -> Delivery | None:
        """Send a test message to a channel; None where there is none of that name."""
        channel = next((channel for channel in self.config.channels if channel.name == name), None)
        if channel is None:
            return None
        now_ns = int(self.clock() * 1e9)
        alert = Alert(
            id=f"test/{now_ns}", status="test", kind="test", job="none", culprit_type="host", culprit="none",
            start_ns=now_ns, end_ns=now_ns, lost_gpu_seconds=0.0, evidence="This is a test of Prism's alerts.",
            link=self.config.public_url,
        )  # fmt: skip
        self._tell(channel, alert)
        return self.deliveries[name]

    def _send_in_order(self, channel: Channel, now_ns: int) -> list[tuple[int, Alert]]:
        """Send what waits for a channel, up to the first message that it does not take; returns what still waits."""
        oldest_ns = now_ns - self.config.kept_s * 1e9
        waiting = [row for row in self._unsent[channel.name] if row[0] >= oldest_ns][-self.config.most_kept :]
        for place, (_, alert) in enumerate(waiting):
            if not self._tell(channel, alert):
                return waiting[place:]
        return []

    def _tell(self, channel: Channel, alert: Alert) -> bool:
        body = write_body(alert, channel.type, self.clock(), self.config.holds_s)
        why = "never tried"
        for _ in range(self.config.tries):
            why = post(channel, body, self.config.timeout_s)
            if not why:
                break
        with self._open_deliveries() as known:
            sent = known.get(channel.name, Delivery()).num_sent + (not why)
            known[channel.name] = Delivery(at_ns=int(self.clock() * 1e9), ok=not why, why=why, num_sent=sent)
        return not why

    @contextmanager
    def _open_deliveries(self) -> Iterator[dict[str, Delivery]]:
        """The deliveries, locked against other processes while they are read or changed."""
        if self.path is None:
            yield self._deliveries
            return
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.path.with_name("deliveries.json"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+b") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            before = handle.read()
            known: dict[str, Delivery] = {}
            with suppress(ValueError, TypeError, AttributeError):  # a crash may have left it half written
                known = {name: Delivery(**fields) for name, fields in json.loads(before or b"{}").items()}
            yield known
            after = json.dumps({name: asdict(delivery) for name, delivery in known.items()}).encode()
            if after != before:
                handle.seek(0)
                handle.write(after)
                handle.truncate()

    def _keep(self) -> None:
        """Write down what was sent, so that a restart does not send it again."""
        if self.path is None:
            return
        rows = [{name: getattr(alert, name) for name in Alert.__slots__} for alert in self.firing.values()]
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_durably(self.path, json.dumps(rows))

    def _keep_unsent(self) -> None:
        if self.path is not None:
            rows = {name: [(at, asdict(alert)) for at, alert in waiting] for name, waiting in self._unsent.items()}
            write_durably(self.path.with_name("unsent.json"), json.dumps(rows))

    def _restore_unsent(self) -> dict[str, list[tuple[int, Alert]]]:
        if self.path is None or self.follows:
            return {}
        try:
            found = json.loads(self.path.with_name("unsent.json").read_bytes())
            return {name: [(int(at), Alert(**row)) for at, row in rows] for name, rows in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _restore(self) -> dict[str, Alert]:
        if self.path is None or not self.path.exists():
            return {}
        try:
            found = [Alert(**row) for row in json.loads(self.path.read_bytes())]
        except (OSError, ValueError, TypeError):
            return {}
        return {alert.id: alert for alert in found}
