"""Hosts, NICs, leaf switches, their speeds, and what is wrong with them and when."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Window = tuple[float, float]
ALWAYS: tuple[Window, ...] = ((-1e9, 1e9),)


@dataclass(frozen=True, kw_only=True)
class Slow:
    """Slowness of some things (endpoint or host numbers) by a factor above 1, in time windows."""

    members: tuple[int, ...]
    factor: float
    windows: tuple[Window, ...] = ALWAYS

    @cached_property
    def _is_member(self) -> NDArray[np.bool_]:
        """By number; the last one stands for all numbers above."""
        return np.isin(np.arange(max(self.members, default=-1) + 2), self.members)

    def holds(self, numbers: Ints) -> NDArray[np.bool_]:
        """Which of some things are slow."""
        return self._is_member.take(numbers, mode="clip")


def slowdown(faults: list[Slow], members: Ints, at: Floats) -> Floats:
    """How many times slower each member is at its time."""
    result = np.ones(np.broadcast(members, at).shape)
    for fault in faults:
        hit = fault.holds(members)
        if not hit.any():
            continue
        edges = np.array(fault.windows).ravel()
        inside = np.searchsorted(edges, at, side="right") % 2 == 1
        result = np.where(hit & inside, np.maximum(result, fault.factor), result)
    return result


@dataclass(kw_only=True)
class Fabric:
    """A cluster: every host has the same number of NICs; endpoint number = host * num_nics + nic."""

    num_hosts: int
    num_nics: int
    gpus: int  # per host
    gbps: float = 400.0
    rail_leaves: bool = True  # one leaf per rail and pod, else one leaf per rack for all NICs
    pod: int = 16  # hosts below one leaf
    plan: str = "10.40.{host}.{nic1}"
    host_name: str = "node{host:03d}"
    latency: float = 6e-6
    compute_faults: list[Slow] = field(default_factory=list)
    net_faults: list[Slow] = field(default_factory=list)
    uplink_faults: list[Slow] = field(default_factory=list)  # of endpoints, where the other end hangs on another leaf

    @property
    def rate(self) -> float:
        """Bytes per second of one NIC after headers."""
        return self.gbps * 1e9 / 8 * 0.94

    def address(self, endpoint: int) -> str:
        """The address of an endpoint."""
        host, nic = divmod(int(endpoint), self.num_nics)
        return self.plan.format(host=host, nic=nic, host1=host + 1, nic1=nic + 1)

    def name(self, host: int) -> str:
        """The name of a host."""
        return self.host_name.format(host=host)

    def leaf(self, endpoint: int) -> str:
        """The leaf switch an endpoint hangs on."""
        host, nic = divmod(int(endpoint), self.num_nics)
        return f"pod{host // self.pod}-rail{nic}" if self.rail_leaves else f"tor{host // self.pod:02d}"

    def endpoints(self, host: int) -> list[int]:
        """All endpoints of a host."""
        return [host * self.num_nics + nic for nic in range(self.num_nics)]

    def below(self, leaf: str) -> list[int]:
        """All endpoints that hang on a leaf."""
        return [e for e in range(self.num_hosts * self.num_nics) if self.leaf(e) == leaf]

    def transfer(self, rng: np.random.Generator, src: Ints, dst: Ints, start: Floats, size: Floats | float) -> Floats:
        """When transfers end that start at these times; the slower end of a link sets its speed."""
        seconds = size / self.rate * (1 + np.abs(rng.normal(0, 0.01, start.shape)))
        if self.net_faults:
            slow = np.maximum(slowdown(self.net_faults, src, start), slowdown(self.net_faults, dst, start))
            seconds = seconds * slow
        if self.uplink_faults:
            leaves = np.array([hash(self.leaf(e)) for e in range(self.num_hosts * self.num_nics)])
            slow = np.maximum(slowdown(self.uplink_faults, src, start), slowdown(self.uplink_faults, dst, start))
            seconds = np.where(leaves[src] != leaves[dst], seconds * slow, seconds)
        return start + self.latency + seconds
