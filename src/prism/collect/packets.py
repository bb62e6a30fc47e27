"""Packets dissected: from captured bytes to addresses, ports, payload, and the transport header of RoCEv2.

One pass of compiled code over any number of packets; nothing here allocates or branches to Python per packet.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from prism.kernel import njit

Bytes = NDArray[np.uint8]
Packets = NDArray[np.void]

INDEX = np.dtype(
    [("offset", "i8"), ("time_ns", "i8"), ("captured", "u4"), ("length", "u4"), ("link", "u4"), ("_", "u4")]
)
"""Where a packet lies in a buffer, how much of it was kept, how long it was, and its link type."""

PACKET = np.dtype(
    [
        ("time_ns", "i8"), ("src_high", "u8"), ("src_low", "u8"), ("dst_high", "u8"), ("dst_low", "u8"),
        ("payload", "u4"), ("qp", "u4"), ("psn", "u4"), ("dma_bytes", "u4"),
        ("src_port", "u2"), ("dst_port", "u2"), ("protocol", "u1"), ("opcode", "u1"), ("kind", "u1"), ("nak", "u1"),
    ],
    align=True,
)  # fmt: skip

SKIPPED, PLAIN, ROCE, BROKEN, CUT = 0, 1, 2, 3, 4
"""Kinds: not IP or nothing carried; TCP, UDP or other IP; RoCEv2; inconsistent headers; headers that were not kept."""

# Link types (tcpdump.org/linktypes.html).
NULL, ETHERNET, RAW_BSD, RAW_OPENBSD, RAW, LOOP, SLL, IPV4, IPV6, SLL2 = 0, 1, 12, 14, 101, 108, 113, 228, 229, 276
LINK_TYPES = frozenset({NULL, ETHERNET, RAW_BSD, RAW_OPENBSD, RAW, LOOP, SLL, IPV4, IPV6, SLL2})

_ROCE_PORT, _VXLAN_PORT, _GENEVE_PORT = 4791, 4789, 6081
_BTH_BYTES, _ICRC_BYTES = 12, 4
_MAX_LAYERS = 3  # of tunnels and mirroring (ERSPAN) that are unwrapped


@njit(cache=True, nogil=True)
def _u16(data: Bytes, at: int) -> Any:
    return (np.int64(data[at]) << 8) | np.int64(data[at + 1])


@njit(cache=True, nogil=True)
def _u24(data: Bytes, at: int) -> Any:
    return (np.int64(data[at]) << 16) | (np.int64(data[at + 1]) << 8) | np.int64(data[at + 2])


@njit(cache=True, nogil=True)
def _u32(data: Bytes, at: int) -> Any:
    return (_u16(data, at) << 16) | _u16(data, at + 2)


@njit(cache=True, nogil=True)
def _u64(data: Bytes, at: int) -> Any:
    return (np.uint64(_u32(data, at)) << np.uint64(32)) | np.uint64(_u32(data, at + 4))


@njit(cache=True, nogil=True)
def _past_labels(data: Bytes, at: int, end: int) -> Any:
    """From the first MPLS label to the IP header; -1 where the labels carry something else."""
    while at + 5 <= end:
        is_last = data[at + 2] & 1
        at += 4
        if is_last:
            version = data[at] >> 4
            return at if version == 4 or version == 6 else -1
    return -1


@njit(cache=True, nogil=True)
def _past_ethertype(data: Bytes, at: int, end: int) -> Any:
    """From an ethertype field, over VLAN tags and MPLS labels, to the IP header; -1 where no IP follows."""
    while at + 2 <= end:
        kind = _u16(data, at)
        if kind == 0x0800 or kind == 0x86DD:
            return at + 2
        if kind == 0x8847 or kind == 0x8848:
            return _past_labels(data, at + 2, end)
        if kind != 0x8100 and kind != 0x88A8 and kind != 0x9100:
            return -1
        at += 4
    return -1


@njit(cache=True, nogil=True)
def _find_ip(data: Bytes, at: int, end: int, link: int) -> Any:
    """Where the IP header begins, -1 where there is none."""
    if link == ETHERNET:
        return _past_ethertype(data, at + 12, end)
    if link == SLL:
        return _past_ethertype(data, at + 14, end)
    if link == SLL2:
        if at + 2 > end:
            return -1
        kind = _u16(data, at)
        return at + 20 if kind == 0x0800 or kind == 0x86DD else -1
    if link in (NULL, LOOP):
        return at + 4
    return at


@njit(cache=True, nogil=True)
def _unwrap_gre(data: Bytes, at: int, end: int) -> tuple[Any, Any]:
    """What a GRE header carries: where it begins and its link type; link -1 where it is not decoded."""
    if at + 4 > end:
        return at, -1
    flags = _u16(data, at)
    kind = _u16(data, at + 2)
    body = at + 4
    if flags & 0x8000:
        body += 4
    if flags & 0x2000:
        body += 4
    if flags & 0x1000:
        body += 4
    if kind == 0x88BE:  # ERSPAN II has a sequence number and an 8-byte header, ERSPAN I neither
        return (body + 8 if flags & 0x1000 else body), ETHERNET
    if kind == 0x22EB:  # ERSPAN III; its last bit says that 8 more bytes follow
        if body + 12 > end:
            return body, -1
        return (body + 20 if data[body + 11] & 1 else body + 12), ETHERNET
    if kind == 0x6558:
        return body, ETHERNET
    if kind == 0x0800 or kind == 0x86DD:
        return body, RAW
    return body, -1


@njit(cache=True, nogil=True)
def _unwrap_udp(data: Bytes, at: int, end: int) -> tuple[Any, Any]:
    """What VXLAN or Geneve carries: where it begins and its link type; link -1 for all other UDP."""
    port = _u16(data, at + 2) if at + 16 <= end else 0
    if port == _VXLAN_PORT and data[at + 8] & 0x08:
        return at + 16, ETHERNET
    if port == _GENEVE_PORT and data[at + 8] >> 6 == 0:
        body = at + 16 + np.int64(data[at + 8] & 0x3F) * 4
        kind = _u16(data, at + 10)
        if kind == 0x6558:
            return body, ETHERNET
        if kind == 0x0800 or kind == 0x86DD:
            return body, RAW
    return at, -1


@njit(cache=True, nogil=True)
def _unwrap(data: Bytes, at: int, end: int, protocol: int) -> tuple[Any, Any]:
    """What the body of an IP packet carries if it is a tunnel's: where that begins and its link type; else link -1."""
    link = -1
    if protocol == 47:
        at, link = _unwrap_gre(data, at, end)
    elif protocol == 17:
        at, link = _unwrap_udp(data, at, end)
    elif protocol == 4 or protocol == 41:
        link = RAW
    return at, link


