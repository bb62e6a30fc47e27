"""Capture files: pcap and pcapng of either byte order, compressed or not, walked by compiled code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prism.collect.packets import INDEX, LINK_TYPES, Bytes, Packets
from prism.errors import BadFileError
from prism.kernel import njit
from prism.records.compression import is_compressed, unpack

_MAX_PACKET_BYTES = 1 << 20  # Larger is damage: the largest segment a card is handed is 512 KiB.
_BATCH = 1 << 16  # packets handed on at once

# How a walk over records ended.
FULL, DONE, CUT, DAMAGED, SPECIAL = 0, 1, 2, 3, 4

_PCAP_TICKS = {b"\xa1\xb2\xc3\xd4": 1_000, b"\xa1\xb2\x3c\x4d": 1}
_PCAPNG = b"\x0a\x0d\x0d\x0a"


@dataclass(slots=True)
class Capture:
    """One capture file; `notes` says what was wrong with it once it has been read."""

    path: Path
    notes: list[str] = field(default_factory=list)
    _data: Bytes = field(default_factory=lambda: np.empty(0, np.uint8), repr=False)

    def __post_init__(self) -> None:
        try:
            size = self.path.stat().st_size
            self._data = np.memmap(self.path, np.uint8, "r") if size else self._data
        except OSError as error:
            raise BadFileError(f"{self.path}: cannot be read ({error.strerror}); check the path") from None
        if is_compressed(bytes(self._data[:8])):
            self._data = np.frombuffer(unpack(self.path), np.uint8)
        head = bytes(self._data[:4])
        if head != _PCAPNG and head not in _PCAP_TICKS and head[::-1] not in _PCAP_TICKS:
            raise BadFileError(f"{self.path} byte 0: not a pcap or pcapng file; write one with tcpdump -w")

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return int(self._data.size)

    def batches(self) -> Iterator[tuple[Bytes, Packets]]:
        """The file's bytes and where packets lie in them, some ten thousand at a time."""
        if bytes(self._data[:4]) == _PCAPNG:
            yield from self._pcapng_batches()
        else:
            yield from self._pcap_batches()

    def _pcap_batches(self) -> Iterator[tuple[Bytes, Packets]]:
        if self._data.size < 24:
            self.notes.append(f"{self.path}: cut inside its file header; nothing was read")
            return
        magic = bytes(self._data[:4])
        big = magic in _PCAP_TICKS
        tick_ns = _PCAP_TICKS[magic if big else magic[::-1]]
        link = int.from_bytes(bytes(self._data[20:24]), "big" if big else "little") & 0x0FFF_FFFF
        self._check_link(link)
        at, status = 24, FULL
        while status == FULL:
            index = np.zeros(_BATCH, INDEX)
            n, after, status = walk_pcap(self._data, at, big, tick_ns, link, index)
            if n:
                yield self._data, index[:n]
            at = after
        self._note_end(status, at)

    def _pcapng_batches(self) -> Iterator[tuple[Bytes, Packets]]:
        at, status, big = 0, SPECIAL, False
        links = np.zeros(0, np.int64)
        clocks = np.zeros((0, 3), np.int64)
        index = np.zeros(_BATCH, INDEX)
        n = 0
        while status in (FULL, SPECIAL):
            n, at, status = walk_pcapng(self._data, at, big, links, clocks, index, n)
            if status == SPECIAL:
                block = _read_block(self._data, at)
                if block is None:
                    status = CUT
                elif block.kind == "section":
                    big, links, clocks = block.big, links[:0], clocks[:0]
                    at += block.length
                else:
                    self._check_link(block.link)
                    links = np.append(links, block.link)
                    clocks = np.vstack([clocks, np.array([block.clock], np.int64)])
                    at += block.length
            if n and status != SPECIAL:
                yield self._data, index[:n]
                index, n = np.zeros(_BATCH, INDEX), 0
        self._note_end(status, at)

    def _check_link(self, link: int) -> None:
        if link not in LINK_TYPES:
            raise BadFileError(f"{self.path}: link type {link} is not read; capture on an Ethernet interface")

    def _note_end(self, status: int, at: int) -> None:
        if status == CUT:
            self.notes.append(f"{self.path} byte {at}: the file is cut inside a packet; what is before it was read")
        elif status == DAMAGED:
            self.notes.append(f"{self.path} byte {at}: not a packet record; what is before it was read")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """A pcapng block that changes how those after it are read."""

    kind: str  # section or interface
    length: int
    big: bool = False
    link: int = 0
    clock: tuple[int, int, int] = (0, 6, 0)  # resolution is binary (1) or decimal (0), its exponent, offset in seconds


def _read_block(data: Bytes, at: int) -> _Block | None:
    """A section header, or an interface description in the byte order of its section; None where it is cut."""
    head = bytes(data[at : at + 12])
    if len(head) < 12:
        return None
    if head[:4] == _PCAPNG:
        big = head[8:12] == b"\x1a\x2b\x3c\x4d"
        if not big and head[8:12] != b"\x4d\x3c\x2b\x1a":
            return None
        length = int.from_bytes(head[4:8], "big" if big else "little")
        return _Block(kind="section", length=length, big=big) if _whole(data, at, length, 28) else None
    order = "big" if head[:4] == b"\0\0\0\1" else "little"
    length = int.from_bytes(head[4:8], order)  # type: ignore[arg-type]
    if not _whole(data, at, length, 20):
        return None
    body = bytes(data[at + 8 : at + length - 4])
    link = int.from_bytes(body[:2], order)  # type: ignore[arg-type]
    return _Block(kind="interface", length=length, link=link, clock=_read_clock(body[8:], order))


