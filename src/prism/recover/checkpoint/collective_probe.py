"""The host test with torch's own collectives: the same orders as `isolate/probe.py`, run over gloo or nccl.

    python -m prism.recover.checkpoint.collective_probe gloo

Every test runs in a forked child, so that a collective that hangs or breaks its process group harms no later test.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from prism.recover.isolate.probe import read_counters

_NUM_PORTS = 64
_PINGS = 5


def main() -> None:
    """Answer orders until stdin ends."""
    backend = sys.argv[1]
    ports = _free_ports()
    _say({"ready": True, "port": ports[0], "ports": ports})
    for line in sys.stdin:
        order = json.loads(line)
        if order["kind"] == "counters":
            _say({"id": order["id"], "counters": read_counters()})
        else:
            _say({"id": order["id"], **_run_in_child(order, backend)})


def _run_in_child(order: dict[str, Any], backend: str) -> dict[str, Any]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            answer = run_test(order, backend)
        except Exception as error:  # the outermost loop of the child: whatever it is, the test failed
            answer = {"ok": False, "error": f"{type(error).__name__}: {str(error)[:200]}"}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], order["timeout_s"] + 1.0)
    told = os.read(reader, 65_536) if ready else b""
    os.close(reader)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if not told:
        return {"ok": False, "error": "TimeoutError: the collective did not end"}
    found: dict[str, Any] = json.loads(told)
    return found


def run_test(order: dict[str, Any], backend: str) -> dict[str, Any]:
    """One all-gather between the members."""
    members, place = order["members"], order["place"]
    address, port = members[0]
    dist.init_process_group(
        backend,
        init_method=f"tcp://{address}:{port}",
        rank=place,
        world_size=len(members),
        timeout=timedelta(seconds=order["timeout_s"]),
    )
    device = torch.device("cuda" if backend == "nccl" else "cpu")
    block = torch.full((order["num_bytes"],), place % 251, dtype=torch.uint8, device=device)
    blocks = [torch.empty_like(block) for _ in members]
    dist.all_gather(blocks, block)  # connections are made here
    start = time.monotonic()
    dist.all_gather(blocks, block)
    good = all(bool((b == index % 251).all()) for index, b in enumerate(blocks))
    seconds = time.monotonic() - start
    small = torch.zeros(1, device=device)
    times = []
    for _ in range(_PINGS):
        start = time.monotonic()
        dist.all_reduce(small)
        float(small)
        times.append(time.monotonic() - start)
    if not good:
        return {"ok": False, "error": "ValueError: the bytes that arrived are not the bytes that were sent"}
    return {"ok": True, "seconds": seconds, "latency_s": min(times)}


def _free_ports() -> list[int]:
    sockets = [socket.socket() for _ in range(_NUM_PORTS)]
    for one in sockets:
        one.bind(("", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _say(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
