"""Length-delimited protobuf messages: recognised by whether the first messages can be decoded."""

from __future__ import annotations

_MESSAGES = 3  # messages that must parse before a file counts as this format
_MOST_BYTES = 64 << 10  # of one flow message


def is_delimited_protobuf(head: bytes) -> bool:
    """Whether the bytes begin with protobuf messages that contain addresses, each after its length."""
    at = 0
    for number in range(_MESSAGES):
        if number and at >= len(head):
            return True
        length, at = read_varint(head, at)
        if length < 8 or length > _MOST_BYTES or at + length > len(head) or not is_flow_message(head[at : at + length]):
            return False
        at += length
    return True


def is_flow_message(message: bytes) -> bool:
    """Whether every field parses, and two of them are addresses (4 or 16 bytes)."""
    at = addresses = 0
    while at < len(message):
        key, at = read_varint(message, at)
        kind = key & 7
        if key >> 3 == 0 or kind in (3, 4, 6, 7):
            return False
        if kind == 0:
            value, at = read_varint(message, at)
            if value < 0:
                return False
        elif kind == 2:
            length, at = read_varint(message, at)
            if length < 0:
                return False
            addresses += length in (4, 16)
            at += length
        else:
            at += 8 if kind == 1 else 4
    return at == len(message) and addresses >= 2


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint at a position and where it ends; -1 if there is none."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            return -1, len(data) + 1
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    return -1, len(data) + 1
