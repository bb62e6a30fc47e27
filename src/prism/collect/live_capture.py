"""Packets from a network interface, through the kernel's shared ring (TPACKET_V3): no system call per packet."""

from __future__ import annotations

import mmap
import select
import socket
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from prism.collect.assembler import BurstConfig, FlowAssembler
from prism.collect.counts import SourceCounts
from prism.collect.packets import ETHERNET, INDEX, RAW, Bytes, Packets
from prism.errors import BadConfigError
from prism.kernel import njit

# linux/if_packet.h
_SOL_PACKET, _RX_RING, _STATISTICS, _VERSION, _TPACKET_V3 = 263, 5, 6, 10, 2
_ETH_P_ALL = 3
_BLOCK_BYTES, _NUM_BLOCKS, _FRAME_BYTES, _RETIRE_MS = 1 << 20, 64, 1 << 11, 100
_DELAY_NS = 3 * _RETIRE_MS * 10**6  # A packet may wait in a block for as long as the kernel gathers.
_TO_USER = 1
_STATUS_AT, _NUM_AT, _FIRST_AT = 8, 12, 16  # in a block
_SENDER_AT = 48  # behind the header of a packet
_OUTGOING = 4
_MOST_PACKETS = _BLOCK_BYTES // 64


class InterfaceSource:
    """Every packet that passes an interface; needs root or CAP_NET_RAW."""

    is_live = True
    starts_over = False
    is_finished = False
    notes: tuple[str, ...] = ()

    def __init__(self, name: str, bursts: BurstConfig) -> None:
        self.counts = SourceCounts()
        self._assembler = FlowAssembler(self.counts, bursts)
        self._skip_outgoing = name == "lo"  # The loopback shows every packet twice.
        self._link = ETHERNET if _is_ethernet(name) else RAW
        self._socket = _open_ring(name)
        self._map = mmap.mmap(self._socket.fileno(), _BLOCK_BYTES * _NUM_BLOCKS)
        self._status = np.frombuffer(self._map, np.uint32)
        self._ring = np.frombuffer(self._map, np.uint8)
        self._ring.flags.writeable = False  # as files are, so that the compiled code is the same
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN | select.POLLERR)
        self._next = 0

    def poll(self, timeout_s: float) -> pl.DataFrame:
        """FLOWS completed by the packets that have arrived."""
        frames: list[pl.DataFrame] = []
        for _ in range(_NUM_BLOCKS):
            block = self._ring[self._next * _BLOCK_BYTES : (self._next + 1) * _BLOCK_BYTES]
            status = (self._next * _BLOCK_BYTES + _STATUS_AT) // 4
            if not self._status[status] & _TO_USER:
                if frames:
                    break
                self._poll.poll(timeout_s * 1000)
                if not self._status[status] & _TO_USER:
                    break
            index = np.zeros(_MOST_PACKETS, INDEX)
            n = walk_block(block, self._skip_outgoing, self._link, index)
            frames.append(self._assembler.take(block, index[:n]))
            self._status[status] = 0  # back to the kernel
            self._next = (self._next + 1) % _NUM_BLOCKS
        self._count_drops()
        return pl.concat(frames) if frames else self._assembler.expire(time.time_ns() - _DELAY_NS)

    def save_position(self) -> dict[str, Any]:
        """What has passed does not come again."""
        return {}

    def close(self) -> None:
        """Stop capturing."""
        self._socket.close()

    def _count_drops(self) -> None:
        """The kernel's counters start over whenever they are read."""
        _, dropped, _ = struct.unpack("III", self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 12))
        if dropped:
            self.counts.dropped["packets beyond the capture ring"] += dropped


def interface_names() -> list[str]:
    """Network interfaces of this machine."""
    folder = Path("/sys/class/net")
    return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []


def _is_ethernet(name: str) -> bool:
    kind = Path(f"/sys/class/net/{name}/type").read_text().strip()
    return kind in ("1", "772")  # ARPHRD_ETHER, ARPHRD_LOOPBACK; tunnels give bare IP


def _open_ring(name: str) -> socket.socket:
    try:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    except PermissionError:
        raise BadConfigError(
            f"pcap:{name}: capturing needs root; run with sudo, grant CAP_NET_RAW, or give a file written by tcpdump -w"
        ) from None
    num_frames = _BLOCK_BYTES * _NUM_BLOCKS // _FRAME_BYTES
    request = struct.pack("IIIIIII", _BLOCK_BYTES, _NUM_BLOCKS, _FRAME_BYTES, num_frames, _RETIRE_MS, 0, 0)
    try:
        made.setsockopt(_SOL_PACKET, _VERSION, _TPACKET_V3)
        made.setsockopt(_SOL_PACKET, _RX_RING, request)
        made.bind((name, 0))
    except OSError as error:
        made.close()
        raise BadConfigError(f"pcap:{name}: cannot capture there ({error.strerror}); is the interface up?") from None
    return made


@njit(cache=True, nogil=True)
def _number(data: Bytes, at: int) -> Any:
    return (
        np.int64(data[at])
        | (np.int64(data[at + 1]) << 8)
        | (np.int64(data[at + 2]) << 16)
        | (np.int64(data[at + 3]) << 24)
    )


@njit(cache=True, nogil=True)
def walk_block(block: Bytes, skip_outgoing: bool, link: int, index: Packets) -> int:
    """Fill `index` with the packets of one block of the ring; returns how many."""
    num = _number(block, _NUM_AT)
    at = _number(block, _FIRST_AT)
    n = 0
    for _ in range(num):
        if at < 0 or at + _SENDER_AT + 20 > block.size or n >= index.size:
            break
        sender = at + _SENDER_AT
        if not (skip_outgoing and block[sender + 10] == _OUTGOING):
            entry = index[n]
            entry.offset = at + (np.int64(block[at + 24]) | (np.int64(block[at + 25]) << 8))
            entry.time_ns = _number(block, at + 4) * 1_000_000_000 + _number(block, at + 8)
            entry.captured = _number(block, at + 12)
            entry.length = _number(block, at + 16)
            entry.link = link
            n += 1
        step = _number(block, at)
        if step == 0:
            break
        at += step
    return n
