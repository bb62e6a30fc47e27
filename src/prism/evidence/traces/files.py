"""Which reader a file is for, by what it holds: its outermost keys or first line, never its name alone."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Literal

from prism.errors import BadFileError
from prism.evidence.traces.counters import looks_like_counters
from prism.evidence.traces.inspector import looks_like_inspector

Kind = Literal["dumps", "traces", "inspector", "ras", "counters", "stacks", "logs"]

LOG_ENDINGS = (".log", ".out", ".err", ".txt", ".jsonl", ".gz", ".zst", ".xz", ".bz2")
_LOG_NAMES = ("messages", "syslog", "dmesg")
_HEAD_BYTES = 1 << 16
_GZIP, _PICKLE = b"\x1f\x8b", b"\x80"
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\]:,]')
_EVENT = re.compile(rb'\[\s*\{[^{}]{0,2000}"ph"\s*:')
# Outermost keys of the documents that are read.
_DUMP_KEYS = frozenset({b"entries", b"pg_config", b"pg_status"})
_TRACE_KEYS = frozenset({b"traceEvents", b"distributedInfo", b"deviceProperties"})
_RAS_KEYS = frozenset({b"communicators"})


def find_kind(path: Path) -> Kind | None:
    """The kind of a file; None where no reader knows it."""
    head = _read_head(path)
    if head[:1] == _PICKLE:
        return "dumps"
    if head[:1] in (b"{", b"["):
        keys = list_outer_keys(head)
        if keys & _TRACE_KEYS or _EVENT.match(head):
            return "traces"
        if keys & _DUMP_KEYS:
            return "dumps"
        if keys & _RAS_KEYS:
            return "ras"
    if head.startswith(b"== process "):
        return "stacks"
    if looks_like_inspector(path):
        return "inspector"
    if b"Job summary" in head and b"Communicators..." in head:  # ncclras, as text
        return "ras"
    if looks_like_counters(path):
        return "counters"
    return "logs" if path.suffix in LOG_ENDINGS or path.name in _LOG_NAMES else None


def list_outer_keys(head: bytes) -> set[bytes]:
    """The keys of a JSON object itself, and none of the objects in it; the text may break off."""
    keys: set[bytes] = set()
    depth, last = 0, b""
    for found in _TOKEN.finditer(head):
        token = found.group()
        if token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
        elif token == b":" and depth == 1:
            keys.add(last)
        last = token[1:-1] if token[:1] == b'"' else b""
    return keys


def _read_head(path: Path) -> bytes:
    try:
        with path.open("rb") as handle:
            head = handle.read(_HEAD_BYTES)
    except OSError as error:
        raise BadFileError(f"{path}: cannot be read ({error.strerror})") from None
    if head.startswith(_GZIP):
        try:
            head = zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
        except zlib.error:
            return b""
    return head.lstrip()
