"""Take log lines out of the JSON that collectors wrap them in: docker, journald, CloudWatch, Loki, Kubernetes, loggers.

A record becomes one line per line of its message, each with a header that says where the record was written. The
header stands between two control characters, which are removed from messages, so that no message can write one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

OPEN, CLOSE = "\x1e", "\x1f"
MAX_DOCUMENT_BYTES = 256 << 20
MAX_RECORD_LINES = 400  # of one record; a longer message keeps its beginning and its end
_MAX_DEPTH = 3
_MESSAGE = ("message", "log", "msg", "MESSAGE", "line", "@message", "textPayload", "event", "text", "body")
_TRACE = ("exc_info", "exc_text", "exception", "stack_trace", "traceback", "stack", "stacktrace", "error.stack_trace")
_RANK = ("rank", "global_rank", "RANK", "process_index", "rank_id")
_HOST = ("hostname", "host", "_HOSTNAME", "node", "node_name", "nodename", "host_name", "kubernetes_host", "HOSTNAME")
_POD = ("pod_name", "pod", "kubernetes_pod_name", "logStreamName", "replica")
_TIME = ("time", "timestamp", "@timestamp", "ts", "asctime", "__REALTIME_TIMESTAMP", "datetime", "lastTimestamp")
_INSIDE = ("kubernetes", "labels", "stream", "jsonPayload", "resource", "record", "extra", "fields", "metadata", "host")
# Daemons whose word a job cannot put on: journald and syslog write the name, not the message.
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


def is_wrapped(beginning: bytes) -> bool:
    """Whether a log's first bytes are JSON records or a JSON document of records."""
    stripped = beginning.lstrip(b"\xef\xbb\xbf \t\r\n")
    if stripped[:1] not in (b"{", b"["):
        return False
    text = stripped.decode("utf-8", "replace")
    first = text.split("\n", 1)[0].strip()
    if first in ("{", "[") or text[:1] == "[":
        head = text[:4000]
        return any(f'"{key}"' in head for key in (*_MESSAGE, "events", "items", "results", "streams", "values"))
    try:
        record = json.loads(first)
    except ValueError:
        return len(first) > 2000 and first.startswith('{"')  # one long document, or a record that is cut here
    return isinstance(record, dict) and (_message_of(record) is not None or _records_of(record) is not None)


