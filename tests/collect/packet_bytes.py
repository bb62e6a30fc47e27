"""Packets and capture files made for tests, byte by byte."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence

Packet = tuple[int, bytes]  # nanoseconds, bytes


def packed(address: str) -> bytes:
    return ipaddress.ip_address(address).packed


def ethernet(body: bytes, vlans: int = 0, kind: int = 0x0800) -> bytes:
    tags = b"".join(struct.pack("!HH", 0x88A8 if i == 0 and vlans > 1 else 0x8100, 100 + i) for i in range(vlans))
    return bytes(12) + tags + struct.pack("!H", kind) + body


def ip4(src: str, dst: str, protocol: int, body: bytes, length: int | None = None, fragment: int = 0) -> bytes:
    total = 20 + len(body) if length is None else length
    return struct.pack("!BBHHHBBH", 0x45, 0, total, 0, fragment, 64, protocol, 0) + packed(src) + packed(dst) + body


def ip6(src: str, dst: str, protocol: int, body: bytes, extension: bytes = b"") -> bytes:
    first = 0 if extension else protocol
    head = struct.pack("!IHBB", 0x60000000, len(extension) + len(body), first, 64)
    return head + packed(src) + packed(dst) + extension + body


def udp(src_port: int, dst_port: int, body: bytes) -> bytes:
    return struct.pack("!HHHH", src_port, dst_port, 8 + len(body), 0) + body


def tcp(src_port: int, dst_port: int, body: bytes, sequence: int = 0) -> bytes:
    return struct.pack("!HHIIBBHHH", src_port, dst_port, sequence, 0, 0x50, 0x10, 0, 0, 0) + body


def roce(
    opcode: int, qp: int, psn: int, payload: int = 0, dma_bytes: int | None = None, aeth: int | None = None
) -> bytes:
    """A RoCEv2 datagram: base header, RETH or AETH where given, payload, ICRC."""
    pad = -payload % 4
    bth = struct.pack("!BBHI", opcode, pad << 4, 0xFFFF, qp) + struct.pack("!I", psn)
    reth = b"" if dma_bytes is None else struct.pack("!QII", 0x1000, 0x42, dma_bytes)
    ack = b"" if aeth is None else struct.pack("!I", aeth << 24)
    immediate = bytes(4) if opcode & 0x1F in (0x03, 0x05, 0x09, 0x0B) else b""
    return udp(0xC000 + (qp & 0xFF), 4791, bth + reth + ack + immediate + bytes(payload + pad) + bytes(4))


def erspan2(frame: bytes) -> bytes:
    gre = struct.pack("!HHI", 0x1000, 0x88BE, 1) + struct.pack("!HHI", 0x1000, 0, 0)
    return ethernet(ip4("192.0.2.1", "192.0.2.2", 47, gre + frame))


def erspan3(frame: bytes, subheader: bool = False) -> bytes:
    head = struct.pack("!HHIHH", 0x2000, 0, 12345, 0, 1 if subheader else 0) + (bytes(8) if subheader else b"")
    return ethernet(ip4("192.0.2.1", "192.0.2.2", 47, struct.pack("!HHI", 0x1000, 0x22EB, 1) + head + frame))


def vxlan(frame: bytes) -> bytes:
    body = struct.pack("!II", 0x08000000, 42 << 8) + frame
    return ethernet(ip4("192.0.2.1", "192.0.2.2", 17, udp(49152, 4789, body)))


def geneve(frame: bytes) -> bytes:
    body = struct.pack("!BBHI", 1, 0, 0x6558, 42 << 8) + bytes(4) + frame  # with one option of four bytes
    return ethernet(ip4("192.0.2.1", "192.0.2.2", 17, udp(49152, 6081, body)))


def mpls(packet: bytes) -> bytes:
    return ethernet(struct.pack("!II", 0x00010040, 0x00020140) + packet, kind=0x8847)


def pcap(
    packets: Sequence[Packet], *, big: bool = False, nano: bool = True, link: int = 1, snap: int = 1 << 16
) -> bytes:
    order = ">" if big else "<"
    out = struct.pack(order + "IHHiIII", 0xA1B23C4D if nano else 0xA1B2C3D4, 2, 4, 0, 0, snap, link)
    for when, data in packets:
        seconds, rest = divmod(when, 10**9)
        kept = data[:snap]
        out += struct.pack(order + "IIII", seconds, rest if nano else rest // 1000, len(kept), len(data)) + kept
    return out


def pcapng(
    packets: Sequence[Packet], *, big: bool = False, link: int = 1, resolution: int = 9, extras: bool = True
) -> bytes:
    """One section, one interface; `resolution` is the raw if_tsresol byte."""
    order = ">" if big else "<"

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        length = 12 + len(body)
        return struct.pack(order + "II", kind, length) + body + struct.pack(order + "I", length)

    out = block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))
    options = struct.pack(order + "HHB3xHH", 9, 1, resolution, 0, 0)
    out += block(1, struct.pack(order + "HHI", link, 0, 0) + options)
    per_second = 1 << (resolution & 0x7F) if resolution & 0x80 else 10**resolution
    for when, data in packets:
        ticks = when * per_second // 10**9
        head = struct.pack(order + "IIIII", 0, ticks >> 32, ticks & 0xFFFFFFFF, len(data), len(data))
        out += block(6, head + data)
        if extras:
            out += block(5, bytes(12))  # interface statistics, to be stepped over
    return out
