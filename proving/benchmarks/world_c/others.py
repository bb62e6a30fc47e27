"""Traffic that is no collective: storage, monitoring, ssh, job stores, inference servers, a Spark shuffle."""

from __future__ import annotations

import numpy as np

from .jobs import Job, Life
from .wire import Wire

STORAGE = tuple(f"10.99.0.{n}" for n in range(11, 15))
MONITOR, BASTION, CLIENTS = "10.99.1.5", "10.99.1.9", tuple(f"10.99.2.{n}" for n in range(20, 40))


def background(wire: Wire, rng: np.random.Generator, length: float, lost: dict[int, float]) -> None:
    """Scrapes of every host every 15 s, ssh sessions, NFS attribute calls, on the first NIC of hosts.

    A host in `lost` answers nothing from its time on.
    """
    fabric = wire.fabric
    for host in range(fabric.num_hosts):
        address = fabric.address(host * fabric.num_nics)
        port = int(rng.integers(33000, 60000))
        for at in np.arange(rng.uniform(0, 15), length, 15.0):
            took = rng.uniform(0.01, 0.06)
            wire.tcp(at, at + took, MONITOR, address, 900, port, 9100)
            if at < lost.get(host, length):
                wire.tcp(at, at + took, address, MONITOR, int(rng.integers(40_000, 120_000)), 9100, port)
        for at in np.cumsum(rng.exponential(12.0, int(length / 12) + 1)):
            if at >= lost.get(host, length):
                break
            server = STORAGE[int(rng.integers(len(STORAGE)))]
            wire.tcp(at, at + 0.002, address, server, int(rng.integers(200, 900)), 800 + host, 2049)
            wire.tcp(at + 0.001, at + 0.003, server, address, int(rng.integers(200, 9000)), 2049, 800 + host)
    for _ in range(max(1, fabric.num_hosts // 4)):
        address = fabric.address(int(rng.integers(fabric.num_hosts)) * fabric.num_nics)
        port = int(rng.integers(33000, 60000))
        for at in np.cumsum(rng.exponential(1.5, int(length / 3))):
            wire.tcp(at, at + 0.05, BASTION, address, int(rng.integers(80, 400)), port, 22)
            wire.tcp(at + 0.01, at + 0.06, address, BASTION, int(rng.integers(100, 4000)), 22, port)


def lost(job: Job) -> bool:
    """Whether the host that stops is gone as a whole; of a hang, only the rank is stuck."""
    return "restart" in (job.culprit or {}).get("kind", "")


def job_upkeep(life: Life, rng: np.random.Generator, until: float) -> None:
    """A job's store heartbeats, reads of data, and uploads of checkpoints."""
    wire, fabric, job = life.wire, life.wire.fabric, life.job
    first = [fabric.address(h * fabric.num_nics + job.rails[0]) for h in job.hosts]
    stop = min(until, job.stop)
    ports = rng.integers(33000, 60000, len(first))
    for host, address, port in zip(job.hosts, first, ports.tolist(), strict=True):
        silent = job.stops_at if host == job.stopped_host and lost(job) else stop
        for at in np.arange(max(0.0, job.start) + rng.uniform(0, 5), min(stop, silent), 5.0):
            if address != first[0]:
                wire.tcp(at, at + 0.001, address, first[0], 180, port, 29500)
                wire.tcp(at + 0.0005, at + 0.0015, first[0], address, 120, 29500, port)
    period = max(2.0, 4 * float(np.median([b - a for a, b in life.steps])) if life.steps else 2.0)
    for address, port in zip(first, ports.tolist(), strict=True):
        for at in np.arange(max(0.0, job.start) + rng.uniform(0, period), min(stop, job.stops_at), period):
            size = int(rng.uniform(2e6, 8e6))
            server = STORAGE[int(rng.integers(len(STORAGE)))]
            wire.tcp(at, at + size / 1.5e9, server, address, size, 2049, port + 1)
    for begin, end in life.saves:
        share = job.gigabytes * 6e9 / len(first)  # fp32 weights and two moments of 16 bit gradients
        share = min(share, 1.5e9 * (end - begin) * 0.9)
        for address, port in zip(first, ports.tolist(), strict=True):
            at = begin + rng.uniform(0.01, 0.2)
            took = (end - begin) * rng.uniform(0.8, 0.95)
            server = STORAGE[int(rng.integers(len(STORAGE)))]
            for part in range(8):
                left = at + took * part / 8
                wire.tcp(left, left + took / 8 * 0.97, address, server, int(share / 8), port + 2, 443)


def inference(wire: Wire, rng: np.random.Generator, hosts: tuple[int, ...], length: float) -> None:
    """Prefill hosts send KV caches to decode hosts, clients send prompts and stream answers, at random times."""
    fabric = wire.fabric
    half = max(1, len(hosts) // 2)
    for at in np.cumsum(rng.exponential(0.08, int(length / 0.08))):
        prefill, decode = int(rng.choice(hosts[:half])), int(rng.choice(hosts[half:]))
        client, port = CLIENTS[int(rng.integers(len(CLIENTS)))], int(rng.integers(33000, 60000))
        front = fabric.address(prefill * fabric.num_nics)
        wire.tcp(at, at + 0.01, client, front, int(rng.integers(2_000, 60_000)), port, 8000)
        nic = int(rng.integers(fabric.num_nics))
        src, dst = prefill * fabric.num_nics + nic, decode * fabric.num_nics + nic
        size = float(rng.lognormal(np.log(6e7), 0.8))
        begin = np.array([at + rng.uniform(0.05, 0.4)])
        end = begin + size / fabric.rate * rng.uniform(1.1, 2.0)
        wire.put(begin, end, np.array([src]), np.array([dst]), np.array([size]), 7)
        took = rng.exponential(6.0)
        back = fabric.address(decode * fabric.num_nics)
        wire.tcp(float(end[0]), float(end[0]) + took, back, client, int(took * 4000 + 300), 8001, port)


def spark(wire: Wire, rng: np.random.Generator, hosts: tuple[int, ...], length: float) -> list[tuple[float, float]]:
    """Shuffles between executors, stage after stage, of uneven partitions; returns when shuffles ran."""
    fabric = wire.fabric
    spans = []
    at = rng.uniform(1, 4)
    while at < length - 8:
        took = rng.uniform(3, 7)
        for a in hosts:
            for b in hosts:
                if a == b:
                    continue
                src, dst = fabric.address(a * fabric.num_nics), fabric.address(b * fabric.num_nics)
                for _ in range(int(rng.integers(2, 6))):
                    size = float(rng.lognormal(np.log(4e7), 1.0))
                    begin = at + rng.uniform(0, took * 0.8)
                    wire.tcp(begin, begin + size / 4e8, src, dst, int(size), 7337, 40000 + a * 64 + b)
        spans.append((at, at + took))
        at += took + rng.uniform(2, 14)
    return spans
