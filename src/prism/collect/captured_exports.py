"""Captures of export datagrams: what exporters sent to a collector, saved by tcpdump, decoded as if it had arrived."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.collect.address_text import write_addresses
from prism.collect.collector import Collector, Sender
from prism.collect.packets import PACKET, Bytes, Packets, _find_ip, _u16, dissect
from prism.collect.pcap import Capture
from prism.collect.sflow import is_sflow
from prism.kernel import njit

_PORTS = frozenset({4739, 2055, 9995, 9996})  # where IPFIX and NetFlow are usually sent
_VERSIONS = frozenset({b"\0\5", b"\0\x09", b"\0\x0a"})
_HEADER_BYTES = {5: 24, 9: 20, 10: 16}  # of each version
_MOST = 0.8  # share of a capture's packets that must be exports
_FLUSH_BYTES = 16 << 20


def holds_exports(capture: Capture) -> bool:
    """Whether a capture is one of export datagrams, by its first packets."""
    first = next(capture.batches(), None)
    if first is None:
        return False
    data, index = first[0], first[1][:500]
    return sum(1 for _ in _find_exports(data, index)) >= _MOST * index.size


def read_exports(capture: Capture, collector: Collector) -> pl.DataFrame:
    """FLOWS of every export datagram of a capture, at the times it has."""
    frames: list[pl.DataFrame] = [collector.flush()]
    for data, index in capture.batches():
        for datagram, sender, when_ns in _find_exports(data, index):
            collector.feed(datagram, sender, when_ns)
            if collector.pending_bytes > _FLUSH_BYTES:
                frames.append(collector.flush())
        frames.append(collector.flush())
    return pl.concat(frames, how="diagonal")


def _find_exports(data: Bytes, index: Packets) -> Iterator[tuple[bytes, Sender, int]]:
    """The export datagrams among some packets, who sent each, and when."""
    packets = np.zeros(index.size, PACKET)
    dissect(data, index, packets)
    places = np.zeros((index.size, 2), np.int64)
    find_payloads(data, index, places)
    wanted = np.flatnonzero(places[:, 1] > 0)
    high, low = (np.ascontiguousarray(packets[c][wanted]) for c in ("src_high", "src_low"))
    senders = write_addresses(high, low).to_list()
    for sender, number in zip(senders, wanted.tolist(), strict=True):
        begin, size = places[number]
        datagram = bytes(data[begin : begin + size])
        if is_sflow(datagram) or _is_export(datagram, int(packets["dst_port"][number])):
            yield datagram, (sender, int(packets["src_port"][number])), int(index["time_ns"][number])


def _is_export(datagram: bytes, port: int) -> bool:
    """Whether a datagram is of IPFIX or NetFlow: by its port, or on other ports by the lengths that it states."""
    if datagram[:2] not in _VERSIONS:
        return False
    if port in _PORTS:
        return True
    version, stated = datagram[1], int.from_bytes(datagram[2:4], "big")
    if version == 5:
        return stated > 0 and len(datagram) == _HEADER_BYTES[5] + 48 * stated
    if version == 10 and stated != len(datagram):
        return False
    at = _HEADER_BYTES[version]
    if at >= len(datagram):
        return False
    while at + 4 <= len(datagram):
        size = int.from_bytes(datagram[at + 2 : at + 4], "big")
        if size < 4:
            return False
        at += size
    return at == len(datagram)


@njit(cache=True, nogil=True)
def find_payloads(data: Bytes, index: Packets, out: NDArray[np.int64]) -> None:
    """Where the payload of each whole UDP packet lies, and its length; 0 where there is none."""
    for i in range(index.size):
        entry = index[i]
        start = np.int64(entry.offset)
        end = start + np.int64(entry.captured)
        at = _find_ip(data, start, end, np.int64(entry.link))
        if at < 0 or at + 28 > end:
            continue
        if data[at] >> 4 == 4:
            protocol, body = data[at + 9], at + np.int64(data[at] & 15) * 4
            if _u16(data, at + 6) & 0x3FFF:
                continue  # a fragment
        else:
            protocol, body = data[at + 6], at + 40
        if protocol != 17 or body + 8 > end:
            continue
        size = _u16(data, body + 4) - 8
        if size > 0 and body + 8 + size <= end:
            out[i, 0], out[i, 1] = body + 8, size