def _whole(data: Bytes, at: int, length: int, least: int) -> bool:
    return least <= length <= data.size - at and length % 4 == 0


def _read_clock(options: bytes, order: str) -> tuple[int, int, int]:
    """if_tsresol and if_tsoffset among the options of an interface."""
    binary, exponent, offset_s = 0, 6, 0
    at = 0
    while at + 4 <= len(options):
        code = int.from_bytes(options[at : at + 2], order)  # type: ignore[arg-type]
        length = int.from_bytes(options[at + 2 : at + 4], order)  # type: ignore[arg-type]
        value = options[at + 4 : at + 4 + length]
        if code == 0:
            break
        if code == 9 and len(value) == 1:
            binary, exponent = value[0] >> 7, value[0] & 0x7F
        elif code == 14 and len(value) == 8:
            offset_s = int.from_bytes(value, order, signed=True)  # type: ignore[arg-type]
        at += 4 + (length + 3) // 4 * 4
    most = 63 if binary else 18
    return binary, min(exponent, most), offset_s if abs(offset_s) < 2**33 else 0


@njit(cache=True, nogil=True)
def _number(data: Bytes, at: int, big: bool) -> Any:
    a, b, c, d = np.int64(data[at]), np.int64(data[at + 1]), np.int64(data[at + 2]), np.int64(data[at + 3])
    if big:
        return (a << 24) | (b << 16) | (c << 8) | d
    return (d << 24) | (c << 16) | (b << 8) | a


@njit(cache=True, nogil=True)
def walk_pcap(data: Bytes, at: int, big: bool, tick_ns: int, link: int, index: Packets) -> tuple[int, int, int]:
    """Fill `index` from byte `at`; returns how many, where it stopped and why."""
    n = 0
    while n < index.size:
        if at == data.size:
            return n, at, DONE
        if at + 16 > data.size:
            return n, at, CUT
        captured = _number(data, at + 8, big)
        if captured > _MAX_PACKET_BYTES:
            return n, at, DAMAGED
        if at + 16 + captured > data.size:
            return n, at, CUT
        entry = index[n]
        entry.offset = at + 16
        entry.time_ns = _number(data, at, big) * 1_000_000_000 + _number(data, at + 4, big) * tick_ns
        entry.captured = captured
        entry.length = _number(data, at + 12, big)
        entry.link = link
        n += 1
        at += 16 + captured
    return n, at, FULL


@njit(cache=True, nogil=True)
def _to_ns(high: int, low: int, binary: int, exponent: int, offset_s: int) -> Any:
    """A pcapng timestamp in nanoseconds since 1970."""
    ticks = (np.uint64(high) << np.uint64(32)) | np.uint64(low)
    if binary:
        seconds = np.int64(ticks >> np.uint64(exponent))
        part = ticks & ((np.uint64(1) << np.uint64(exponent)) - np.uint64(1))
        if exponent > 32:
            part = part >> np.uint64(exponent - 32)
            exponent = 32
        return (seconds + offset_s) * 1_000_000_000 + np.int64((part * np.uint64(1_000_000_000)) >> np.uint64(exponent))
    per_second = np.uint64(1)
    for _ in range(exponent):
        per_second *= np.uint64(10)
    seconds = np.int64(ticks // per_second)
    part = ticks % per_second
    if exponent > 9:
        fraction = np.int64(part // (per_second // np.uint64(1_000_000_000)))
    else:
        fraction = np.int64(part * (np.uint64(1_000_000_000) // per_second))
    return (seconds + offset_s) * 1_000_000_000 + fraction


@njit(cache=True, nogil=True)
def walk_pcapng(
    data: Bytes, at: int, big: bool, links: NDArray[np.int64], clocks: NDArray[np.int64], index: Packets, n: int
) -> tuple[int, int, int]:
    """Like `walk_pcap`; stops with SPECIAL at a section header or an interface description."""
    while n < index.size:
        if at == data.size:
            return n, at, DONE
        if at + 12 > data.size:
            return n, at, CUT
        kind = _number(data, at, big)
        if kind == 0x0A0D0D0A or kind == 1:
            return n, at, SPECIAL
        length = _number(data, at + 4, big)
        if length < 12 or length % 4 != 0 or length > (64 << 20):
            return n, at, DAMAGED
        if at + length > data.size:
            return n, at, CUT
        if kind == 6 or kind == 2:  # enhanced packet, and the packet block it replaced
            if length < 32:
                return n, at, DAMAGED
            interface = _number(data, at + 8, big)
            if kind == 2:  # interface and drop counter share the word
                interface = interface >> 16 if big else interface & 0xFFFF
            captured = _number(data, at + 20, big)
            if captured > length - 32 or interface >= links.size:
                return n, at, DAMAGED
            entry = index[n]
            entry.offset = at + 28
            entry.time_ns = _to_ns(
                _number(data, at + 12, big),
                _number(data, at + 16, big),
                clocks[interface, 0],
                clocks[interface, 1],
                clocks[interface, 2],
            )
            entry.captured = captured
            entry.length = _number(data, at + 24, big)
            entry.link = links[interface]
            n += 1
        at += length
    return n, at, FULL
