"""Clusters and jobs that kinds of captures are made of, and the faults that they plant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from .fabric import Fabric, Slow
from .jobs import Job

Rng = np.random.Generator


def span(first: int, count: int) -> tuple[int, ...]:
    """Neighbouring hosts, or rails."""
    return tuple(range(first, first + count))


def dgx(hosts: int, **other: Any) -> Fabric:
    """Hosts of 8 GPUs with a NIC each."""
    return Fabric(num_hosts=hosts, num_nics=8, gpus=8, **other)


def quad(hosts: int, **other: Any) -> Fabric:
    """Hosts of 4 GPUs with a NIC each, addressed rail by rail."""
    named = {"plan": "172.20.{nic}.{host1}", "host_name": "quad-{host:02d}", "gbps": 200.0} | other
    return Fabric(num_hosts=hosts, num_nics=4, gpus=4, **named)


def single(hosts: int, **other: Any) -> Fabric:
    """Hosts with one NIC, by racks of 4."""
    named = {"plan": "192.168.7.{host1}", "host_name": "worker-{host}", "gbps": 100.0, "gpus": 8} | other
    return Fabric(num_hosts=hosts, num_nics=1, rail_leaves=False, pod=4, **named)


def two_nics(hosts: int, **other: Any) -> Fabric:
    """Hosts of 2 GPUs with a NIC each, by racks of 6."""
    named = {"plan": "10.8.{nic}.{host1}", "host_name": "rack-u{host}", "gbps": 200.0} | other
    return Fabric(num_hosts=hosts, num_nics=2, gpus=2, rail_leaves=False, pod=6, **named)


def job(fabric: Fabric, name: str, program: str, hosts: Iterable[int], **other: Any) -> Job:
    """A job on all rails of hosts of a fabric."""
    given = {"rails": span(0, fabric.num_nics), "gpus": fabric.gpus, "gigabytes": 3.0, "compute": 0.6} | other
    return Job(name=name, program=program, hosts=tuple(hosts), **given)


def blame_host(fabric: Fabric, host: int, kind: str = "slow_compute") -> dict[str, Any]:
    """A host as the culprit."""
    endpoints = [fabric.address(e) for e in fabric.endpoints(host)]
    return {"kind": kind, "type": "host|endpoint", "id": fabric.name(host), "endpoints": endpoints}


def blame_nic(fabric: Fabric, endpoint: int) -> dict[str, Any]:
    """A NIC and its cable as the culprit."""
    address = fabric.address(endpoint)
    return {"kind": "slow_link", "type": "endpoint|link", "id": address, "endpoints": [address]}


def slow_host(fabric: Fabric, rng: Rng, victim: Job, **other: Any) -> Job:
    """Make one host of a job slow at computing."""
    host = int(rng.choice(victim.hosts))
    given = {"factor": float(rng.uniform(1.3, 1.6))} | other
    fabric.compute_faults.append(Slow(members=(host,), **given))
    return replace(victim, culprit=blame_host(fabric, host))


def slow_nic(fabric: Fabric, rng: Rng, victim: Job) -> Job:
    """Make one NIC of a job slow."""
    endpoint = int(rng.choice(victim.hosts)) * fabric.num_nics + int(rng.choice(victim.rails))
    fabric.net_faults.append(Slow(members=(endpoint,), factor=float(rng.uniform(2.5, 4.0))))
    return replace(victim, culprit=blame_nic(fabric, endpoint))


def near(rng: Rng, value: float) -> float:
    """A value within a quarter of this one."""
    return float(value * rng.uniform(0.8, 1.25))
