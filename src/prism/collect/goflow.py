"""goflow2's protobuf flow messages (pb/flow.proto, versions 1 and 2), from files and topics, by compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.collect.address_text import MAPPED, write_addresses
from prism.collect.counts import SourceCounts
from prism.collect.packets import Bytes
from prism.collect.sampled_packets import SAMPLED
from prism.kernel import njit

_MESSAGE = np.dtype(
    [
        ("received_ns", "i8"), ("start_ns", "i8"), ("end_ns", "i8"), ("received_s", "i8"), ("start_s", "i8"),
        ("end_s", "i8"), ("start_ms", "i8"), ("end_ms", "i8"), ("kind", "i8"), ("rate", "i8"), ("bytes", "i8"),
        ("packets", "i8"), ("src_port", "i8"), ("dst_port", "i8"),
        ("src_high", "u8"), ("src_low", "u8"), ("dst_high", "u8"), ("dst_low", "u8"), ("by_high", "u8"),
        ("by_low", "u8"), ("addresses", "i8"),
    ]
)  # fmt: skip
_SFLOW = 1  # FlowType.SFLOW_5
_MOST_RATE = 2**24
_MOST_BYTES = 2**50


def cut_delimited(data: bytes) -> tuple[NDArray[np.int64], int]:
    """Where each length-delimited message begins and ends, and how many bytes at the end are no whole message."""
    view = np.frombuffer(data, np.uint8)
    places = np.zeros((view.size // 8 + 1, 2), np.int64)
    n, at = _cut(view, places)
    return places[:n], view.size - at


def decode_messages(data: bytes, places: NDArray[np.int64], counts: SourceCounts) -> pl.DataFrame:
    """FLOWS of messages that lie at `places`; records of sFlow are single packets, at one moment."""
    view = np.frombuffer(data, np.uint8)
    table = np.zeros(len(places), _MESSAGE)
    whole = np.zeros(len(places), np.bool_)
    _decode(view, places, table, whole)
    counts.malformed["messages that are no protobuf flow"] += int((~whole).sum())
    table = table[whole]
    is_old = table["received_ns"] == 0
    start = _first([table["start_ns"], table["start_ms"] * 10**6, np.where(is_old, table["start_s"], 0) * 10**9])
    start = _first([start, table["received_ns"], table["received_s"] * 10**9])
    end = _first([table["end_ns"], table["end_ms"] * 10**6, np.where(is_old, table["end_s"], 0) * 10**9, start])
    sane = (start > 0) & (table["addresses"] >= 2) & (table["bytes"] < _MOST_BYTES) & (table["bytes"] >= 0)
    counts.dropped["messages without addresses, time or size"] += int((~sane).sum())
    table, start, end = table[sane], start[sane], np.maximum(end, start)[sane]
    rate = np.clip(table["rate"], 1, _MOST_RATE)
    sampled = table["kind"] == _SFLOW
    frame = pl.DataFrame(
        {
            "start_ns": start,
            "end_ns": np.where(sampled, start, end),
            "src": _addresses(table, "src"),
            "dst": _addresses(table, "dst"),
            "bytes": table["bytes"] * rate,
            "src_port": np.clip(table["src_port"], 0, 65535),
            "dst_port": np.clip(table["dst_port"], 0, 65535),
            "qp": pl.Series([None], dtype=pl.Int64).new_from_index(0, len(table)),
            "packets": np.where(sampled, 1, np.clip(table["packets"], 0, _MOST_BYTES)) * rate,
            "sampling_rate": rate,
            "exporter": _addresses(table, "by"),
        }
    )
    return frame.cast(dict(SAMPLED))  # type: ignore[arg-type]


def _first(candidates: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The first of several values that is not zero."""
    found = candidates[0]
    for other in candidates[1:]:
        found = np.where(found > 0, found, other)
    return found


def _addresses(table: NDArray[np.void], name: str) -> pl.Series:
    return write_addresses(np.ascontiguousarray(table[f"{name}_high"]), np.ascontiguousarray(table[f"{name}_low"]))


@njit(cache=True, nogil=True)
def _varint(data: Bytes, at: int, end: int) -> tuple[Any, Any]:
    """A number and where it ends; the end is -1 where it breaks off."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(70):
        byte = data[at]
        at += 1
        value |= np.uint64(byte & 0x7F) << shift
        if byte < 0x80:
            return np.int64(value), np.int64(at)
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@njit(cache=True, nogil=True)
def _cut(data: Bytes, places: NDArray[np.int64]) -> tuple[int, Any]:
    n = 0
    at = np.int64(0)
    while at < data.size and n < len(places):
        length, body = _varint(data, at, data.size)
        if body < 0 or length <= 0 or body + length > data.size:
            break
        places[n, 0], places[n, 1] = body, body + length
        n += 1
        at = body + length
    return n, at


@njit(cache=True, nogil=True)
def _word(data: Bytes, at: int) -> Any:
    value = np.uint64(0)
    for i in range(8):
        value = (value << np.uint64(8)) | np.uint64(data[at + i])
    return value


@njit(cache=True, nogil=True)
def _read_address(data: Bytes, at: int, length: int) -> tuple[Any, Any, bool]:
    if length == 16:
        return _word(data, at), _word(data, at + 8), True
    if length == 4:
        low = MAPPED
        for i in range(4):
            low |= np.uint64(data[at + i]) << np.uint64(24 - 8 * i)
        return np.uint64(0), low, True
    return np.uint64(0), np.uint64(0), False


@njit(cache=True, nogil=True)
def _put_number(out: Any, field: int, value: int) -> None:
    if field == 1:
        out.kind = value
    elif field == 3:
        out.rate = value
    elif field == 9:
        out.bytes = value
    elif field == 10:
        out.packets = value
    elif field == 21:
        out.src_port = value
    elif field == 22:
        out.dst_port = value
    elif field == 110:
        out.received_ns = value
    elif field == 111:
        out.start_ns = value
    elif field == 112:
        out.end_ns = value
    elif field == 2:
        out.received_s = value
    elif field == 38:
        out.start_s = value
    elif field == 5:
        out.end_s = value
    elif field == 63:
        out.start_ms = value
    elif field == 64:
        out.end_ms = value


@njit(cache=True, nogil=True)
def _decode_one(data: Bytes, at: int, end: int, out: Any) -> bool:
    while at < end:
        key, at = _varint(data, at, end)
        if at < 0 or key < 8:
            return False
        field, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at, end)
            if at < 0:
                return False
            _put_number(out, field, value)
        elif kind == 2:
            length, at = _varint(data, at, end)
            if at < 0 or length < 0 or at + length > end:
                return False
            if field == 6 or field == 7 or field == 11:
                high, low, known = _read_address(data, at, length)
                if field == 6:
                    out.src_high, out.src_low = high, low
                elif field == 7:
                    out.dst_high, out.dst_low = high, low
                else:
                    out.by_high, out.by_low = high, low
                if known and field != 11:
                    out.addresses += 1
            at += length
        elif kind == 1:
            at += 8
        elif kind == 5:
            at += 4
        else:
            return False
    return at == end


@njit(cache=True, nogil=True)
def _decode(data: Bytes, places: NDArray[np.int64], table: Any, whole: NDArray[np.bool_]) -> None:
    for i in range(len(places)):
        whole[i] = _decode_one(data, places[i, 0], places[i, 1], table[i])
