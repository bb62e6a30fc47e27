"""IPFIX and NetFlow datagrams made for tests, byte by byte from the RFCs."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence

NTP_EPOCH_S = 2_208_988_800

# (element, length) or (element, length, enterprise)
BASIC = ((8, 4), (12, 4), (7, 2), (11, 2), (4, 1), (1, 8), (2, 8), (152, 8), (153, 8))


def template_set(templates: dict[int, Sequence[tuple[int, ...]]], set_id: int = 2) -> bytes:
    """A template set; set id 2 is IPFIX's, 0 is NetFlow v9's."""
    body = b""
    for template_id, fields in templates.items():
        body += struct.pack("!HH", template_id, len(fields)) + b"".join(field_spec(*f) for f in fields)
    return a_set(set_id, body)


def field_spec(element: int, length: int, enterprise: int | None = None) -> bytes:
    if enterprise is None:
        return struct.pack("!HH", element, length)
    return struct.pack("!HHI", element | 0x8000, length, enterprise)


def options_template_set(
    template_id: int, scope: Sequence[tuple[int, ...]], fields: Sequence[tuple[int, ...]]
) -> bytes:
    """An IPFIX options template set."""
    both = [*scope, *fields]
    head = struct.pack("!HHH", template_id, len(both), len(scope))
    return a_set(3, head + b"".join(field_spec(*f) for f in both))


def v9_options_template_set(
    template_id: int, scope: Sequence[tuple[int, int]], fields: Sequence[tuple[int, int]]
) -> bytes:
    head = struct.pack("!HHH", template_id, 4 * len(scope), 4 * len(fields))
    return a_set(1, head + b"".join(field_spec(*f) for f in [*scope, *fields]))


def a_set(set_id: int, body: bytes, pad: bool = True) -> bytes:
    body += bytes(-len(body) % 4) if pad else b""
    return struct.pack("!HH", set_id, 4 + len(body)) + body


def ipfix(*sets: bytes, sequence: int = 0, domain: int = 1, export_s: int = 1_700_000_000) -> bytes:
    body = b"".join(sets)
    return struct.pack("!HHIII", 10, 16 + len(body), export_s, sequence, domain) + body


def v9(
    *sets: bytes, sequence: int = 0, domain: int = 1, unix_s: int = 1_700_000_000, uptime_ms: int = 3_600_000
) -> bytes:
    body = b"".join(sets)
    return struct.pack("!HHIIII", 9, len(sets), uptime_ms, unix_s, sequence, domain) + body


def v5(records: Sequence[bytes], sequence: int = 0, sampling: int = 0, unix_s: int = 1_700_000_000, unix_ns: int = 500_000_000,
       uptime_ms: int = 3_600_000) -> bytes:  # fmt: skip
    head = struct.pack("!HHIIIIHH", 5, len(records), uptime_ms, unix_s, unix_ns, sequence, 0, sampling)
    return head + b"".join(records)


def v5_record(src: str, dst: str, size: int, packets: int, first_ms: int, last_ms: int) -> bytes:
    return (
        packed(src)
        + packed(dst)
        + bytes(8)
        + struct.pack("!IIIIHH", packets, size, first_ms, last_ms, 1000, 4791)
        + bytes(12)
    )


def packed(address: str) -> bytes:
    return ipaddress.ip_address(address).packed


def basic_record(src: str, dst: str, size: int, start_ms: int, end_ms: int, packets: int = 1) -> bytes:
    """One record of the BASIC template."""
    return packed(src) + packed(dst) + struct.pack("!HHBQQQQ", 49152, 4791, 17, size, packets, start_ms, end_ms)


def ntp(ns: int) -> int:
    seconds, rest = divmod(ns, 10**9)
    return ((seconds + NTP_EPOCH_S) << 32) | ((rest << 32) // 10**9)
