"""Other jobs' traffic on the links that a job shares with them.

Neighbours hold a share of a link's rate; the job's transfers share what is left, max-min fairly. This is exact where
each neighbour wants less than its fair share of the link (many small flows). Greedy neighbours would yield to the job
until all flows on the link are equal, so for them the answer is an upper bound on the slowdown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.errors import BadConfigError
from prism.simulate.cluster import Cluster, Link
from prism.simulate.links import BYTES_PER_NS_PER_GBPS, link_capacities, link_name, link_number, links_of_many

_MOST_LOAD = 0.99
_DIGITS = re.compile(r"(\d{1,15})")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLoad:
    """What other jobs hold of the links at a place: `uplinks`, `leaf-3`, `host-2`, or one link `leaf-0>spine-1`."""

    where: str
    load: float  # share of the rate

    def __post_init__(self) -> None:
        if not 0.0 <= self.load <= _MOST_LOAD:
            raise BadConfigError(f"load of {self.where} is {self.load}, expected a share from 0 to {_MOST_LOAD}")


def add_background(cluster: Cluster, loads: Iterable[LinkLoad]) -> Cluster:
    """The cluster with the rates that neighbours leave; loads of one link add up, to at most 0.99 of it."""
    capacity = link_capacities(cluster)
    taken = np.zeros(len(capacity))
    for entry in loads:
        taken[_find_links(cluster, entry.where)] += entry.load
    links = {link_number(cluster, link.src, link.dst): link for link in cluster.links}
    for number in np.flatnonzero(taken).tolist():
        src, _, dst = link_name(cluster, number).partition(">")
        left = float(capacity[number]) / BYTES_PER_NS_PER_GBPS * (1.0 - min(taken[number], _MOST_LOAD))
        links[number] = Link(src=src, dst=dst, gbps=left)
    return replace(cluster, links=tuple(links.values()))


def _find_links(cluster: Cluster, where: str) -> NDArray[np.int64]:
    nics, spines = cluster.nics.count, cluster.fabric.num_spines
    edges, trunks = cluster.num_hosts * nics, cluster.num_leaves * spines
    kind, _, index = where.partition("-")
    if where == "uplinks":
        return np.arange(2 * edges, 2 * (edges + trunks))
    if kind == "leaf" and index.isdecimal() and int(index) < cluster.num_leaves:
        up = 2 * edges + int(index) * spines + np.arange(spines)
        return np.concatenate([up, up + trunks])
    if kind == "host" and index.isdecimal() and int(index) < cluster.num_hosts:
        out = int(index) * nics + np.arange(nics)
        return np.concatenate([out, out + edges])
    src, _, dst = where.partition(">")
    if cluster.has_node(src) and cluster.has_node(dst) and cluster.has_link(src, dst):
        return np.array([link_number(cluster, src, dst)])
    raise BadConfigError(
        f"'{where}' is no link of {cluster.name}; write uplinks, leaf-0 to leaf-{cluster.num_leaves - 1}, "
        f"host-0 to host-{cluster.num_hosts - 1}, or a link such as leaf-0>spine-0"
    )


def measure_background(flows: pl.DataFrame, topology: pl.DataFrame, cluster: Cluster) -> tuple[LinkLoad, ...]:
    """Mean loads of NICs and of each leaf's uplinks, from FLOWS of other jobs and the TOPOLOGY of their addresses.

    Hosts are the cluster's hosts in the natural order of their names. Which spine a flow took is not recorded, so a
    leaf's uplinks are taken as evenly loaded.
    """
    names = sorted(topology["host"].cast(pl.String).unique().to_list(), key=_natural)
    numbers = pl.DataFrame({"host": names, "number": range(len(names))}, schema_overrides={"number": pl.Int64})
    cluster = cluster.holding(len(names))
    if len(names) > cluster.num_hosts:
        raise BadConfigError(f"the topology has {len(names)} hosts, {cluster.name} has {cluster.num_hosts}")
    rail = pl.col("rail").cast(pl.Int64) if "rail" in topology.columns else pl.lit(0, pl.Int64)
    seats = topology.with_columns(pl.col("host").cast(pl.String)).join(numbers, on="host")
    seats = seats.select("address", "number", rail.fill_null(0).alias("rail")).unique("address")
    known = flows.join(seats, left_on="src", right_on="address").join(
        seats, left_on="dst", right_on="address", suffix="_to"
    )
    last = pl.max_horizontal("start_ns", "end_ns").max()  # Not every exporter states an end.
    first_ns, last_ns = known.select(pl.col("start_ns").min(), last.alias("last")).row(0)
    span_ns = 0 if known.is_empty() else last_ns - first_ns
    if span_ns <= 0:
        raise BadConfigError("no flow of the background joins two hosts of the topology")
    gpus = cluster.gpus_per_host // min(cluster.nics.count, cluster.gpus_per_host)
    ends = [known["number"], known["rail"] * gpus, known["number_to"], known["rail_to"] * gpus]
    paths = links_of_many(cluster, *(np.minimum(e.to_numpy(), _last(cluster, i)) for i, e in enumerate(ends)))
    moved = np.repeat(known["bytes"].to_numpy().astype(float), np.diff(paths.start))
    load = np.bincount(paths.links, moved, len(link_capacities(cluster))) / span_ns / link_capacities(cluster)
    return _name_loads(cluster, load)


def _last(cluster: Cluster, place: int) -> int:
    return cluster.num_hosts - 1 if place % 2 == 0 else cluster.gpus_per_host - 1


def _name_loads(cluster: Cluster, load: NDArray[np.float64]) -> tuple[LinkLoad, ...]:
    """One entry per NIC direction that carries something, and one per link of each leaf, equal for all spines."""
    edges, spines = cluster.num_hosts * cluster.nics.count, cluster.fabric.num_spines
    even = load.copy()
    even[2 * edges :] = np.repeat(load[2 * edges :].reshape(-1, spines).mean(axis=1), spines)
    found = np.flatnonzero(even > 0).tolist()
    return tuple(LinkLoad(where=link_name(cluster, n), load=min(float(even[n]), _MOST_LOAD)) for n in found)


def _natural(name: str) -> list[tuple[int, int, str]]:
    """node-9 before node-10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _DIGITS.split(name) if part]