@njit(cache=True, nogil=True)
def _roce_header_bytes(opcode: int) -> int:
    """Bytes between the base header and the payload (InfiniBand specification, volume 1, section 9.2)."""
    kind = opcode & 0x1F
    extra = 0
    if kind == 0x06 or kind == 0x0A or kind == 0x0B or kind == 0x0C:
        extra += 16  # RETH
    if kind == 0x03 or kind == 0x05 or kind == 0x09 or kind == 0x0B or kind == 0x16 or kind == 0x17:
        extra += 4  # immediate data, or the key to invalidate
    if kind == 0x0D or kind == 0x0F or kind == 0x10 or kind == 0x11:
        extra += 4  # AETH
    transport = opcode >> 5
    if transport == 3:
        extra += 8  # DETH
    elif transport == 5:
        extra += 4  # XRCETH
    return extra


@njit(cache=True, nogil=True)
def _read_roce(data: Bytes, at: int, end: int, udp_bytes: int, out: Any) -> None:
    """The base transport header at `at`, and the RETH or AETH behind it."""
    if at + _BTH_BYTES > end:
        out.kind = BROKEN
        return
    opcode = np.int64(data[at])
    out.opcode = opcode
    out.qp = _u24(data, at + 5)
    out.psn = _u24(data, at + 9)
    pad = (np.int64(data[at + 1]) >> 4) & 3
    extra = _roce_header_bytes(opcode)
    out.payload = max(0, udp_bytes - 8 - _BTH_BYTES - extra - pad - _ICRC_BYTES)
    out.kind = ROCE
    kind = opcode & 0x1F
    behind = at + _BTH_BYTES + (4 if opcode >> 5 == 5 else 0)
    if kind == 0x06 or kind == 0x0A or kind == 0x0B:
        if behind + 16 > end:
            out.kind = BROKEN
            return
        out.dma_bytes = _u32(data, behind + 12)
    elif kind == 0x11 and behind + 1 <= end:
        out.nak = 1 if (data[behind] >> 5) == 3 else 0


