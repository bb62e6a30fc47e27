"""What NCCL would choose for a collective, and how long it takes.

NCCL scores every algorithm and protocol by `latency + bytes / bandwidth` and runs the cheapest
(src/graph/tuning.cc). The choice here is by exactly that score. Durations add what the score leaves out:

- NVLS moves a message through scatter, reduce and gather in rounds of chunks; filling and draining that pipeline
  costs two more rounds (src/device/all_reduce.h for the stages, src/enqueue.cc for the chunk sizes).
- LL runs a message under `channels x ranks x 4 KiB` on fewer channels, so its bandwidth is that of the channels used.
- Broadcast and reduce pass the first chunk along the whole chain of ranks.
- Nothing is quicker than what the NICs of a host really carry (`transports.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prism.simulate.cluster import Cluster
from prism.simulate.nccl import constants as tables
from prism.simulate.nccl import older
from prism.simulate.nccl.candidates import Candidate, find_candidates, hop_latencies, num_steps
from prism.simulate.nccl.channels import Communicator, communicator
from prism.simulate.nccl.constants import LL, SIMPLE
from prism.simulate.nccl.transports import network_us
from prism.simulate.placement import GroupPlacement

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Times of one collective on one placement, for an array of sizes."""

    candidates: tuple[Candidate, ...]
    choice: NDArray[np.int64]  # into candidates
    score_us: FloatArray  # what NCCL itself expects
    latency_us: FloatArray  # the part that does not grow with size
    duration_us: FloatArray
    shape_us: FloatArray  # the curve that measurements are interpolated along

    @property
    def algorithms(self) -> NDArray[np.str_]:
        """Algorithm and protocol chosen for each size, such as ring/LL."""
        return np.array([c.name for c in self.candidates])[self.choice]


def evaluate(kind: str, sizes: FloatArray, placement: GroupPlacement, cluster: Cluster) -> Costs:
    """Choose and time a ring-like collective for every size."""
    comm = communicator(placement, cluster)
    candidates = find_candidates(kind, placement, cluster)
    scores = np.stack([_score(c, kind, sizes, comm) for c in candidates])
    choice = np.argmin(scores, axis=0)
    score = scores[choice, np.arange(len(sizes))]
    duration, shape = score.copy(), score.copy()
    for index in np.unique(choice):
        chosen = choice == index
        longer, stepped = _refine(candidates[index], kind, sizes[chosen], score[chosen], comm)
        busy = candidates[index].latency_us + network_us(kind, candidates[index].algorithm, sizes[chosen], comm)
        duration[chosen], shape[chosen] = np.maximum(longer, busy), np.maximum(stepped, busy)
    latency = np.array([c.latency_us for c in candidates])[choice]
    return Costs(
        candidates=candidates,
        choice=choice,
        score_us=score,
        latency_us=latency,
        duration_us=duration,
        shape_us=shape,
    )


def _score(candidate: Candidate, kind: str, sizes: FloatArray, comm: Communicator) -> FloatArray:
    """NCCL's expected time of one candidate, in microseconds."""
    placement, cluster = comm.placement, comm.cluster
    is_old = cluster.nccl_minor <= older.LAST_MINOR
    bandwidth = np.full(len(sizes), candidate.gb_per_s)
    log_size = np.frexp(np.floor(sizes / 64))[1] - 1
    corrected = candidate.algorithm == "tree"
    if candidate.algorithm == "nvls_tree":
        corrected = cluster.arch == "blackwell" and cluster.cpu != "arm"
    if corrected:
        table = np.array((older.TREE_CORRECTION if is_old else tables.TREE_CORRECTION)[candidate.protocol])
        last = 22 if candidate.algorithm == "tree" else 23
        inside = (log_size >= 0) & (log_size <= last)
        bandwidth *= np.where(inside, table[np.clip(log_size, 0, 23)], 1.0)
    latency = np.full(len(sizes), candidate.latency_us)
    if (candidate.algorithm, candidate.protocol, kind) == ("ring", SIMPLE, "all_reduce") and not placement.same_host:
        if is_old:
            latency *= np.where(older.is_on_plateau(sizes, placement.num_ranks), older.PLATEAU, 1.0)
        else:
            share = sizes // (candidate.channels * placement.num_ranks)
            latency *= np.where(share >= 64, 1.4, 1.0)  # the plateau of rings over networks
    score: FloatArray = latency + sizes / (1000 * bandwidth)
    return score


def _refine(
    candidate: Candidate, kind: str, sizes: FloatArray, score: FloatArray, comm: Communicator
) -> tuple[FloatArray, FloatArray]:
    """Duration and shape of the chosen candidate: its score and what the score leaves out."""
    placement = comm.placement
    if candidate.algorithm == "nvls":
        heads = placement.num_ranks
        rounds = 2 if kind == "all_reduce" else 1  # all-gather and reduce-scatter have two stages, not three
        per_round = np.minimum(sizes, candidate.channels * heads * _nvls_chunk(sizes, candidate.channels * heads))
        filled = score + rounds * per_round / (1000 * candidate.gb_per_s)
        return filled, filled
    if candidate.algorithm != "ring":
        return score, score
    if kind in ("broadcast", "reduce"):
        intra, inter = hop_latencies("ring", candidate.protocol, comm)
        chain = (placement.num_ranks - placement.num_hosts) * intra + (placement.num_hosts - 1) * inter
        score = score + max(0.0, chain - (intra if placement.same_host else inter))
    if candidate.protocol != LL:
        return score, score
    return _refine_ll(candidate, kind, sizes, score, comm)


def _refine_ll(
    candidate: Candidate, kind: str, sizes: FloatArray, score: FloatArray, comm: Communicator
) -> tuple[FloatArray, FloatArray]:
    """LL in steps of 4 KiB per channel and rank, on as many channels as the message fills."""
    ranks, steps = comm.placement.num_ranks, num_steps(kind, comm.placement.num_ranks)
    full = ranks * candidate.channels * tables.LL_BYTES_PER_STEP
    step_bytes = np.maximum(np.minimum(sizes / ranks, tables.LL_BYTES_PER_STEP), sizes / (ranks * candidate.channels))
    # A 16-byte line carries 8 bytes with LL, a 128-byte line 120 with LL128; NCCL states only the rate of the latter.
    channel_gb = tables.RING_LL128_PER_CHANNEL[comm.cluster.arch][comm.scale] * (8 / 16) / (120 / 128)
    duration = np.maximum(score, candidate.latency_us + steps * step_bytes / (1000 * channel_gb))
    if not comm.placement.same_host:
        return duration, duration
    # Where a measurement sets the level, only the shape counts: one more pass over all channels per full load.
    graph = comm.graphs.ring
    uncapped = graph.channels * graph.intra * 0.5 * ranks / steps
    passes = np.ceil(np.maximum(sizes, 1) / full)
    return duration, candidate.latency_us + passes * full / (1000 * uncapped)


def _nvls_chunk(sizes: FloatArray, concurrent: int) -> FloatArray:
    """Bytes per chunk: NCCL halves it until a message has enough rounds to pipeline."""
    chunk = np.full(len(sizes), float(tables.NVLS_CHUNKS[0][0]))
    for size, rounds in tables.NVLS_CHUNKS:
        chunk = np.where((chunk == size) & (sizes < rounds * concurrent * chunk), size / 2, chunk)
    return chunk
