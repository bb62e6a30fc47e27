"""The addresses that flows, topology and truth use for each NIC."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from prism.lab.scenarios.measurement import Measurement
from prism.records.topology import TOPOLOGY
from prism.simulate.cluster import Cluster
from prism.simulate.endpoints import address_of, host_name

STORAGE_SWITCH = "leaf-storage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """Addresses by endpoint number: the NICs of all hosts, then the storage servers."""

    names: tuple[str, ...]
    original: tuple[str, ...]  # before any renaming
    num_nics: int  # endpoints that are NICs of hosts

    @property
    def storage(self) -> tuple[str, ...]:
        """Addresses of the storage servers."""
        return self.names[self.num_nics :]


def name_endpoints(cluster: Cluster, num_storage: int, config: Measurement, seed: int) -> Naming:
    """Addresses of a cluster; shared by neighbouring rails or replaced, if the measurement requires it."""
    rails = np.arange(cluster.nics.count)
    shown = rails // 2 * 2 if config.shared_addresses else rails
    nics = [address_of(h, int(r)) for h in range(cluster.num_hosts) for r in shown]
    original = (*nics, *(f"10.254.0.{i + 1}" for i in range(num_storage)))
    names = original
    if config.renamed:
        distinct = list(dict.fromkeys(original))
        order = np.random.default_rng([seed, 31]).permutation(len(distinct))
        new = {
            old: f"172.{16 + i // 65536}.{i // 256 % 256}.{i % 256}"
            for old, i in zip(distinct, order.tolist(), strict=True)
        }
        names = tuple(new[o] for o in original)
    return Naming(names=tuple(names), original=tuple(original), num_nics=len(nics))


def list_topology(cluster: Cluster, naming: Naming, hosts: list[int]) -> pl.DataFrame:
    """TOPOLOGY of some hosts and of storage, one row per address."""
    count = cluster.nics.count
    rows = [
        (naming.names[h * count + r], host_name(h), r, f"leaf-{cluster.leaf_of(h, r)}")
        for h in hosts
        for r in range(count)
    ]
    rows += [(name, f"storage-{i:02d}", None, STORAGE_SWITCH) for i, name in enumerate(naming.storage)]  # type: ignore[misc]
    return pl.DataFrame(rows, schema=TOPOLOGY.required, orient="row").unique(
        "address", keep="first", maintain_order=True
    )
