"""What of a group's placement its communication cost depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from prism.errors import BadConfigError
from prism.simulate.cluster import Cluster, IntArray
from prism.simulate.links import BYTES_PER_NS_PER_GBPS, link_capacities, link_number, links_of_many


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlacement:
    """How a group is spread; equal placements cost the same."""

    num_ranks: int
    num_hosts: int = 1
    ranks_per_host_max: int = 1
    ranks_per_host_min: int = 1
    rails_per_host: int = 1  # NICs that the host with the fewest can use
    num_rails: int = 1  # distinct rails over all members
    num_leaves: int = 1
    slowest_link: float = 1.0  # what the slowest link that a ring over the members crosses leaves of a NIC's rate

    @property
    def same_host(self) -> bool:
        """Whether nothing crosses the network."""
        return self.num_hosts == 1

    @property
    def same_rail(self) -> bool:
        """Whether every member uses the same NIC number."""
        return self.num_rails == 1


def placement_of(
    hosts: IntArray | Sequence[int], locals_: IntArray | Sequence[int], cluster: Cluster
) -> GroupPlacement:
    """Summarise the members of a group given as host and GPU number of each."""
    host, local = np.asarray(hosts, np.int64), np.asarray(locals_, np.int64)
    cluster = cluster.holding(int(host.max(initial=0)) + 1)
    if not len(host) or host.shape != local.shape:
        raise BadConfigError(f"a group needs one host and one GPU per member, got {len(host)} and {len(local)}")
    if host.min() < 0 or host.max() >= cluster.num_hosts:
        bad = host.min() if host.min() < 0 else host.max()
        raise BadConfigError(f"{cluster.name}: no host {bad}; the cluster has hosts 0 to {cluster.num_hosts - 1}")
    if local.min() < 0 or local.max() >= cluster.gpus_per_host:
        bad = local.min() if local.min() < 0 else local.max()
        raise BadConfigError(f"{cluster.name}: no GPU {bad} on a host; it has GPUs 0 to {cluster.gpus_per_host - 1}")
    rail = cluster.rail_of(local)
    per_host = np.unique(host, return_counts=True)[1]
    host_rail = np.unique(host * cluster.nics.count + rail)
    rails_of_host = np.unique(host_rail // cluster.nics.count, return_counts=True)[1]
    return GroupPlacement(
        num_ranks=len(host),
        num_hosts=len(per_host),
        ranks_per_host_max=int(per_host.max()),
        ranks_per_host_min=int(per_host.min()),
        rails_per_host=int(rails_of_host.min()),
        num_rails=len(np.unique(rail)),
        num_leaves=len(np.unique(cluster.leaf_of(host, rail))),
        slowest_link=_slowest_link(host, local, rail, cluster) if cluster.links else 1.0,
    )


def _slowest_link(host: IntArray, local: IntArray, rail: IntArray, cluster: Cluster) -> float:
    """Rings go from host to host along each rail; those that meet on a link with a rate of its own share it."""
    order = np.lexsort((local, host, rail))
    after = np.roll(order, -1)
    crossed = links_of_many(cluster, host[order], local[order], host[after], local[after]).links
    named = _named_links(cluster)
    flows = np.bincount(crossed, minlength=len(link_capacities(cluster)))[named]
    needed = flows * cluster.nics.gbps * BYTES_PER_NS_PER_GBPS
    # What flows that meet on one spine would lose on links of the usual rate is no property of these links.
    rates, usual = (np.minimum(1.0, link_capacities(c)[named] / np.maximum(needed, 1e-9)) for c in _both(cluster))
    return float((rates / usual).min(initial=1.0))


@lru_cache(maxsize=16)
def _both(cluster: Cluster) -> tuple[Cluster, Cluster]:
    """A cluster, and the same with no link that differs from its tier."""
    return cluster, replace(cluster, links=())


@lru_cache(maxsize=16)
def _named_links(cluster: Cluster) -> IntArray:
    return np.unique([link_number(cluster, link.src, link.dst) for link in cluster.links])


def spread_evenly(num_ranks: int, num_hosts: int, cluster: Cluster) -> GroupPlacement:
    """The usual placement of so many ranks on so many hosts: filled from GPU 0, host by host."""
    if not 1 <= num_hosts <= num_ranks:
        raise BadConfigError(f"{num_ranks} ranks cannot be spread over {num_hosts} hosts")
    rank = np.arange(num_ranks, dtype=np.int64)
    host = rank * num_hosts // num_ranks
    local = rank - np.searchsorted(host, host)
    return placement_of(host, local, cluster)