@dataclass(slots=True)
class Unwrapper:
    """Turns wrapped bytes into lines with headers; what is not JSON passes as it is."""

    line: int = 0
    _rest: bytes = b""
    _document: list[bytes] = field(default_factory=list)
    _document_bytes: int = 0
    _is_document: bool | None = None

    def feed(self, chunk: bytes) -> bytes:
        """The lines of the records that `chunk` completes."""
        if self._is_document is None:
            # A document is spread over lines; records stand on one line each.
            first = (self._rest + chunk).lstrip(b"\xef\xbb\xbf \t\r\n")
            self._is_document = first[:1] == b"[" or first.split(b"\n", 1)[0].strip() in (b"{", b"[")
        if self._is_document:
            self._document_bytes += len(chunk)
            if self._document_bytes <= MAX_DOCUMENT_BYTES:
                self._document.append(chunk)
            return b""
        data = self._rest + chunk
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        return self._lines(data[:end])

    def finish(self) -> bytes:
        """What is left when the log ends: its last line, or the whole document."""
        if self._is_document:
            data = b"".join(self._document)
            self._document = []
            try:
                records = _records_of(json.loads(data.decode("utf-8-sig", "replace")))
            except (ValueError, RecursionError):
                records = None
            if records is None:
                self._is_document = False
                return self._lines(data)  # Not a document that we know: its lines are read as they are.
            return b"".join(self._wrapped(record, number) for number, record in enumerate(records, start=1))
        rest, self._rest = self._rest, b""
        return self._lines(rest)

    def _lines(self, data: bytes) -> bytes:
        out: list[bytes] = []
        for raw in data.split(b"\n")[: -1 if data.endswith(b"\n") else None]:
            if not raw and not data:
                continue
            self.line += 1
            out.append(self._line(raw, self.line))
        return b"".join(out)

    def _line(self, raw: bytes, number: int) -> bytes:
        text = raw.strip()
        if text[:1] == b"{" and text[-1:] == b"}":
            try:
                record = json.loads(text)
            except (ValueError, RecursionError):
                record = None
            if isinstance(record, dict):
                inner = _records_of(record) if _message_of(record) is None else None
                if inner is not None:
                    return b"".join(self._wrapped(one, number) for one in inner)
                return self._wrapped(record, number)
        plain = raw.decode("utf-8", "replace").rstrip("\r")
        return f"{Header(line=number).write()}{_clean(plain)}\n".encode()

    def _wrapped(self, record: Any, number: int) -> bytes:
        if not isinstance(record, dict):
            return f"{Header(line=number).write()}{_clean(str(record))}\n".encode()
        header, text = _unwrap(record, Header(line=number), 0)
        lines = text.rstrip("\n").split("\n")
        if len(lines) > MAX_RECORD_LINES:
            lines = lines[: MAX_RECORD_LINES // 2] + lines[-MAX_RECORD_LINES // 2 :]
        mark = header.write()
        return "".join(f"{mark}{_clean(line)}\n" for line in lines).encode("utf-8", "replace")


def unwrap(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Wrapped chunks as plain lines with headers."""
    unwrapper = Unwrapper()
    for chunk in chunks:
        if lines := unwrapper.feed(chunk):
            yield lines
    if lines := unwrapper.finish():
        yield lines


def _clean(text: str) -> str:
    return text.replace(OPEN, " ").replace(CLOSE, " ").replace("\r", " ")


def _records_of(document: Any) -> list[Any] | None:
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


def _message_of(record: Mapping[str, Any]) -> str | None:
    for key in _MESSAGE:
        value = record.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, list) and value and all(isinstance(b, int) and 0 <= b < 256 for b in value):
            return bytes(value).decode("utf-8", "replace")  # journald writes what is not UTF-8 as numbers
    return None


def _unwrap(record: Mapping[str, Any], header: Header, depth: int) -> tuple[Header, str]:
    """A record's header and text; a message that is JSON itself is unwrapped too."""
    if record.get("kind") == "Event" and isinstance(record.get("involvedObject"), dict):
        return _event(record, header)
    header = _read_fields(record, header)
    text = _message_of(record)
    if text is None:
        inner = next((record[k] for k in ("jsonPayload", "record", "fields") if isinstance(record.get(k), dict)), None)
        if inner is not None and depth < _MAX_DEPTH:
            return _unwrap(inner, header, depth + 1)
        return header, json.dumps(record, ensure_ascii=False)
    stripped = text.strip()
    if stripped[:1] == "{" and stripped[-1:] == "}" and depth < _MAX_DEPTH:
        try:
            nested = json.loads(stripped)
        except (ValueError, RecursionError):
            nested = None
        if isinstance(nested, dict) and _message_of(nested) is not None:
            return _unwrap(nested, header, depth + 1)
    if header.origin is None and "stream" in record and isinstance(record["stream"], str):
        header = replace(header, origin="output")
    return header, "\n".join([_levelled(record, text), *_traces_of(record)])


def _levelled(record: Mapping[str, Any], text: str) -> str:
    level = record.get("level") or record.get("levelname") or record.get("severity")
    named = isinstance(level, str) and level.upper() in ("ERROR", "CRITICAL", "FATAL", "WARNING", "WARN")
    return f"{str(level).upper()} {text}" if named and "\n" not in text.strip() else text


def _traces_of(record: Mapping[str, Any]) -> list[str]:
    """Tracebacks beside the message: text, a list of lines, or an error with a class and a message."""
    found: list[str] = []
    for key in (*_TRACE, "error", "err"):
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
    places = [record, *(record[key] for key in _INSIDE if isinstance(record.get(key), dict))]
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
    """Nanoseconds since 1970 from a stamp, or from a number whose size tells its unit."""
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
