"""Traffic that is no training: shells, monitoring, and tenants that move files."""

from __future__ import annotations

import numpy as np

from proving.benchmarks.world.fabric import Fabric
from proving.benchmarks.world.traffic import CODE


def shells(fabric: Fabric, rng: np.random.Generator, seconds: float) -> dict[str, np.ndarray]:
    """Small flows between a bastion or a monitor and single hosts, at random times."""
    count = int(seconds * len(fabric.hosts) / 12)
    services = rng.choice(fabric.services(), count)
    hosts = rng.integers(0, len(fabric.hosts), count) * fabric.config.nics_per_host
    outward = rng.random(count) < 0.5
    src, dst = np.where(outward, services, hosts), np.where(outward, hosts, services)
    return _columns(rng.uniform(0, seconds, count), rng.lognormal(7.5, 1.2, count), (src, dst), "noise")


def file_copies(fabric: Fabric, rng: np.random.Generator, seconds: float) -> dict[str, np.ndarray]:
    """Tenants without training copy data from storage to hosts, and write results back."""
    count = int(seconds / 3)
    servers = rng.choice(fabric.storage(), count)
    hosts = rng.integers(0, len(fabric.hosts), count) * fabric.config.nics_per_host
    reads = rng.random(count) < 0.7
    src, dst = np.where(reads, servers, hosts), np.where(reads, hosts, servers)
    return _columns(rng.uniform(0, seconds, count), rng.lognormal(17.5, 1.5, count), (src, dst), "storage")


def _columns(
    start: np.ndarray, size: np.ndarray, ends: tuple[np.ndarray, np.ndarray], kind: str
) -> dict[str, np.ndarray]:
    count = len(start)
    numbers = np.arange(count)
    return {
        "start": start, "end": start + 1e-4 + size / 1e9, "src": ends[0], "dst": ends[1],
        "payload": np.ceil(size), "connection": numbers, "transfer": numbers, "kind": np.full(count, CODE[kind]),
    }  # fmt: skip
