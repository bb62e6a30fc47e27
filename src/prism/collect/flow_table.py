"""From packets to FLOWS: RoCEv2 messages put together packet by packet, other traffic cut into bursts at silences.

A table of open messages and bursts is kept in compiled code; who owns it (`assembler.py`) bounds its size. All
compiled functions that call each other stand in this file: numba's cache looks at the caller's file only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from prism.collect.packets import BROKEN, CUT, ROCE, SKIPPED, Packets
from prism.kernel import njit

Table = NDArray[np.void]
Counts = NDArray[np.int64]

ENTRY = np.dtype(
    [
        ("src_high", "u8"), ("src_low", "u8"), ("dst_high", "u8"), ("dst_low", "u8"), ("tag", "u8"),
        ("start_ns", "i8"), ("last_ns", "i8"), ("bytes", "i8"), ("packets", "i8"),
        ("first_psn", "i4"), ("next_psn", "i4"), ("dma_bytes", "i8"), ("mtu", "i4"), ("tail", "i4"),
        ("qp", "i8"), ("src_port", "u2"), ("dst_port", "u2"), ("used", "u1"), ("open", "u1"), ("headed", "u1"),
    ],
    align=True,
)  # fmt: skip

COMPLETE = np.dtype(
    [
        ("src_high", "u8"), ("src_low", "u8"), ("dst_high", "u8"), ("dst_low", "u8"),
        ("start_ns", "i8"), ("end_ns", "i8"), ("bytes", "i8"), ("packets", "i8"), ("qp", "i8"),
        ("src_port", "u2"), ("dst_port", "u2"),
    ],
    align=True,
)  # fmt: skip

# Indices of the counts array.
NUM_COUNTS = 12
(
    BROKEN_HEADERS,
    CUT_HEADERS,
    NOT_IP,
    ACKS,
    NAKS,
    CNPS,
    RETRANSMITTED,
    PSN_GAPS,
    CUT_MESSAGES,
    HEADLESS,
    REQUESTS,
    TCP_AGAIN,
) = range(NUM_COUNTS)

MESSAGE_IDLE_NS = 1_000_000_000  # A message whose next packet is missing for so long has lost its end.
_FAR_BACK = 16_384  # packets; a PSN further back than a retransmission reaches is a queue pair started anew
_PSN_MASK = 0xFFFFFF
_TCP = 6
_SEQUENCE_MASK = 0xFFFFFFFF
_TCP_FAR_BACK = 1 << 24  # bytes; what is further back belongs to a connection that uses the same ports anew

# What a packet is of its message, by the low five bits of its opcode: 0 none, then first, middle, last, only.
FIRST, MIDDLE, LAST, ONLY = 1, 2, 3, 4
ROLES = np.zeros(32, np.uint8)
ROLES[[0x00, 0x06, 0x0D]] = FIRST
ROLES[[0x01, 0x07, 0x0E]] = MIDDLE
ROLES[[0x02, 0x03, 0x08, 0x09, 0x0F, 0x16]] = LAST
ROLES[[0x04, 0x05, 0x0A, 0x0B, 0x10, 0x17]] = ONLY


@njit(cache=True, nogil=True)
def _slot(table: Table, p: Any, tag: int) -> Any:
    """Where the entry of a packet's flow is, or the free place for it."""
    mask = np.uint64(table.size - 1)
    h = p.src_low * np.uint64(0x9E3779B97F4A7C15) ^ p.dst_low * np.uint64(0xC2B2AE3D27D4EB4F)
    h ^= (p.src_high ^ (p.dst_high << np.uint64(1))) * np.uint64(0x165667B19E3779F9)
    h ^= tag * np.uint64(0xD6E8FEB86659FD93)
    h ^= h >> np.uint64(29)
    at = h & mask
    while table[at].used:
        e = table[at]
        if (
            e.tag == tag
            and e.src_low == p.src_low
            and e.dst_low == p.dst_low
            and e.src_high == p.src_high
            and e.dst_high == p.dst_high
        ):
            break
        at = (at + np.uint64(1)) & mask
    return np.int64(at)


