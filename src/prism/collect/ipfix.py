"""IPFIX messages (RFC 7011) taken apart into the sets they carry."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from prism.collect.export_session import ExportSession, MessageTime
from prism.collect.record_sets import DataSet

VERSION = 10
HEADER_BYTES = 16
_TEMPLATES, _OPTIONS_TEMPLATES, _FIRST_DATA = 2, 3, 256


def read_ipfix(message: bytes, open_session: Callable[[int], ExportSession | None]) -> list[DataSet]:
    """Data sets of one message; `open_session` gives the stream of an observation domain, or None to refuse it."""
    if len(message) < HEADER_BYTES:
        raise ValueError("message shorter than its header")
    _, length, export_s, sequence, domain = struct.unpack_from("!HHIII", message)
    if not HEADER_BYTES <= length <= len(message):
        raise ValueError("message length differs from its header")
    session = open_session(domain)
    if session is None:
        return []
    if length < len(message):
        session.counts.events["messages with bytes behind them"] += 1
        message = message[:length]
    time = MessageTime(export_ns=export_s * 10**9)
    ready: list[DataSet] = []
    total: int | None = 0
    try:
        for set_id, body in iterate_sets(message, HEADER_BYTES):
            if set_id in (_TEMPLATES, _OPTIONS_TEMPLATES):
                ready += session.learn_templates(body, is_options=set_id == _OPTIONS_TEMPLATES, is_ipfix=True)
            elif set_id >= _FIRST_DATA:
                found, num = session.take_data(set_id, body, time)
                # Records of an unknown template cannot be counted, so the next sequence number is not known either.
                total = None if total is None or num is None else total + num
                if found is not None:
                    ready.append(found)
            else:
                session.counts.malformed["set id not in use"] += 1
    except ValueError as error:
        session.counts.malformed[str(error)] += 1
        total = None
    session.follow_sequence(sequence, total)
    return ready


def iterate_sets(message: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """Id and body of every set from `at` on; raises ValueError where one overruns the message.

    Zeros behind the last set are padding: some exporters send datagrams of a fixed size.
    """
    while at + 4 <= len(message):
        set_id, length = struct.unpack_from("!HH", message, at)
        if length == 0 and not any(message[at:]):
            return
        if length < 4 or at + length > len(message):
            raise ValueError("set length overruns its message")
        yield set_id, message[at + 4 : at + length]
        at += length
