"""NetFlow version 9 (RFC 3954) and version 5 datagrams taken apart into the sets they carry."""

from __future__ import annotations

import struct
from collections.abc import Callable

from prism.collect.elements import Role
from prism.collect.export_session import ExportSession, MessageTime
from prism.collect.ipfix import iterate_sets
from prism.collect.record_sets import DataSet
from prism.collect.templates import Field, Template

V9, V5 = 9, 5
_V9_HEADER_BYTES, _V5_HEADER_BYTES, _V5_RECORD_BYTES = 20, 24, 48
_TEMPLATES, _OPTIONS_TEMPLATES, _FIRST_DATA = 0, 1, 256
_V5_LAYOUT: tuple[tuple[Role | None, int], ...] = (
    ("src4", 4), ("dst4", 4), (None, 8), ("packets", 4), ("bytes", 4), ("start_uptime", 4), ("end_uptime", 4),
    ("src_port", 2), ("dst_port", 2), (None, 12),
)  # fmt: skip
_V5_TEMPLATE = Template(V5, tuple(Field(role, length) for role, length in _V5_LAYOUT))

SessionOf = Callable[[int], ExportSession | None]


def read_netflow_v9(message: bytes, open_session: SessionOf) -> list[DataSet]:
    """Data sets of one version 9 datagram; its sequence counts datagrams."""
    if len(message) < _V9_HEADER_BYTES:
        raise ValueError("message shorter than its header")
    _, _, uptime_ms, unix_s, sequence, domain = struct.unpack_from("!HHIIII", message)
    session = open_session(domain)
    if session is None:
        return []
    session.follow_sequence(sequence, 1)
    session.follow_clock(unix_s * 10**9, uptime_ms, whole_seconds=True)
    time = MessageTime(export_ns=unix_s * 10**9, uptime_ms=uptime_ms)
    ready: list[DataSet] = []
    try:
        for set_id, body in iterate_sets(message, _V9_HEADER_BYTES):
            if set_id in (_TEMPLATES, _OPTIONS_TEMPLATES):
                ready += session.learn_templates(body, is_options=set_id == _OPTIONS_TEMPLATES, is_ipfix=False)
            elif set_id >= _FIRST_DATA:
                found, _ = session.take_data(set_id, body, time)
                if found is not None:
                    ready.append(found)
            else:
                session.counts.malformed["set id not in use"] += 1
    except ValueError as error:
        session.counts.malformed[str(error)] += 1
    return ready


def read_netflow_v5(message: bytes, open_session: SessionOf) -> list[DataSet]:
    """The records of one version 5 datagram; its sequence counts flows."""
    if len(message) < _V5_HEADER_BYTES:
        raise ValueError("message shorter than its header")
    _, count, uptime_ms, unix_s, unix_ns, sequence, engine, sampled = struct.unpack_from("!HHIIIIHH", message)
    whole = (len(message) - _V5_HEADER_BYTES) // _V5_RECORD_BYTES
    session = open_session(engine)
    if session is None:
        return []
    if count > whole:
        session.counts.malformed["version 5 records missing from their message"] += 1
    count = min(count, whole)
    session.follow_sequence(sequence, count)
    session.sampling.rate = max(1, sampled & 0x3FFF)
    export_ns = unix_s * 10**9 + min(unix_ns, 999_999_999)
    session.follow_clock(export_ns, uptime_ms, whole_seconds=False)
    if count == 0:
        return []
    body = message[_V5_HEADER_BYTES : _V5_HEADER_BYTES + count * _V5_RECORD_BYTES]
    return [session.make_set(_V5_TEMPLATE, body, MessageTime(export_ns=export_ns, uptime_ms=uptime_ms))]
