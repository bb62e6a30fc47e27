"""NIC addresses: endpoint `host x NICs + rail` of a cluster, its address, its host's name and its switches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.records.topology import TOPOLOGY
from prism.simulate.cluster import Cluster

Ints = NDArray[np.int64]
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # Fibonacci hashing: odd, and close to 2^64 over the golden ratio


def host_name(host: int) -> str:
    """A host as operators write it."""
    return f"node-{host:04d}"


def address_of(host: int, rail: int) -> str:
    """The address of one NIC."""
    return f"10.{host // 256}.{host % 256}.{rail + 1}"


def list_endpoints(cluster: Cluster, hosts: Sequence[int] | None = None) -> pl.DataFrame:
    """TOPOLOGY rows of some hosts, or of all, in the order of their endpoint numbers."""
    chosen = range(cluster.num_hosts) if hosts is None else hosts
    rows = [
        (address_of(h, r), host_name(h), r, f"leaf-{cluster.leaf_of(h, r)}")
        for h in chosen
        for r in range(cluster.nics.count)
    ]
    return pl.DataFrame(rows, schema=TOPOLOGY.required, orient="row")


def hash_columns(*columns: Ints) -> NDArray[np.uint64]:
    """A well-spread number per row, the same in every run."""
    state = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        state = (state ^ column.astype(np.int64).view(np.uint64)) * _MULTIPLIER
        state ^= state >> np.uint64(29)
    return state


def choose_spines(cluster: Cluster, src: Ints, dst: Ints, port: Ints) -> Ints:
    """The spine that ECMP hashing gives each connection; -1 where both NICs are on one leaf."""
    count = cluster.nics.count
    same = cluster.leaf_of(src // count, src % count) == cluster.leaf_of(dst // count, dst % count)
    spine = (hash_columns(src, dst, port) >> np.uint64(33)) % np.uint64(cluster.fabric.num_spines)
    return np.where(same, -1, spine.astype(np.int64))


def name_paths(cluster: Cluster, src: Ints, dst: Ints, spine: Ints) -> pl.Series:
    """The switches of each connection, joined with ">"."""
    count = cluster.nics.count
    frame = pl.DataFrame(
        {
            "up": cluster.leaf_of(src // count, src % count),
            "spine": spine,
            "down": cluster.leaf_of(dst // count, dst % count),
        }
    )
    leaf = pl.format("leaf-{}", "up")
    across = pl.format("leaf-{}>spine-{}>leaf-{}", "up", "spine", "down")
    return frame.select(pl.when(pl.col("spine") < 0).then(leaf).otherwise(across).alias("path"))["path"]
