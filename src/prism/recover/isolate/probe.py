"""The host test's program on each host: orders as JSON lines on stdin, answers on stdout. Standard library only.

An order names the members of a ring and this host's place in it. The members all-gather a block each over plain TCP:
every host sends what it holds to the next and takes from the one before, until everyone has all blocks. The bytes are
checked, the time is bandwidth, and a few small rounds give latency. A host that was at other work meanwhile says so,
and for how long its probe had to wait for a core.
The source is sent over stdin, so that a host needs nothing but Python.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

_PINGS = 20
_SPIN_S = 0.02
_FREE_CPU = 0.85  # of a core, and of the time of a test: below it the host is busy and its speed is not judged
_ERROR_COUNTERS = ("symbol_error", "link_downed", "port_rcv_errors", "link_error_recovery", "rx_errors", "tx_errors")
_GPU_COUNTERS = {
    "ecc_uncorrected": "ecc.errors.uncorrected.volatile.total",
    "ecc_corrected": "ecc.errors.corrected.volatile.total",
}


def main() -> None:
    """Answer orders until stdin ends."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", 0))
        listener.listen(64)
        _say({"ready": True, "port": listener.getsockname()[1]})
        for line in sys.stdin:
            order = json.loads(line)
            if order["kind"] == "counters":
                _say({"id": order["id"], "counters": read_counters()})
            else:
                _say({"id": order["id"], **run_test(order, listener)})


def run_test(order: dict[str, Any], listener: socket.socket) -> dict[str, Any]:
    """One all-gather; returns the measurements or the error."""
    deadline = time.monotonic() + order["timeout_s"]
    try:
        after, before = _join_ring(order, listener, deadline)
        with after, before:
            spins = [spin()]
            waited_s, start = read_queue_wait_s(), time.monotonic()
            gathered = _all_gather(order, after, before)
            latency_s = _ping(order, after, before)
            queued = (read_queue_wait_s() - waited_s) / max(1e-9, time.monotonic() - start)
            spins.append(spin())
        busy = min(spins)[0] < _FREE_CPU or queued > 1.0 - _FREE_CPU
        answer = {"ok": True, "latency_s": latency_s, "busy": busy, **gathered}
        if any(share + waited < _FREE_CPU for share, waited in spins):
            # The thread was throttled, by a cgroup or the hypervisor: how long it waited is unknown.
            del answer["queued_s"]
        return answer
    except (OSError, ValueError) as error:
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}


def _join_ring(order: dict[str, Any], listener: socket.socket, deadline: float) -> tuple[socket.socket, socket.socket]:
    members, place, number = order["members"], order["place"], order["id"]
    address, port = members[(place + 1) % len(members)]
    after = socket.create_connection((address, port), timeout=max(0.1, deadline - time.monotonic()))
    after.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    after.sendall(number.to_bytes(8, "big"))
    while True:
        listener.settimeout(max(0.1, deadline - time.monotonic()))
        before, _ = listener.accept()
        before.settimeout(max(0.1, deadline - time.monotonic()))
        if int.from_bytes(_receive(before, 8), "big") == number:
            break
        before.close()  # from an earlier test that was cancelled
    after.settimeout(max(0.1, deadline - time.monotonic()))
    return after, before


def _all_gather(order: dict[str, Any], after: socket.socket, before: socket.socket) -> dict[str, float]:
    """How long it took, and for how long of it a thread of this probe was ready to run and waited for a core."""
    size, count, place = order["num_bytes"], len(order["members"]), order["place"]
    blocks = [bytes([index % 251]) * size for index in range(count)]
    start, waits = time.monotonic(), [-read_queue_wait_s()]
    for turn in range(count - 1):
        sender = threading.Thread(target=_send, args=(after, blocks[(place - turn) % count], waits), daemon=True)
        sender.start()
        received = _receive(before, size)
        if received != blocks[(place - turn - 1) % count]:
            raise ValueError("the bytes that arrived are not the bytes that were sent")
        sender.join()
    return {"seconds": time.monotonic() - start, "queued_s": sum(waits, read_queue_wait_s())}


def _ping(order: dict[str, Any], after: socket.socket, before: socket.socket) -> float:
    """The shortest time of a small message once around the ring."""
    best = float("inf")
    for _ in range(_PINGS):
        start = time.monotonic()
        if order["place"] == 0:
            after.sendall(b"p")
            _receive(before, 1)
        else:
            _receive(before, 1)
            after.sendall(b"p")
        best = min(best, time.monotonic() - start)
    return best


def spin() -> tuple[float, float]:
    """Which share of a core this thread gets when it asks for one, and which share of the time it waits for one."""
    start, used, waited = time.monotonic(), time.thread_time(), read_queue_wait_s()
    while time.monotonic() - start < _SPIN_S:
        pass
    used, waited = time.thread_time() - used, read_queue_wait_s() - waited
    elapsed = time.monotonic() - start
    return used / elapsed, waited / elapsed


def read_queue_wait_s() -> float:
    """Time that this thread, ready to run, has waited for a core; 0 where the kernel does not tell."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _send(connection: socket.socket, block: bytes, waits: list[float]) -> None:
    try:
        connection.sendall(block)
    except OSError:
        return  # the other end reports that bytes are missing
    finally:
        waits.append(read_queue_wait_s())  # the thread exists only for this test, so all of it counts


def _receive(connection: socket.socket, size: int) -> bytes:
    parts, missing = [], size
    while missing:
        part = connection.recv(min(missing, 1 << 20))
        if not part:
            raise ConnectionError("the other end closed the connection")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def read_counters(root: Path = Path("/sys/class")) -> dict[str, int]:
    """Error counters of network cards, InfiniBand ports and GPUs, where there are any."""
    found: dict[str, int] = {}
    for pattern in ("net/*/statistics/*", "infiniband/*/ports/*/counters/*"):
        for path in root.glob(pattern):
            if path.name in _ERROR_COUNTERS:
                try:
                    found[str(path.relative_to(root))] = int(path.read_text())
                except (OSError, ValueError):
                    continue
    return {**found, **_read_gpu_counters()}


def _read_gpu_counters() -> dict[str, int]:
    fields = ",".join(("index", *_GPU_COUNTERS.values()))
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    found = {}
    for line in answer.splitlines():
        index, *counts = (cell.strip() for cell in line.split(","))
        named = zip(_GPU_COUNTERS, counts, strict=False)
        found.update({f"gpu/{index}/{name}": int(count) for name, count in named if count.isdigit()})
    return found


def _say(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
