"""The message of one member of an all-to-all: the bytes for every other member, behind a table of their offsets."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

_OFFSET_BYTES = 8


def join_shares(shares: Sequence[bytes]) -> bytes:
    """One message with the bytes for each position."""
    return array("q", accumulate(map(len, shares), initial=0)).tobytes() + b"".join(shares)


def take_share(message: bytes, position: int, size: int) -> bytes:
    """The bytes for one position of a group of this size."""
    at = position * _OFFSET_BYTES
    begin, end = memoryview(message)[at : at + 2 * _OFFSET_BYTES].cast("q")
    head = (size + 1) * _OFFSET_BYTES
    return message[head + begin : head + end]
