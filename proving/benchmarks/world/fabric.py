"""The machines and the network: hosts, NICs with their addresses, leaf switches and link speeds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

RAIL, TREE, DUAL_TOR = "rail", "tree", "dual_tor"
GBIT = 1e9 / 8
LINK_SHARE = 0.92  # of the line rate that RoCE reaches with 4 KiB packets and congestion control


@dataclass(frozen=True, kw_only=True)
class FabricConfig:
    """What a data centre was built as."""

    kind: str = RAIL
    num_hosts: int = 16
    gpus_per_host: int = 8
    nics_per_host: int = 8
    nic_gbit: int = 400
    hosts_per_leaf: int = 8
    host_prefix: str = "node-"
    network: str = "10.64"
    num_storage: int = 2
    num_services: int = 4  # other machines: bastions, monitoring, schedulers
    shared_uplinks: bool = False  # a leaf's uplinks carry one job at full speed; two jobs share them


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """Addresses and leaves by host and NIC; `speed` in payload bytes per second and address."""

    config: FabricConfig
    hosts: tuple[str, ...]
    addresses: tuple[str, ...]  # by address number: host * nics_per_host + nic, then storage and services
    leaves: tuple[str, ...]  # by address number
    speed: np.ndarray
    slowed: dict[int, float] = field(default_factory=dict)  # address number: share of its speed that is left
    polarised: dict[tuple[int, str], float] = field(default_factory=dict)  # address to leaf: share of the speed left

    def seconds_per_byte(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """What a byte takes from NIC to NIC: the slower of both, or a path on which ECMP has put several flows."""
        seconds = 1 / np.minimum(self.speed[src], self.speed[dst])
        if self.polarised:
            seconds /= [self.polarised.get((int(a), self.leaves[b]), 1.0) for a, b in zip(src, dst, strict=True)]
        return seconds

    def nic_of(self, host: int, gpu: int) -> int:
        """The address number of the NIC nearest to a GPU."""
        config = self.config
        return host * config.nics_per_host + gpu * config.nics_per_host // config.gpus_per_host

    def nics_of(self, host: int) -> list[int]:
        """The address numbers of a host."""
        first = host * self.config.nics_per_host
        return list(range(first, first + self.config.nics_per_host))

    def storage(self) -> list[int]:
        """The address numbers of storage servers."""
        first = len(self.hosts) * self.config.nics_per_host
        return list(range(first, first + self.config.num_storage))

    def services(self) -> list[int]:
        """The address numbers of other machines."""
        first = self.storage()[-1] + 1
        return list(range(first, first + self.config.num_services))

    def topology(self) -> pl.DataFrame:
        """The operator's table of GPU hosts: address, host, rail, switch; storage is not in it."""
        per_host = self.config.nics_per_host
        count = len(self.hosts) * per_host
        return pl.DataFrame(
            {
                "address": self.addresses[:count],
                "host": [self.hosts[n // per_host] for n in range(count)],
                "rail": [n % per_host for n in range(count)],
                "switch": self.leaves[:count],
            }
        )


def build_fabric(config: FabricConfig, rng: np.random.Generator) -> Fabric:
    """Lay out hosts behind leaves; host numbers have holes, as in a data centre where some were replaced."""
    numbers = np.sort(rng.choice(config.num_hosts * 2, config.num_hosts, replace=False)) + 1
    hosts = tuple(f"{config.host_prefix}{number:03d}" for number in numbers)
    addresses, leaves = [], []
    for index, number in enumerate(numbers):
        for nic in range(config.nics_per_host):
            addresses.append(_address(config, int(number), nic))
            leaves.append(_leaf(config, index // config.hosts_per_leaf, nic))
    for server in range(config.num_storage):
        addresses.append(f"{config.network}.250.{server + 10}")
        leaves.append("leaf-storage")
    for service in range(config.num_services):
        addresses.append(f"{config.network}.251.{service + 10}")
        leaves.append("leaf-services")
    speed = np.full(len(addresses), config.nic_gbit * GBIT * LINK_SHARE)
    return Fabric(config=config, hosts=hosts, addresses=tuple(addresses), leaves=tuple(leaves), speed=speed)


def _address(config: FabricConfig, number: int, nic: int) -> str:
    """A rail fabric has one subnet per rail; others number the NICs of a host one after the other."""
    if config.kind == RAIL:
        return f"{config.network}.{nic}.{number}"
    place = number * config.nics_per_host + nic
    return f"{config.network}.{place // 250}.{place % 250 + 1}"


def _leaf(config: FabricConfig, block: int, nic: int) -> str:
    if config.kind == RAIL:
        return f"leaf-p{block}-r{nic}"
    if config.kind == DUAL_TOR:  # the two ports of a bond reach two switches; NICs alternate in which is preferred
        return f"tor-{block}-{'ab'[nic % 2]}"
    return f"leaf-{block}"


def slow_addresses(fabric: Fabric, slowed: dict[int, float]) -> None:
    """Take speed from some NICs, for the whole capture."""
    for number, share in slowed.items():
        fabric.speed[number] *= share
        fabric.slowed[number] = share
