"""Protobuf messages for many rows at once: each byte position is a column, so numpy encodes all rows together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64] | int
Column = tuple[NDArray[np.uint8] | int, NDArray[np.bool_] | bool]
Columns = list[Column]
"""The bytes of every row in order; each column says its byte and in which rows that byte is there."""

VARINT, FIXED64, DELIMITED = 0, 1, 2  # wire types, protobuf.dev/programming-guides/encoding


def encode_varint(values: Integers) -> Columns:
    """One varint a row; a negative value takes ten bytes, as protobuf's int64 does."""
    if isinstance(values, int):
        return _encode_constant(values)
    rest = values.astype(np.uint64)
    num_columns = max(1, -(-int(rest.max(initial=0)).bit_length() // 7))
    columns: Columns = []
    present: NDArray[np.bool_] | bool = True
    for _ in range(num_columns):
        low = (rest & np.uint64(0x7F)).astype(np.uint8)
        rest = rest >> np.uint64(7)
        more = rest > 0
        columns.append((low | np.left_shift(more, 7, dtype=np.uint8), present))
        present = more
    return columns


def encode_tag(number: Integers, wire_type: int) -> Columns:
    """A field's number and wire type."""
    return encode_varint(number << 3 | wire_type)


def encode_integer(number: int, values: Integers) -> Columns:
    """An integer, boolean or enum field."""
    return encode_tag(number, VARINT) + encode_varint(values)


def encode_fixed64(number: Integers, values: NDArray[np.int64]) -> Columns:
    """A field of eight bytes: a fixed64, or a double by its bits."""
    matrix = values.astype("<i8").view(np.uint8).reshape(len(values), 8)
    return encode_tag(number, FIXED64) + [(matrix[:, position], True) for position in range(8)]


def encode_text(number: int, num_bytes: Integers) -> Columns:
    """The head of a string field whose bytes follow as the row's tail."""
    return encode_tag(number, DELIMITED) + encode_varint(num_bytes)


def encode_message(number: int, body: Columns, tail_bytes: Integers = 0) -> Columns:
    """A field that holds the message `body`; `tail_bytes` more will follow the row and belong to it."""
    return encode_text(number, num_bytes(body) + tail_bytes) + body


def keep_where(mask: NDArray[np.bool_], columns: Columns) -> Columns:
    """The same bytes, only in the rows of `mask`."""
    return [(byte, present & mask) for byte, present in columns]


def num_bytes(columns: Columns) -> Integers:
    """How long each row is."""
    total: Integers = 0
    for _, present in columns:
        total = total + present
    return total


def pack_rows(columns: Columns, num_rows: int, tail: bytes = b"", tail_bytes: Integers = 0) -> bytes:
    """The rows one after the other, each followed by its own `tail_bytes` of `tail`."""
    byte = np.empty((num_rows, len(columns)), dtype=np.uint8)
    present = np.empty((num_rows, len(columns)), dtype=np.bool_)
    for position, (values, where) in enumerate(columns):
        byte[:, position] = values
        present[:, position] = where
    rows = byte[present]
    if not tail:
        return rows.tobytes()
    lengths = np.empty((num_rows, 2), dtype=np.int64)
    lengths[:, 0], lengths[:, 1] = present.sum(axis=1), tail_bytes
    is_tail = np.repeat(np.tile([False, True], num_rows), lengths.ravel())
    out = np.empty(len(is_tail), dtype=np.uint8)
    out[~is_tail] = rows
    out[is_tail] = np.frombuffer(tail, dtype=np.uint8)
    return out.tobytes()


def pack_delimited(number: int, content: bytes) -> bytes:
    """One field whose content is already encoded."""
    return pack_rows(encode_text(number, len(content)), 1) + content


def _encode_constant(value: int) -> Columns:
    columns: Columns = []
    while value > 0x7F:
        columns.append((value & 0x7F | 0x80, True))
        value >>= 7
    return [*columns, (value, True)]
