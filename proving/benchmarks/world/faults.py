"""What can be wrong in a capture, and how the truth names it."""

from __future__ import annotations

from dataclasses import dataclass

from proving.benchmarks.world.fabric import Fabric


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """A planted cause: the kinds of finding that are right (joined with |), the thing, and its addresses."""

    kind: str
    type: str
    id: str
    endpoints: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        return {"kind": self.kind, "type": self.type, "id": self.id, "endpoints": list(self.endpoints)}


def slow_compute(fabric: Fabric, host: int) -> Culprit:
    """A GPU or a whole host computes late; the network shows the host."""
    return Culprit(kind="slow_compute", type="host|endpoint", id=fabric.hosts[host], endpoints=_host(fabric, host))


def slow_link(fabric: Fabric, address: int) -> Culprit:
    name = fabric.addresses[address]
    return Culprit(kind="slow_link", type="link|endpoint", id=name, endpoints=(name,))


def slow_switch(fabric: Fabric, leaf: str) -> Culprit:
    return Culprit(kind="slow_switch", type="switch", id=leaf, endpoints=_behind(fabric, leaf))


def slow_path(fabric: Fabric, leaf: str, hosts: list[int]) -> Culprit:
    """ECMP has put several flows from one leaf on one spine; operators see the leaf or the addresses that use it."""
    ends = tuple(a for host in hosts for a in _host(fabric, host))
    return Culprit(kind="slow_link|slow_switch", type="switch|link", id=leaf, endpoints=ends)


def contention(fabric: Fabric, leaves: list[str]) -> Culprit:
    """Two jobs share the uplinks of some leaves; any address behind them may be named."""
    behind = tuple(a for leaf in leaves for a in _behind(fabric, leaf))
    return Culprit(kind="contention|slow_switch", type="switch|job|link", id=leaves[0], endpoints=behind)


def heavy_stage(stage: int) -> Culprit:
    return Culprit(kind="stage_imbalance", type="stage", id=str(stage), endpoints=())


def uneven_load(fabric: Fabric, host: int) -> Culprit:
    """A hot expert: its rank is sent more and computes longer, which from outside is also a slow host."""
    return Culprit(
        kind="load_imbalance|slow_compute",
        type="host|endpoint|group",
        id=fabric.hosts[host],
        endpoints=_host(fabric, host),
    )


def hang_at(fabric: Fabric, hosts: list[int]) -> Culprit:
    """One host that stopped, or the two ends of a connection between which nothing passes any more."""
    ends = tuple(a for host in hosts for a in _host(fabric, host))
    return Culprit(kind="hang", type="host|endpoint|link", id=fabric.hosts[hosts[0]], endpoints=ends)


def _host(fabric: Fabric, host: int) -> tuple[str, ...]:
    return tuple(fabric.addresses[n] for n in fabric.nics_of(host))


def _behind(fabric: Fabric, leaf: str) -> tuple[str, ...]:
    return tuple(a for a, name in zip(fabric.addresses, fabric.leaves, strict=True) if name == leaf)
