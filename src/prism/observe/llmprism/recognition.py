"""Phase 1: which endpoints belong to one job."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe.jobs.grouping import list_parts
from prism.observe.traffic.table import Traffic

_ALIKE = 0.5  # Jaccard similarity of server sets above which clusters are one job; the threshold is not published

Ints = NDArray[np.int64]


def recognise_clusters(traffic: Traffic) -> list[Ints]:
    """Endpoints of each job, the largest first: joined by flows, then by similar sets of servers."""
    src, dst = (traffic.pairs[side].to_numpy().astype(np.int64) for side in ("src", "dst"))
    trains = _is_gpu(traffic.endpoints)
    inside = trains[src] & trains[dst]
    clusters = list_parts(src[inside], dst[inside])
    host = traffic.endpoints["host_id"].to_numpy().astype(np.int64)
    jobs = _merge(clusters, [frozenset(host[c].tolist()) for c in clusters])
    return sorted(jobs, key=lambda members: (-len(members), int(members[0])))


def _is_gpu(endpoints: pl.DataFrame) -> NDArray[np.bool_]:
    """The method is given a list of GPUs: where the topology numbers rails, what has none is not a GPU's NIC."""
    railed: NDArray[np.bool_] = endpoints["rail"].is_not_null().to_numpy()
    return railed if railed.any() else np.ones(endpoints.height, np.bool_)


def _merge(clusters: list[Ints], servers: list[frozenset[int]]) -> list[Ints]:
    """Join clusters whose sets of servers are alike: tensor-parallel peers leave by other NICs of the same servers."""
    jobs: list[tuple[Ints, frozenset[int]]] = []
    for members, hosts in sorted(zip(clusters, servers, strict=True), key=lambda c: (-len(c[1]), int(c[0][0]))):
        for i, (others, known) in enumerate(jobs):
            if len(hosts & known) >= _ALIKE * len(hosts | known):
                jobs[i] = (np.union1d(others, members), known | hosts)
                break
        else:
            jobs.append((members, hosts))
    return [members for members, _ in jobs]
