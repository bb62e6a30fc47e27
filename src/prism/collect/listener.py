"""A UDP socket that flow exporters send to: a thread empties it into a bounded queue, `poll` decodes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import polars as pl

from prism.collect.collector import Collector, Sender
from prism.collect.counts import SourceCounts
from prism.errors import BadConfigError

_SOCKET_BUFFER_BYTES = 64 << 20  # what is asked for; the kernel gives what net.core.rmem_max allows
_SO_RCVBUFFORCE = 33  # Linux: beyond rmem_max, with CAP_NET_ADMIN
_BATCH_BYTES = 16 << 20  # decoded in one go
_DROPS_EVERY_S = 1.0


class ListenerSource:
    """Listens for IPFIX, NetFlow 9 and 5 and sFlow 5, whichever an exporter sends."""

    is_live = True
    starts_over = False
    is_finished = False

    def __init__(self, host: str, port: int, queue_bytes: int, position: dict[str, Any] | None = None) -> None:
        self._socket = _bind(host, port)
        self._collector = Collector()
        self._collector.restore((position or {}).get("exporters", []))
        self._queue: deque[tuple[bytes, Sender]] = deque()
        self._queued_bytes = 0
        self._limit = queue_bytes
        self._lock = threading.Lock()
        self._arrived = threading.Event()
        self._closing = False
        self._queue_drops = 0
        self._kernel_drops = 0
        self._next_look = 0.0
        self._thread = threading.Thread(target=self._receive, name="prism-listener", daemon=True)
        self._thread.start()

    @property
    def counts(self) -> SourceCounts:
        """What was seen, kept and lost."""
        return self._collector.counts

    @property
    def address(self) -> Sender:
        """Where it listens; the port is the one the system chose when 0 was asked for."""
        name = self._socket.getsockname()
        return name[0], name[1]

    @property
    def notes(self) -> tuple[str, ...]:
        """What an operator should know."""
        got = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
        if got >= 4 << 20:
            return ()
        return (
            f"the socket buffer holds only {got // 1024} KiB, so bursts may be lost; raise it with "
            f"sysctl -w net.core.rmem_max={_SOCKET_BUFFER_BYTES}",
        )

    def poll(self, timeout_s: float) -> pl.DataFrame:
        """FLOWS that have arrived."""
        self._arrived.wait(timeout_s)
        self._arrived.clear()
        now_ns = time.time_ns()
        while self._queue and self._collector.pending_bytes < _BATCH_BYTES:
            datagram, sender = self._queue.popleft()
            with self._lock:
                self._queued_bytes -= len(datagram)
            self._collector.feed(datagram, sender, now_ns)
        if self._queue:
            self._arrived.set()
        self._count_drops()
        return self._collector.flush()

    def take_counters(self) -> pl.DataFrame:
        """Counters of ports that have come since the last call."""
        return self._collector.take_counters()

    def save_position(self) -> dict[str, Any]:
        """A socket has no place to go back to, but what exporters announced holds on."""
        return {"exporters": self._collector.save()}

    def close(self) -> None:
        """Stop listening."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=2.0)
        self._socket.close()

    def _receive(self) -> None:
        receive = self._socket.recvfrom
        while not self._closing:
            try:
                datagram, sender = receive(65_535)
            except TimeoutError:
                continue
            except OSError:
                return  # closed
            if self._queued_bytes + len(datagram) > self._limit:
                self._queue_drops += 1
                continue
            with self._lock:
                self._queued_bytes += len(datagram)
            self._queue.append((datagram, (sender[0], sender[1])))
            self._arrived.set()

    def _count_drops(self) -> None:
        dropped, self._queue_drops = self._queue_drops, 0
        if dropped:
            self.counts.dropped["datagrams beyond the queue"] += dropped
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _DROPS_EVERY_S
        total = _kernel_drops(self._socket)
        if total > self._kernel_drops:
            self.counts.dropped["datagrams beyond the socket buffer"] += total - self._kernel_drops
            self._kernel_drops = total


def _bind(host: str, port: int) -> socket.socket:
    made: socket.socket | None = None
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        made = socket.socket(family, socket.SOCK_DGRAM)
        _enlarge_buffer(made)
        made.settimeout(0.5)
        made.bind(address)
    except OSError as error:
        if made is not None:
            made.close()
        reason = error.strerror or str(error)
        raise BadConfigError(f"{host}:{port}: cannot listen there ({reason}); choose another address or port") from None
    return made


def _enlarge_buffer(made: socket.socket) -> None:
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
    with contextlib.suppress(OSError):  # needs a privilege; without it the smaller buffer stays
        made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _SOCKET_BUFFER_BYTES)


def _kernel_drops(bound: socket.socket) -> int:
    """Datagrams the kernel threw away for this socket, by the last column of /proc/net/udp."""
    inode = Path(f"/proc/self/fd/{bound.fileno()}").readlink().name.partition("[")[2].rstrip("]")
    table = Path("/proc/net/udp6" if bound.family == socket.AF_INET6 else "/proc/net/udp")
    with contextlib.suppress(OSError):
        for line in table.read_text().splitlines()[1:]:
            words = line.split()
            if words[9] == inode:
                return int(words[-1])
    return 0
