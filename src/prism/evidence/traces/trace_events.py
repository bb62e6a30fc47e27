"""Complete events of a Chrome trace, in pieces: a trace of gigabytes is never in memory as a whole.

A compiled kernel walks the bytes once, follows quotes and braces, and copies each complete event ("ph": "X") to a line
of its own; the lines are then parsed by Polars. Flow arrows and Python stack frames, often most of a file, are dropped
by the kernel.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numba
import numpy as np
import polars as pl

from prism.errors import BadFileError
from prism.records.shape import columns

_PIECE_BYTES = 16 << 20
_MOST_HEAD_BYTES = 64 << 20  # Properties of devices and groups stand before the events; 8,192 ranks fit well.
_MOST_EVENT_BYTES = 64 << 20
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_ARGS = pl.Struct(
    {
        "stream": pl.Int64,
        "correlation": pl.Int64,
        "bytes": pl.Int64,
        "Collective name": pl.String,
        "In msg nelems": pl.Int64,
        "Out msg nelems": pl.Int64,
        "Group size": pl.Int64,
        "dtype": pl.String,
        "Process Group Name": pl.String,
        "Process Group Ranks": pl.String,
        "Input Dims": pl.String,
        "Input type": pl.String,
    }
)
_EVENT = columns(
    {
        "cat": pl.String,
        "name": pl.String,
        "ts": pl.Float64,
        "dur": pl.Float64,
        "pid": pl.String,
        "tid": pl.String,
        "args": _ARGS,
    }
)


@dataclass(slots=True)
class TraceFile:
    """One trace file that is read in pieces; `properties` and `is_whole` are known once all events were taken."""

    path: Path
    properties: dict[str, Any] = field(default_factory=dict)
    is_whole: bool = True  # False: the file ends before its list of events does

    def read_events(self) -> Iterator[pl.DataFrame]:
        """Complete events, a frame per piece of the file."""
        try:
            with self.path.open("rb") as handle:
                yield from self._walk(self._read_pieces(handle))
        except OSError as error:
            raise BadFileError(f"{self.path}: cannot be read ({error.strerror or error})") from None

    def _walk(self, pieces: Iterator[bytes]) -> Iterator[pl.DataFrame]:
        head, kept = _find_list(pieces, self.path)
        tail, ended = b"", False
        while not ended:
            lines, used, ended = _cut(kept)
            if lines:
                yield _parse(lines, self.path)
            kept = kept[used:]
            if ended:
                tail = kept + _take(pieces, _MOST_HEAD_BYTES)
            elif len(kept) > _MOST_EVENT_BYTES:
                raise BadFileError(f"{self.path}: one event is larger than 64 MiB; this is no profiler trace")
            elif more := next(pieces, b""):
                kept += more
            else:
                self.is_whole = False
                break
        self.properties = _read_properties(head, tail)

    def _read_pieces(self, handle: IO[bytes]) -> Iterator[bytes]:
        """The file in pieces, unpacked; a packed one that breaks off ends there."""
        packed = handle.peek(2)[:2] == b"\x1f\x8b"  # type: ignore[attr-defined]
        if not packed:
            while piece := handle.read(_PIECE_BYTES):
                yield piece
            return
        unpacker = zlib.decompressobj(wbits=31)
        waiting = b""
        try:
            while data := waiting or handle.read(_PIECE_BYTES // 8):
                piece = unpacker.decompress(data, _PIECE_BYTES)
                waiting = unpacker.unconsumed_tail
                if unpacker.eof:  # a file may be several packed ones behind each other
                    waiting, unpacker = unpacker.unused_data.lstrip(b"\0"), zlib.decompressobj(wbits=31)
                if piece:
                    yield piece
        except zlib.error:
            self.is_whole = False


def _take(pieces: Iterator[bytes], most_bytes: int) -> bytes:
    taken = b""
    for piece in pieces:
        taken += piece
        if len(taken) > most_bytes:
            break
    return taken


def _find_list(pieces: Iterator[bytes], path: Path) -> tuple[bytes, bytes]:
    """The bytes before the list of events, and those after its opening bracket."""
    head = next(pieces, b"")
    if head.lstrip()[:1] == b"[":  # Chrome also reads a bare list of events
        return b"", head.lstrip()[1:]
    while True:
        found = _LIST.search(head)
        if found:
            return head[: found.start()], head[found.end() :]
        more = next(pieces, b"")
        if not more or len(head) > _MOST_HEAD_BYTES:
            raise BadFileError(f"{path}: holds no list 'traceEvents', so it is no trace of PyTorch's profiler")
        head += more


def _read_properties(head: bytes, tail: bytes) -> dict[str, Any]:
    """What the file says beside its events; the part after the list is lost where the file breaks off."""
    for text in (head + b'"traceEvents":[]' + tail, head.rstrip().rstrip(b",") + b"}"):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            continue
        return found if isinstance(found, dict) else {}
    return {}


def _parse(lines: bytes, path: Path) -> pl.DataFrame:
    try:
        return pl.read_ndjson(lines, schema=_EVENT, ignore_errors=True)
    except pl.exceptions.PolarsError as error:
        raise BadFileError(f"{path}: an event is not JSON ({str(error)[:100]}); record the trace again") from None


def _cut(piece: bytes) -> tuple[bytes, int, bool]:
    """Lines of the complete events in a piece, how many of its bytes are used up, and whether the list ended."""
    source = np.frombuffer(piece, np.uint8)
    lines = np.empty(len(source) * 3 // 2 + 2, np.uint8)  # the shortest event, {}, makes a line of three bytes
    size, used, ended = _cut_events(source, lines)
    return lines[:size].tobytes(), int(used), bool(ended)


@numba.njit(cache=True, nogil=True)
def _cut_events(source, lines):  # type: ignore[no-untyped-def]
    """Copy complete events to lines; returns the bytes written, the bytes used and whether the list ended."""
    depth, size, begin, used = 0, 0, 0, 0
    in_text, escaped, is_value, keep = False, False, False, True
    text_begin, key = 0, 0  # key 1: "ph", key 2: "cat"
    for i in range(len(source)):
        byte = source[i]
        if in_text:
            if escaped:
                escaped = False
            elif byte == 92:  # backslash
                escaped = True
            elif byte == 34:
                in_text = False
                if depth == 1:
                    length = i - text_begin
                    first = source[text_begin]
                    if not is_value:
                        key = 0
                        if length == 2 and first == 112 and source[text_begin + 1] == 104:
                            key = 1
                        elif length == 3 and first == 99 and source[text_begin + 2] == 116:
                            key = 2
                    elif (key == 1 and not (length == 1 and first == 88)) or (
                        key == 2 and length == 15 and first == 112  # python_function
                    ):
                        keep = False
        elif byte == 34:
            in_text = True
            text_begin = i + 1
        elif byte == 58:  # colon
            if depth == 1:
                is_value = True
        elif byte == 44:  # comma
            if depth == 1:
                is_value = False
            elif depth == 0:
                used = i + 1
        elif byte == 123 or byte == 91:
            if depth == 0:
                begin, keep, is_value, key = i, True, False, 0
            depth += 1
        elif byte == 125 or byte == 93:
            if depth == 0:
                return size, i + 1, True
            depth -= 1
            if depth == 0:
                used = i + 1
                if keep:
                    for j in range(begin, i + 1):
                        # A line break stands only between values, as JSON writes it as \n inside text.
                        lines[size] = 32 if source[j] == 10 or source[j] == 13 else source[j]
                        size += 1
                    lines[size] = 10
                    size += 1
    return size, used, False
