"""sFlow version 5 datagrams made for tests, byte by byte."""

from __future__ import annotations

import ipaddress
import struct


def sflow(*samples: bytes, agent: str = "10.9.9.9", sequence: int = 1, uptime_ms: int = 1000) -> bytes:
    address = ipaddress.ip_address(agent)
    head = struct.pack("!II", 5, 1 if address.version == 4 else 2) + address.packed
    return head + struct.pack("!IIII", 0, sequence, uptime_ms, len(samples)) + b"".join(samples)


def record(tag: int, body: bytes) -> bytes:
    padded = body + bytes(-len(body) % 4)
    return struct.pack("!II", tag, len(padded)) + padded


def raw_header(frame: bytes, kept: int = 128, protocol: int = 1, stripped: int = 4) -> bytes:
    head = frame[:kept]
    body = struct.pack("!IIII", protocol, len(frame) + stripped, stripped, len(head)) + head
    return record(1, body)


def flow_sample(
    *records: bytes, rate: int = 1000, sequence: int = 1, drops: int = 0, port: int = 7, expanded: bool = False
) -> bytes:
    counts = struct.pack("!III", rate, rate * sequence, drops)
    if expanded:
        body = struct.pack("!III", sequence, 0, port) + counts + struct.pack("!IIIII", 0, port, 0, 9, len(records))
    else:
        body = struct.pack("!II", sequence, port) + counts + struct.pack("!III", port, 9, len(records))
    body += b"".join(records)
    return struct.pack("!II", 3 if expanded else 1, len(body)) + body


def counter_sample(
    port: int,
    speed: int = 400_000_000_000,
    out_octets: int = 0,
    errors: int = 0,
    sequence: int = 1,
    expanded: bool = False,
) -> bytes:
    generic = struct.pack("!IIQII", port, 6, speed, 1, 3)
    generic += struct.pack("!QIIIIII", 0, 1, 2, 3, 4, errors, 5)
    generic += struct.pack("!QIIIIII", out_octets, 1, 2, 3, 6, 0, 0)
    head = struct.pack("!III", sequence, 0, port) if expanded else struct.pack("!II", sequence, port)
    body = head + struct.pack("!I", 2) + record(2, bytes(52)) + record(1, generic)
    return struct.pack("!II", 4 if expanded else 2, len(body)) + body
