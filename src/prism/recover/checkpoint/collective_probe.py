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
_PINGS = 20


def main() -> None:
    """Answer orders until stdin ends."""
    backend = sys.argv[1]
    ports = _free_ports()
    devices = _count_gpus() if backend == "nccl" else 1
    if devices == 0:
        _say({"ready": False, "error": "nccl needs a CUDA device, this host has none"})
        return
    _say({"ready": True, "port": ports[0], "ports": ports, "devices": devices})
    for line in sys.stdin:
        order = json.loads(line)
        if order["kind"] == "counters":
            _say({"id": order["id"], "counters": read_counters()})
        else:
            _say({"id": order["id"], **run_in_children(order, backend)})


def run_in_children(order: dict[str, Any], backend: str) -> dict[str, Any]:
    """One child per device of this host; the slowest device counts."""
    deadline = time.monotonic() + order["timeout_s"] + 1.0
    children = [_fork_child(order, backend, device) for device in range(order.get("devices", 1))]
    answers = [_read_answer(pid, reader, deadline) for pid, reader in children]
    failed = [answer for answer in answers if not answer["ok"]]
    if failed:
        return failed[0]
    return {"ok": True, **{name: max(a[name] for a in answers) for name in ("seconds", "latency_s")}}


def _fork_child(order: dict[str, Any], backend: str, device: int) -> tuple[int, int]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            answer = run_test(order, backend, device)
        except Exception as error:  # the outermost loop of the child: any error means that the test failed
            text = " ".join(str(error).split())[:200]
            answer = {"ok": False, "error": f"device {device}: {type(error).__name__}: {text}"}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    return pid, reader


def _read_answer(pid: int, reader: int, deadline: float) -> dict[str, Any]:
    ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
    told = os.read(reader, 65_536) if ready else b""
    os.close(reader)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if not told:
        return {"ok": False, "error": "TimeoutError: the collective did not end"}
    found: dict[str, Any] = json.loads(told)
    return found


def run_test(order: dict[str, Any], backend: str, number: int) -> dict[str, Any]:
    """One all-gather between all devices of the members."""
    members, devices = order["members"], order.get("devices", 1)
    rank, world_size = order["place"] * devices + number, len(members) * devices
    address, port = members[0]
    device = torch.device("cuda", number) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        init_method=f"tcp://{address}:{port}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=order["timeout_s"]),
    )
    block = torch.full((order["num_bytes"],), rank % 251, dtype=torch.uint8, device=device)
    blocks = [torch.empty_like(block) for _ in range(world_size)]
    dist.all_gather(blocks, block)  # connections are made here
    _settle(device)
    start = time.monotonic()
    dist.all_gather(blocks, block)
    _settle(device)
    seconds = time.monotonic() - start
    if not all(bool((b == index % 251).all()) for index, b in enumerate(blocks)):
        return {"ok": False, "error": f"device {number}: the bytes that arrived are not the bytes that were sent"}
    small = torch.zeros(1, device=device)
    times = []
    for _ in range(_PINGS):
        start = time.monotonic()
        dist.all_reduce(small)
        _settle(device)
        times.append(time.monotonic() - start)
    return {"ok": True, "seconds": seconds, "latency_s": min(times)}


def _count_gpus() -> int:
    """Counted by a child: a process that has touched CUDA cannot fork its tests."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, bytes([torch.cuda.device_count()]))
        os._exit(0)
    os.close(writer)
    told = os.read(reader, 1)
    os.close(reader)
    os.waitpid(pid, 0)
    return told[0] if told else 0


def _settle(device: torch.device) -> None:
    """A collective on a GPU has only been queued when its call returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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
