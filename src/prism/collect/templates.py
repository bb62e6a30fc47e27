"""Templates: the layout of data records that an exporter announces, and how to cut records out of bytes with one."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from prism.collect.elements import Role, role_of
from prism.kernel import njit

VARIABLE = 0xFFFF
MAX_FIELDS = 512
_ENTERPRISE_BIT = 0x8000
# How long a field must be to be read as this role; others are skipped, not misread.
_EXACT_BYTES: dict[str, int] = {
    "src4": 4, "dst4": 4, "exporter4": 4, "src6": 16, "dst6": 16, "probability": 8, "src_mac": 6, "dst_mac": 6,
    "station_mac": 6, "access_point_mac": 6, "frame": 0, "ip_packet": 0,
}  # fmt: skip

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a record; `length` is VARIABLE where every record states its own."""

    role: Role | None
    length: int


@lru_cache(maxsize=65_536)
def make_field(role: Role | None, length: int) -> Field:
    """A field, the same object for the same content: hostile templates then cost eight bytes a field."""
    return Field(role, length)


@dataclass(frozen=True)
class Template:
    """The fields of one kind of record, in order; an options template describes the exporter, not flows."""

    id: int
    fields: tuple[Field, ...]
    is_options: bool = False

    @cached_property
    def record_bytes(self) -> int | None:
        """Length of a record, None where it varies."""
        if any(f.length == VARIABLE for f in self.fields):
            return None
        return sum(f.length for f in self.fields)

    @cached_property
    def least_bytes(self) -> int:
        """Length of the shortest record there can be."""
        return sum(1 if f.length == VARIABLE else f.length for f in self.fields)

    @cached_property
    def lengths(self) -> Integers:
        """Length of every field, -1 where it varies."""
        return np.array([-1 if f.length == VARIABLE else f.length for f in self.fields], np.int64)

    @cached_property
    def positions(self) -> dict[Role, int]:
        """Where the field of each role stands; the first counts."""
        found: dict[Role, int] = {}
        for i, f in enumerate(self.fields):
            wanted = _EXACT_BYTES.get(f.role or "")
            readable = 1 <= f.length <= 8 if wanted is None else f.length == wanted
            if f.role is not None and readable:
                found.setdefault(f.role, i)
        return found

    @cached_property
    def section(self) -> int | None:
        """Which field holds the first bytes of a sampled packet; None if there is none."""
        return next((i for i, f in enumerate(self.fields) if f.role in ("frame", "ip_packet")), None)

    def cut(self, payload: bytes) -> Integers | None:
        """Offset of every whole record where lengths vary, None where all are alike; padding follows the last."""
        if self.record_bytes is not None:
            return None
        found: Integers = walk_records(np.frombuffer(payload, np.uint8), self.lengths, self.least_bytes)
        return found

    def field_offsets(self, data: Bytes, records: Integers) -> NDArray[np.int64]:
        """Offset and length of every field of every record, one row each."""
        found: NDArray[np.int64] = locate_fields(data, records, self.lengths)
        return found


def parse_templates(
    body: bytes, *, is_options: bool, is_ipfix: bool, faults: Counter[str]
) -> tuple[list[Template], list[int]]:
    """Templates of one template set, and the ids that it withdraws; a broken one ends the set and is counted."""
    made: list[Template] = []
    withdrawn: list[int] = []
    at = 0
    header = 6 if is_options else 4
    while at + 4 <= len(body):
        template_id, count = struct.unpack_from("!HH", body, at)
        if template_id == 0 and count == 0:
            break  # padding
        if is_ipfix and count == 0:
            withdrawn.append(template_id)
            at += 4
            continue
        if at + header > len(body):
            faults["template cut short"] += 1
            break
        num_scope = 0
        if is_options:
            second = struct.unpack_from("!H", body, at + 4)[0]
            # v9 states the bytes of scope and option fields, IPFIX the number of all fields and of scope fields.
            num_scope, count = (second, count) if is_ipfix else (count // 4, (count + second) // 4)
        fields, at = _parse_fields(body, at + header, count, num_scope, is_ipfix)
        fault = _fault_of(template_id, fields, count)
        if fault is not None or fields is None:
            faults[fault or "template cut short"] += 1
            break
        made.append(Template(template_id, fields, is_options))
    return made, withdrawn


def _parse_fields(
    body: bytes, at: int, count: int, num_scope: int, is_ipfix: bool
) -> tuple[tuple[Field, ...] | None, int]:
    fields: list[Field] = []
    if count > MAX_FIELDS:
        return None, at
    for i in range(count):
        if at + 4 > len(body):
            return None, at
        element, length = struct.unpack_from("!HH", body, at)
        at += 4
        enterprise = 0
        if is_ipfix and element & _ENTERPRISE_BIT:
            if at + 4 > len(body):
                return None, at
            enterprise = struct.unpack_from("!I", body, at)[0]
            element &= ~_ENTERPRISE_BIT
            at += 4
        # v9 numbers its scopes apart (1 is the whole system), so they are no elements.
        role = None if i < num_scope and not is_ipfix else role_of(element, enterprise)
        fields.append(make_field(role, length))
    return tuple(fields), at


def _fault_of(template_id: int, fields: tuple[Field, ...] | None, count: int) -> str | None:
    if template_id < 256:
        return "template id below 256"
    if count > MAX_FIELDS:
        return "template of too many fields"
    if fields is not None and sum(1 if f.length == VARIABLE else f.length for f in fields) == 0:
        return "template of empty records"
    return None


@njit(cache=True, nogil=True)
def walk_records(data: Bytes, lengths: Integers, least: int) -> Integers:
    """Offset of every whole record when some fields state their own length (RFC 7011, section 7)."""
    found = np.empty(data.size // least + 1, np.int64)
    n = 0
    at = np.int64(0)
    while at + least <= data.size:
        start = at
        for length in lengths:
            if length >= 0:
                at += length
                continue
            if at >= data.size:
                return found[:n]
            size = np.int64(data[at])
            at += 1
            if size == 255:
                if at + 2 > data.size:
                    return found[:n]
                size = (np.int64(data[at]) << 8) | np.int64(data[at + 1])
                at += 2
            at += size
        if at > data.size:
            break
        found[n] = start
        n += 1
    return found[:n]


@njit(cache=True, nogil=True)
def locate_fields(data: Bytes, records: Integers, lengths: Integers) -> NDArray[np.int64]:
    """Offset and length of every field of records that `walk_records` found whole."""
    out = np.empty((records.size, lengths.size, 2), np.int64)
    for r in range(records.size):
        at = records[r]
        for f in range(lengths.size):
            length = lengths[f]
            if length < 0:
                length = np.int64(data[at])
                at += 1
                if length == 255:
                    length = (np.int64(data[at]) << 8) | np.int64(data[at + 1])
                    at += 2
            out[r, f, 0], out[r, f, 1] = at, length
            at += length
    return out