@njit(cache=True, nogil=True)
def _emit(e: Any, size: int, out: Table, n: int) -> int:
    """Write a finished message or burst."""
    o = out[n]
    o.src_high, o.src_low, o.dst_high, o.dst_low = e.src_high, e.src_low, e.dst_high, e.dst_low
    o.start_ns, o.end_ns, o.bytes, o.packets = e.start_ns, e.last_ns, size, e.packets
    o.qp, o.src_port, o.dst_port = e.qp, e.src_port, e.dst_port
    e.open = 0
    return n + 1


@njit(cache=True, nogil=True)
def _message_bytes(e: Any, whole: bool) -> Any:
    """Bytes of a message: stated by a write, else from packet numbers, so that missing packets do not matter."""
    if e.dma_bytes > 0:
        return np.int64(e.dma_bytes)
    if whole and e.headed and e.mtu > 0:
        num = (np.int64(e.next_psn) - np.int64(e.first_psn)) & _PSN_MASK
        if num > 1:
            return (num - 1) * np.int64(e.mtu) + np.int64(e.tail)
    return np.int64(e.bytes)


@njit(cache=True, nogil=True)
def _begin(e: Any, p: Any, headed: int) -> None:
    e.start_ns = p.time_ns
    e.last_ns = p.time_ns
    e.bytes = 0
    e.packets = 0
    e.first_psn = np.int32(p.psn)
    e.dma_bytes = np.int64(p.dma_bytes)
    e.mtu = np.int32(p.payload)
    e.open = 1
    e.headed = headed


@njit(cache=True, nogil=True)
def _take_message_packet(e: Any, p: Any, role: int, out: Table, n: int, counts: Counts) -> int:
    """Add one RoCE data packet to its queue pair's message; returns how many are complete."""
    psn = np.int64(p.psn)
    if e.packets > 0 or e.open:
        behind = (np.int64(e.next_psn) - psn) & _PSN_MASK
        recent = p.time_ns - e.last_ns < MESSAGE_IDLE_NS
        if 0 < behind < _FAR_BACK and recent:
            counts[RETRANSMITTED] += 1
            e.last_ns = max(e.last_ns, p.time_ns)
            return n
        if behind != 0:
            counts[PSN_GAPS] += 1
    if e.open:
        past_end = (
            e.dma_bytes > 0
            and e.mtu > 0
            and ((psn - np.int64(e.first_psn)) & _PSN_MASK) * np.int64(e.mtu) >= e.dma_bytes
        )
        if role in (FIRST, ONLY) or past_end:
            counts[CUT_MESSAGES] += 1
            n = _emit(e, _message_bytes(e, False), out, n)
    if not e.open:
        headed = role in (FIRST, ONLY)
        if not headed:
            counts[HEADLESS] += 1
        _begin(e, p, 1 if headed else 0)
    e.last_ns = max(e.last_ns, p.time_ns)
    e.bytes += np.int64(p.payload)
    e.packets += 1
    e.tail = np.int32(p.payload)
    e.next_psn = np.int32((psn + 1) & _PSN_MASK)
    if role in (LAST, ONLY):
        n = _emit(e, _message_bytes(e, True), out, n)
    return n


@njit(cache=True, nogil=True)
def _count_new_bytes(e: Any, p: Any) -> Any:
    """What a TCP packet carries that was not seen before; `dma_bytes` of the entry are those that were passed over.

    Tools that make captures anonymous may write 0 for every sequence number: then nothing tells what was sent again.
    """
    payload, sequence = np.int64(p.payload), np.int64(p.psn)
    behind = (np.int64(e.next_psn) - sequence) & _SEQUENCE_MASK
    ahead = (sequence - np.int64(e.next_psn)) & _SEQUENCE_MASK
    if e.packets == 0 or sequence == 0 or min(behind, ahead) > _TCP_FAR_BACK:
        behind, ahead, e.dma_bytes = np.int64(0), np.int64(0), np.int64(0)
    if ahead <= behind:
        e.dma_bytes += ahead
        fresh = payload
    else:
        late = min(payload, behind, e.dma_bytes)
        e.dma_bytes -= late
        fresh = late + max(0, payload - behind)
    if payload > behind or ahead <= behind:
        e.next_psn = np.int32((sequence + payload) & _SEQUENCE_MASK)
    return fresh


