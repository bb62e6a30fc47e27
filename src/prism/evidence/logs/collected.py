"""Records of log collectors: the message, its traceback, and where it was written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

OPEN, CLOSE = "\x1e", "\x1f"
_MAX_DEPTH = 3
_DOCKER = frozenset({"log", "stream", "time", "attrs"})  # docker's json-file driver: the most common, so tried first
MESSAGE_KEYS = ("message", "log", "msg", "MESSAGE", "line", "@message", "textPayload", "event", "text", "body")
_TRACE = (
    "exc_info",
    "exc_text",
    "exception",
    "stack_trace",
    "traceback",
    "stack",
    "stacktrace",
    "error.stack_trace",
    "error",
    "err",
)
_RANK = ("rank", "global_rank", "RANK", "process_index", "rank_id")
_HOST = ("hostname", "host", "_HOSTNAME", "node", "node_name", "nodename", "host_name", "kubernetes_host", "HOSTNAME")
_POD = ("pod_name", "pod", "kubernetes_pod_name", "logStreamName", "replica")
_TIME = ("time", "timestamp", "@timestamp", "ts", "asctime", "__REALTIME_TIMESTAMP", "datetime", "lastTimestamp")
_INSIDE = ("kubernetes", "labels", "stream", "jsonPayload", "resource", "record", "extra", "fields", "metadata", "host")
# Daemons that a job cannot imitate: journald and syslog write the name themselves, whatever the message contains.
SYSTEM_DAEMONS = frozenset(
    {"kernel", "nvidia-fabricmanager", "nv-fabricmanager", "nv-hostengine", "dcgm", "nvidia-persistenced", "systemd",
     "mcelog", "rasdaemon", "opensm", "ipmievd", "irqbalance", "systemd-logind", "systemd-shutdown"}
)  # fmt: skip
SCHEDULER_DAEMONS = frozenset(
    {"slurmd", "slurmctld", "slurmstepd", "kubelet", "kube-scheduler", "kube-controller-manager", "containerd",
     "dockerd", "kube-apiserver", "pbs_mom", "lsf"}
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a collector knows about a record; `origin` is set only where it proves who wrote it."""

    line: int
    rank: int | None = None
    host: str | None = None
    pod: str | None = None
    time_ns: int | None = None
    origin: str | None = None

    def write(self) -> str:
        """The header in front of each line of the record."""
        parts = (self.line, self.rank, self.host, self.pod, self.time_ns, self.origin)
        return OPEN + "\t".join("" if part is None else str(part) for part in parts) + CLOSE


def read_header(text: str) -> tuple[Header | None, str]:
    """The header of a line that `unwrap` wrote, and what follows it."""
    if not text.startswith(OPEN):
        return None, text
    head, found, rest = text[1:].partition(CLOSE)
    parts = head.split("\t")
    if not found or len(parts) != 6:
        return None, rest
    line, rank, host, pod, time_ns, origin = parts
    return Header(
        line=int(line or 1),
        rank=int(rank) if rank else None,
        host=host or None,
        pod=pod or None,
        time_ns=int(time_ns) if time_ns else None,
        origin=origin or None,
    ), rest


def records_of(document: Any) -> list[Any] | None:
    """The records in a document: a list of them, CloudWatch's events, Loki's streams, Kubernetes' items."""
    if isinstance(document, list):
        return document
    if not isinstance(document, dict):
        return None
    for key in ("events", "items", "entries", "logs"):
        if isinstance(document.get(key), list):
            return list(document[key])
    if isinstance(document.get("results"), list):  # CloudWatch Logs Insights: a list of fields per record
        rows = [row for row in document["results"] if isinstance(row, list)]
        return [{str(f.get("field")): f.get("value") for f in row if isinstance(f, dict)} for row in rows]
    data = document.get("data", document)
    streams = (data.get("result") or data.get("streams")) if isinstance(data, dict) else None
    if isinstance(streams, list):
        return sorted(
            (
                {"labels": one.get("stream", {}), "timestamp": value[0], "line": value[1]}
                for one in streams
                if isinstance(one, dict)
                for value in one.get("values", ())
                if isinstance(value, list) and len(value) >= 2
            ),
            key=lambda record: str(record["timestamp"]).zfill(20),
        )
    return None


def message_of(record: Mapping[str, Any]) -> str | None:
    for key in MESSAGE_KEYS:
        value = record.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, list) and value and all(isinstance(b, int) and 0 <= b < 256 for b in value):
            return bytes(value).decode("utf-8", "replace")  # journald writes what is not UTF-8 as numbers
    return None


def unwrap_record(record: Mapping[str, Any], header: Header, depth: int) -> tuple[Header, str]:
    """A record's header and text; a message that is itself JSON is unwrapped as well."""
    if record.keys() <= _DOCKER and isinstance(text := record.get("log"), str) and text[:1] != "{":
        return replace(header, time_ns=_time_ns(record.get("time")), origin="output"), text
    if record.get("kind") == "Event" and isinstance(record.get("involvedObject"), dict):
        return _event(record, header)
    header = _read_fields(record, header)
    text = message_of(record)
    if text is None:
        inner = next((record[k] for k in ("jsonPayload", "record", "fields") if isinstance(record.get(k), dict)), None)
        if inner is not None and depth < _MAX_DEPTH:
            return unwrap_record(inner, header, depth + 1)
        return header, json.dumps(record, ensure_ascii=False)
    stripped = text.strip()
    if stripped[:1] == "{" and stripped[-1:] == "}" and depth < _MAX_DEPTH:
        try:
            nested = json.loads(stripped)
        except (ValueError, RecursionError):
            nested = None
        if isinstance(nested, dict) and message_of(nested) is not None:
            return unwrap_record(nested, header, depth + 1)
    if header.origin is None and "stream" in record and isinstance(record["stream"], str):
        header = replace(header, origin="output")
    return header, "\n".join([_levelled(record, text), *_traces_of(record)])


