"""The modelled cost of any communication op, by the backend that the cluster runs."""

from __future__ import annotations

import numpy as np

from prism.errors import BadConfigError
from prism.records.ops import COLLECTIVES, POINT_TO_POINT
from prism.simulate.cluster import Cluster
from prism.simulate.nccl.candidates import Candidate
from prism.simulate.nccl.choice import Costs, FloatArray, evaluate
from prism.simulate.nccl.point_to_point import POINT_TO_POINT_KINDS, evaluate_point_to_point
from prism.simulate.placement import GroupPlacement
from prism.simulate.tcp import evaluate_tcp

TRANSFER_KINDS = (*COLLECTIVES, *POINT_TO_POINT)
_ALONE = Candidate(algorithm="none", protocol=2, latency_us=0.0, gb_per_s=0.0, channels=0)
_BARRIER_BYTES = 4.0  # torch's NCCL barrier is an all-reduce of one element


def evaluate_transfer(kind: str, sizes: FloatArray, placement: GroupPlacement, cluster: Cluster) -> Costs:
    """Choose and time one kind of op for every size; bytes are counted as OPS counts them."""
    if kind not in TRANSFER_KINDS:
        raise BadConfigError(f"'{kind}' moves no data; a transfer is one of {', '.join(TRANSFER_KINDS)}")
    if placement.num_ranks == 1:
        nothing = np.zeros(len(sizes))
        return Costs(
            candidates=(_ALONE,),
            choice=np.zeros(len(sizes), np.int64),
            score_us=nothing,
            latency_us=nothing,
            duration_us=nothing,
            shape_us=nothing,
        )
    if cluster.backend == "gloo":
        return evaluate_tcp(kind, sizes, placement, cluster)
    if kind in POINT_TO_POINT_KINDS:
        return evaluate_point_to_point(kind, sizes, placement, cluster)
    if kind == "barrier":
        return evaluate("all_reduce", np.full(len(sizes), _BARRIER_BYTES), placement, cluster)
    return evaluate(kind, sizes, placement, cluster)
