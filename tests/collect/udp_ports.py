"""What the kernel says of a UDP port here, so that tests wait for other programs and not for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def wait_until_open(port: int, patience_s: float = 600.0) -> None:
    """Until a program listens on a port."""
    _wait(port, bool, patience_s)


def wait_until_read(port: int, patience_s: float = 600.0) -> None:
    """Until the program that listens on a port has taken every datagram that has arrived."""
    _wait(port, lambda waiting: waiting == [0], patience_s)


def _wait(port: int, is_so: Callable[[list[int]], bool], patience_s: float) -> None:
    end = time.monotonic() + patience_s
    while not is_so(_bytes_waiting(port)):
        assert time.monotonic() < end, f"nothing listens on UDP port {port}, or it does not read"
        time.sleep(0.05)


def _bytes_waiting(port: int) -> list[int]:
    """Bytes that wait in the receive queue of each socket bound to a port."""
    rows = [line.split() for line in Path("/proc/net/udp").read_text().splitlines()[1:]]
    return [int(row[4].split(":")[1], 16) for row in rows if int(row[1].split(":")[1], 16) == port]