def _levelled(record: Mapping[str, Any], text: str) -> str:
    level = record.get("level") or record.get("levelname") or record.get("severity")
    named = isinstance(level, str) and level.upper() in ("ERROR", "CRITICAL", "FATAL", "WARNING", "WARN")
    return f"{str(level).upper()} {text}" if named and "\n" not in text.strip() else text


def _traces_of(record: Mapping[str, Any]) -> list[str]:
    """Tracebacks in other fields than the message: text, a list of lines, or an error with a class and a message."""
    found: list[str] = []
    if record.keys().isdisjoint(_TRACE):
        return found
    for key in _TRACE:
        value = record.get(key)
        if isinstance(value, dict):
            name, words = value.get("type") or value.get("class") or value.get("name"), value.get("message") or ""
            trace = value.get("stacktrace") or value.get("stack_trace") or value.get("traceback") or value.get("stack")
            value = trace if isinstance(trace, str | list) else f"{name}: {words}" if isinstance(name, str) else None
        if isinstance(value, list):
            value = "\n".join(str(part) for part in value if isinstance(part, str))
        if isinstance(value, str) and value.strip() and value not in found:
            found.append(value.strip("\n"))
    return found


def _event(record: Mapping[str, Any], header: Header) -> tuple[Header, str]:
    """A Kubernetes event, as `kubectl get events -o json` gives it: the cluster wrote it, not the job."""
    source = record.get("source") if isinstance(record.get("source"), dict) else {}
    target = record["involvedObject"]
    host = (source or {}).get("host") or (target.get("name") if target.get("kind") == "Node" else None)
    header = replace(
        header,
        origin="scheduler",
        host=str(host) if host else None,
        pod=str(target.get("name")) if target.get("kind") == "Pod" else None,
        time_ns=_time_ns(record.get("lastTimestamp") or record.get("eventTime")),
    )
    parts = (
        record.get("type"),
        record.get("reason"),
        str(target.get("kind", "")).lower() + "/" + str(target.get("name")),
    )
    return header, " ".join(str(p) for p in parts if p) + ": " + str(record.get("message", ""))


def _read_fields(record: Mapping[str, Any], header: Header) -> Header:
    """Rank, host, pod and time from a record's own fields and those of the collector around it."""
    places = [record]
    if not record.keys().isdisjoint(_INSIDE):
        places += [record[key] for key in _INSIDE if isinstance(record.get(key), dict)]
    places += [p["labels"] for p in places[1:] if isinstance(p.get("labels"), dict)]
    rank, host = _first(places, _RANK), _first(places, _HOST)
    pod, time = _first(places, _POD), _first(places, _TIME)
    return Header(
        line=header.line,
        rank=header.rank if header.rank is not None else _whole(rank),
        host=header.host or (str(host)[:80] if isinstance(host, str) else None),
        pod=header.pod or (str(pod).rsplit("/", 1)[-1][:80] if isinstance(pod, str) else None),
        time_ns=header.time_ns if header.time_ns is not None else _time_ns(time),
        origin=header.origin or _origin_of(record),
    )


def _origin_of(record: Mapping[str, Any]) -> str | None:
    """Who wrote a journal's record; the journal sets these fields itself."""
    if record.get("_TRANSPORT") == "kernel":
        return "kernel"
    name = record.get("SYSLOG_IDENTIFIER") if "_TRANSPORT" in record or "_HOSTNAME" in record else None
    if name in SCHEDULER_DAEMONS:
        return "scheduler"
    if name in SYSTEM_DAEMONS:
        return "kernel"
    return "output" if isinstance(name, str) else None


def _first(places: Iterable[Mapping[str, Any]], keys: tuple[str, ...]) -> Any:
    for place in places:
        if place.keys().isdisjoint(keys):
            continue
        for key in keys:
            value = place.get(key)
            if isinstance(value, str | int | float) and not isinstance(value, bool) and value != "":
                return value
    return None


def _whole(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError):
        return None
    return number if 0 <= number < 1_000_000 else None


def _time_ns(value: Any) -> int | None:
    """Nanoseconds since 1970 from a time stamp, or from a number whose magnitude shows its unit."""
    if isinstance(value, str) and not value.replace(".", "", 1).isdigit():
        try:
            moment = datetime.fromisoformat(value.strip().replace(",", ".").replace("Z", "+00:00")[:35])
        except ValueError:
            return None
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return int(moment.timestamp() * 1_000_000) * 1000
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    for limit, unit in ((1e11, 1_000_000_000), (1e14, 1_000_000), (1e17, 1000), (1e20, 1)):
        if 1e8 < number < limit:
            return int(number * unit)
    return None