@njit(cache=True, nogil=True)
def _read_transport(data: Bytes, at: int, end: int, protocol: int, ip_bytes: int, out: Any) -> None:
    """TCP, UDP or RoCEv2 at `at`; `ip_bytes` is what the IP header says follows it."""
    out.protocol = protocol
    out.kind = PLAIN
    if protocol == 17:
        if at + 8 > end or ip_bytes < 8:
            out.kind = BROKEN
            return
        out.src_port = _u16(data, at)
        out.dst_port = _u16(data, at + 2)
        if out.dst_port == _ROCE_PORT:
            _read_roce(data, at + 8, end, ip_bytes, out)
        else:
            out.payload = ip_bytes - 8
    elif protocol == 6:
        if at + 13 > end:
            out.kind = BROKEN
            return
        header = (np.int64(data[at + 12]) >> 4) * 4
        out.src_port = _u16(data, at)
        out.dst_port = _u16(data, at + 2)
        if header < 20 or header > ip_bytes:
            out.kind = BROKEN
            return
        out.payload = ip_bytes - header
        out.psn = _u32(data, at + 4)
    else:
        out.payload = ip_bytes
    if out.kind == PLAIN and out.payload == 0:
        out.kind = SKIPPED  # an acknowledgement alone


@njit(cache=True, nogil=True)
def _read_ipv4(data: Bytes, at: int, wire_end: int, out: Any) -> tuple[Any, Any, Any, bool]:
    """Where the body begins (-1: broken), its bytes, its protocol, and whether it is a later fragment."""
    header = np.int64(data[at] & 15) * 4
    total = _u16(data, at + 2)
    if total == 0:  # segmentation left to the card: the length did not fit or was not filled in
        total = wire_end - at
    if header < 20 or total < header:
        return np.int64(-1), np.int64(0), np.int64(0), False
    out.src_high = 0
    out.dst_high = 0
    out.src_low = np.uint64(0xFFFF_0000_0000) | np.uint64(_u32(data, at + 12))
    out.dst_low = np.uint64(0xFFFF_0000_0000) | np.uint64(_u32(data, at + 16))
    return at + header, total - header, np.int64(data[at + 9]), (_u16(data, at + 6) & 0x1FFF) != 0


@njit(cache=True, nogil=True)
def _read_ipv6(data: Bytes, at: int, end: int, wire_end: int, out: Any) -> tuple[Any, Any, Any, bool]:
    """Like `_read_ipv4`, over the extension headers."""
    if at + 40 > end:
        return np.int64(-1), np.int64(0), np.int64(0), False
    out.src_high = _u64(data, at + 8)
    out.src_low = _u64(data, at + 16)
    out.dst_high = _u64(data, at + 24)
    out.dst_low = _u64(data, at + 32)
    body = np.int64(at + 40)
    num_bytes = _u16(data, at + 4)
    if num_bytes == 0:
        num_bytes = max(0, wire_end - body)
    protocol = np.int64(data[at + 6])
    is_tail = False
    # Hop-by-hop, routing, fragment, destination options.
    while (protocol == 0 or protocol == 43 or protocol == 44 or protocol == 60) and body + 8 <= end:
        size = 8 if protocol == 44 else (np.int64(data[body + 1]) + 1) * 8
        is_tail = is_tail or (protocol == 44 and (_u16(data, body + 2) >> 3) != 0)
        protocol = np.int64(data[body])
        body += size
        num_bytes -= size
    return (body if num_bytes >= 0 else np.int64(-1)), num_bytes, protocol, is_tail


@njit(cache=True, nogil=True)
def _read_packet(data: Bytes, at: int, end: int, length: int, link: int, out: Any) -> None:
    """Dissect one packet that starts at `at` and was `length` bytes long on the wire."""
    wire_end = at + length
    for _ in range(_MAX_LAYERS):
        at = _find_ip(data, at, end, link)
        if at < 0:
            return
        version = data[at] >> 4 if at + 20 <= end else 0
        if version == 4:
            body, num_bytes, protocol, is_tail = _read_ipv4(data, at, wire_end, out)
        elif version == 6:
            body, num_bytes, protocol, is_tail = _read_ipv6(data, at, end, wire_end, out)
        else:
            break
        if body < 0:
            break
        if not is_tail:
            at, link = _unwrap(data, body, end, protocol)
            if link >= 0:
                continue
            if protocol != 47:
                _read_transport(data, body, end, protocol, num_bytes, out)
                return
        # A later fragment has no ports, and not every protocol inside GRE is decoded.
        out.protocol = protocol
        out.payload = num_bytes
        out.kind = PLAIN
        return
    out.kind = BROKEN


@njit(cache=True, nogil=True)
def dissect(data: Bytes, index: Packets, out: Packets) -> None:
    """Fill `out` (PACKET, zeroed) with one entry per entry of `index` (INDEX)."""
    for i in range(index.size):
        entry = index[i]
        packet = out[i]
        packet.time_ns = entry.time_ns
        start = entry.offset
        end = min(start + np.int64(entry.captured), np.int64(data.size))
        _read_packet(data, start, end, np.int64(entry.length), np.int64(entry.link), packet)
        if packet.kind == BROKEN and entry.captured < entry.length:
            packet.kind = CUT
