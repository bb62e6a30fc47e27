"""Take log lines out of the JSON that collectors wrap them in: docker, journald, CloudWatch, Loki, Kubernetes, loggers.

A record becomes one line per line of its message, each with a header that says where the record was written. The
header stands between two control characters, which are removed from messages, so that no message can write one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from prism.evidence.logs.collected import CLOSE, MESSAGE_KEYS, OPEN, Header, message_of, records_of, unwrap_record

MAX_DOCUMENT_BYTES = 256 << 20
MAX_RECORD_LINES = 400  # of one record; a longer message keeps its beginning and its end


def is_wrapped(beginning: bytes) -> bool:
    """Whether a log's first bytes are JSON records or a JSON document of records."""
    stripped = beginning.lstrip(b"\xef\xbb\xbf \t\r\n")
    if stripped[:1] not in (b"{", b"["):
        return False
    text = stripped.decode("utf-8", "replace")
    first = text.split("\n", 1)[0].strip()
    if first in ("{", "[") or text[:1] == "[":
        head = text[:4000]
        return any(f'"{key}"' in head for key in (*MESSAGE_KEYS, "events", "items", "results", "streams", "values"))
    try:
        record = json.loads(first)
    except ValueError:
        return len(first) > 2000 and first.startswith('{"')  # one long document, or a record that is cut here
    return isinstance(record, dict) and (message_of(record) is not None or records_of(record) is not None)


@dataclass(slots=True)
class Unwrapper:
    """Turns wrapped bytes into lines with headers; anything that is not JSON stays unchanged."""

    line: int = 0
    _rest: bytes = b""
    _document: list[bytes] = field(default_factory=list)
    _document_bytes: int = 0
    _is_document: bool | None = None

    def feed(self, chunk: bytes) -> bytes:
        """The lines of the records that `chunk` completes."""
        if self._is_document is None:
            # A document spans many lines; a record is one line.
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
        """The rest at the end of the log: its last line, or the whole document."""
        if self._is_document:
            data = b"".join(self._document)
            self._document = []
            try:
                records = records_of(json.loads(data.decode("utf-8-sig", "replace")))
            except (ValueError, RecursionError):
                records = None
            if records is None:
                self._is_document = False
                return self._lines(data)  # Not a known kind of document: its lines are read unchanged.
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
                inner = records_of(record) if message_of(record) is None else None
                if inner is not None:
                    return b"".join(self._wrapped(one, number) for one in inner)
                return self._wrapped(record, number)
        plain = raw.decode("utf-8", "replace").rstrip("\r")
        return f"{Header(line=number).write()}{_clean(plain)}\n".encode()

    def _wrapped(self, record: Any, number: int) -> bytes:
        if not isinstance(record, dict):
            return f"{Header(line=number).write()}{_clean(str(record))}\n".encode()
        header, text = unwrap_record(record, Header(line=number), 0)
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
