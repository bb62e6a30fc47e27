"""What collectives take where the CPU moves the bytes over TCP, as gloo does.

Every algorithm is counted in messages: each costs a latency and its bytes over the rate of one stream.
All-reduce, reduce-scatter and all-gather run a ring, broadcast a binomial tree, barrier a dissemination.
Measured with gloo of torch 2.11 over loopback on 16 x86 cores, 2 to 8 ranks, 4 KiB to 16 MiB (the table is in
proving/benchmarks/collectives.py): a step of a ring or barrier costs two latencies, as both sides must be ready, and
kinds that copy or reduce besides sending reach the share of the stream given below.
"""

from __future__ import annotations

import numpy as np

from prism.simulate.cluster import Cluster
from prism.simulate.nccl.candidates import Candidate
from prism.simulate.nccl.choice import Costs, FloatArray
from prism.simulate.nccl.constants import SIMPLE
from prism.simulate.placement import GroupPlacement

_STREAM_SHARE = {"all_reduce": 0.65, "reduce": 0.65, "reduce_scatter": 0.65, "all_gather": 0.4, "all_to_all": 0.5,
                 "gather": 0.6, "scatter": 0.6}  # fmt: skip
_RINGS = ("all_reduce", "reduce", "reduce_scatter", "all_gather")


def evaluate_tcp(kind: str, sizes: FloatArray, placement: GroupPlacement, cluster: Cluster) -> Costs:
    """Time one collective over TCP for every size."""
    messages, moved = count_messages(kind, placement.num_ranks)
    latency = messages * (cluster.tcp.latency_us + (0.0 if placement.same_host else cluster.nics.latency_us))
    rate = stream_gb_per_s(kind, placement, cluster) * _STREAM_SHARE.get(kind, 1.0)
    total = latency + moved * sizes / (1000 * rate)
    algorithm = "ring" if kind in _RINGS else {"broadcast": "tree", "barrier": "dissemination"}.get(kind, "p2p")
    chosen = Candidate(
        algorithm=algorithm,
        protocol=SIMPLE,
        latency_us=latency,
        gb_per_s=rate / moved if moved else rate,
        channels=1,
    )
    return Costs(
        candidates=(chosen,),
        choice=np.zeros(len(sizes), np.int64),
        score_us=total,
        latency_us=np.full(len(sizes), latency),
        duration_us=total,
        shape_us=total,
    )


def count_messages(kind: str, num_ranks: int) -> tuple[int, float]:
    """How many latencies follow one another, and how many times the buffer is sent along that path."""
    n, depth = num_ranks, (num_ranks - 1).bit_length()
    if kind == "barrier":
        return 2 * depth, 0.0
    if kind in ("send", "recv"):
        return 1, 1.0
    if kind == "broadcast":
        return depth, float(depth)
    if kind == "all_gather":
        return 2 * (n - 1), (n - 1) / n
    if kind in _RINGS:  # gloo scatters by reducing everything; a reduce ends in a gather to the root
        return 4 * (n - 1), 2 * (n - 1) / n
    return n - 1, (n - 1) / n


def stream_gb_per_s(kind: str, placement: GroupPlacement, cluster: Cluster) -> float:
    """The rate of one stream: loopback, or the network with its NIC shared by the ranks that cross it together."""
    if placement.same_host:
        return cluster.tcp.loopback_gbps / 8
    crossing = 1.0
    if kind == "all_to_all":
        crossing = placement.ranks_per_host_max / placement.rails_per_host
        crossing *= cluster.fabric.oversubscription if placement.num_leaves > 1 else 1.0
    return min(cluster.tcp.stream_gbps, cluster.nics.gbps * placement.slowest_link / crossing) / 8
