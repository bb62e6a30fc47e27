"""Which links each transfer of a solved graph crosses, and how much of its bytes each of them carries."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from prism.simulate.cluster import Cluster
from prism.simulate.graph import Graph
from prism.simulate.links import links_of_many
from prism.simulate.solving.program import Ints, Program
from prism.simulate.solving.wiring import Connections, Wiring


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLinks:
    """Links of site s are `links[start[s]:start[s + 1]]`; each carries `share[s]` of what the op moves."""

    start: Ints
    links: Ints
    share: npt.NDArray[np.float64]


def find_site_links(graph: Graph, ports: Connections, wiring: Wiring, cluster: Cluster) -> SiteLinks:
    """A message crosses its path; a collective the ring through its hosts, once per rail that all of them have."""
    hosts, locals_ = graph.ranks["host"].to_numpy(), graph.ranks["local"].to_numpy()
    num_sites = len(wiring.group)
    share = np.zeros(num_sites)
    edges: list[Ints] = []
    entry = wiring.site_entry[wiring.site_entry_start[:-1]]
    for site in range(num_sites):
        source, target = ports.source[entry[site]], ports.target[entry[site]]
        if source >= 0:
            share[site] = 1.0
            edges.append(np.array([[site, hosts[source], locals_[source], hosts[target], locals_[target]]]))
            continue
        group = wiring.group[site]
        ranks = ports.members.rank[ports.members.start[group] : ports.members.start[group + 1]]
        ring = _ring_edges(hosts[ranks], locals_[ranks], cluster)
        if len(ring):
            rails = len(ring) // len(np.unique(hosts[ranks]))
            share[site] = (len(ranks) - 1) / len(ranks) / rails
            edges.append(np.c_[np.full(len(ring), site), ring])
    table = np.concatenate(edges) if edges else np.zeros((0, 5), np.int64)
    found = links_of_many(cluster, *(np.ascontiguousarray(table[:, i]).astype(np.int64) for i in range(1, 5)))
    owner = np.repeat(table[:, 0], np.diff(found.start))
    distinct = np.unique(np.stack([owner, found.links]), axis=1) if len(owner) else np.zeros((2, 0), np.int64)
    start = np.searchsorted(distinct[0], np.arange(num_sites + 1))
    return SiteLinks(start=start.astype(np.int64), links=distinct[1].astype(np.int64), share=share)


def op_traffic(graph: Graph, program: Program) -> npt.NDArray[np.float64]:
    """Bytes that each op drives around its ring: an all-reduce twice its buffer, others once."""
    sent = graph.ops.select(
        pl.coalesce(pl.col("bytes"), pl.col("sizes").list.sum(), pl.lit(0))
        * pl.when(pl.col("kind") == "all_reduce").then(2.0).otherwise(1.0)
    ).to_series()
    traffic: npt.NDArray[np.float64] = sent.to_numpy()[np.maximum(program.row, 0)]
    return traffic


def _ring_edges(hosts: Ints, locals_: Ints, cluster: Cluster) -> Ints:
    """Host to next host on every rail that each host has, closing the ring; none inside one host."""
    order = list(dict.fromkeys(hosts.tolist()))
    if len(order) < 2:
        return np.zeros((0, 4), np.int64)
    on = {h: {int(cluster.rail_of(int(k))): int(k) for k in locals_[hosts == h]} for h in order}
    rails = set.intersection(*(set(seats) for seats in on.values()))
    rows = []
    for one, two in pairwise([*order, order[0]]):
        pairs = [(on[one][r], on[two][r]) for r in sorted(rails)] or [(min(on[one].values()), min(on[two].values()))]
        rows += [[one, a, two, b] for a, b in pairs]
    return np.array(rows, np.int64)