@njit(cache=True, nogil=True)
def _take_burst_packet(e: Any, p: Any, gap_ns: int, longest_ns: int, out: Table, n: int, counts: Counts) -> int:
    """Add one packet to its burst, ending the burst before it where silence lies between."""
    payload = np.int64(p.payload)
    if p.protocol == _TCP:
        payload = _count_new_bytes(e, p)
        if payload == 0:
            counts[TCP_AGAIN] += 1
            return n
    if e.open and (p.time_ns - e.last_ns > gap_ns or p.time_ns - e.start_ns > longest_ns):
        n = _emit(e, e.bytes, out, n)
    if not e.open:
        missing = e.dma_bytes
        _begin(e, p, 1)
        e.dma_bytes = missing
    e.start_ns = min(e.start_ns, p.time_ns)
    e.last_ns = max(e.last_ns, p.time_ns)
    e.bytes += payload
    e.packets += 1
    return n


@njit(cache=True, nogil=True)
def _role_of(p: Any, roles: NDArray[np.uint8], counts: Counts) -> Any:
    """What a RoCE packet is of its message; 0, and counted, where it carries none."""
    opcode = np.int64(p.opcode)
    if opcode == 0x81:
        counts[CNPS] += 1
        return 0
    role = np.int64(roles[opcode & 0x1F]) if opcode < 0xC0 else 0
    if role == 0:
        if opcode & 0x1F == 0x11:
            counts[ACKS] += 1
            counts[NAKS] += np.int64(p.nak)
        else:
            counts[REQUESTS] += 1
    return role


@njit(cache=True, nogil=True)
def gather(
    packets: Packets, begin: int, table: Table, used: int, roles: NDArray[np.uint8], gap_ns: int, longest_ns: int,
    out: Table, counts: Counts,
) -> tuple[int, int, int]:  # fmt: skip
    """Take packets from `begin` until the table is half full; returns the next packet, flows written, entries used."""
    n = 0
    i = begin
    while i < packets.size and used * 2 < table.size:
        p = packets[i]
        i += 1
        if p.kind == BROKEN or p.kind == CUT:
            counts[BROKEN_HEADERS if p.kind == BROKEN else CUT_HEADERS] += 1
            continue
        if p.kind == SKIPPED:
            counts[NOT_IP] += 1
            continue
        role = 0
        if p.kind == ROCE:
            role = _role_of(p, roles, counts)
            if role == 0:
                continue
            is_answer = 0x0D <= (p.opcode & 0x1F) <= 0x10  # reads come back in numbers of their own
            tag = (np.uint64(2 if is_answer else 1) << np.uint64(60)) | np.uint64(p.qp)
        else:
            ports = (np.uint64(p.src_port) << np.uint64(16)) | np.uint64(p.dst_port)
            tag = (np.uint64(p.protocol) << np.uint64(32)) | ports
        at = _slot(table, p, tag)
        e = table[at]
        if not e.used:
            e.used = 1
            used += 1
            e.tag = tag
            e.src_high, e.src_low, e.dst_high, e.dst_low = p.src_high, p.src_low, p.dst_high, p.dst_low
            e.qp = np.int64(p.qp) if p.kind == ROCE else -1
        e.src_port, e.dst_port = p.src_port, p.dst_port
        if p.kind == ROCE:
            n = _take_message_packet(e, p, role, out, n, counts)
        else:
            n = _take_burst_packet(e, p, gap_ns, longest_ns, out, n, counts)
    return i, n, used


@njit(cache=True, nogil=True)
def sweep(table: Table, now_ns: int, gap_ns: int, everything: bool, out: Table, counts: Counts) -> int:
    """Write what has been silent for too long, or everything still open; returns how many."""
    n = 0
    for at in range(table.size):
        e = table[at]
        if not e.used or not e.open:
            continue
        is_message = e.qp >= 0
        if everything or now_ns - e.last_ns > (MESSAGE_IDLE_NS if is_message else gap_ns):
            if is_message:
                counts[CUT_MESSAGES] += 1
            n = _emit(e, _message_bytes(e, False) if is_message else e.bytes, out, n)
    return n


@njit(cache=True, nogil=True)
def rehash(old: Table, new: Table, keep_after_ns: int) -> int:
    """Move entries that are open or were active after a moment; returns how many."""
    used = 0
    for i in range(old.size):
        e = old[i]
        if e.used and (e.open or e.last_ns > keep_after_ns):
            new[_slot(new, e, e.tag)] = e
            used += 1
    return used
