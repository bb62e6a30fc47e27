"""Peak memory of a rank, counted from shapes: weights, gradients, optimizer, activations, output layer."""

from __future__ import annotations

from dataclasses import dataclass

from prism.simulate.plans.job import Job
from prism.simulate.plans.sizes import PARAM_BYTES, RankSizes

_STATE_BYTES = 12  # FP32 weights and two moments of Adam
_LOSS_BYTES = 10  # of one logit: BF16, its FP32 copy and the gradient of that


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of the fullest rank at its fullest moment."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    working: int  # the layer that runs, and the output layer

    @property
    def peak(self) -> int:
        """All of them together."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.working


def count_memory(job: Job, sizes: RankSizes, *, recompute: bool = False) -> Memory:
    """The fuller of the first and the last stage: the first holds most activations, the last the output layer."""
    found = [_count(job, sizes, stage, recompute=recompute) for stage in {0, job.pp - 1}]
    return max(found, key=lambda memory: memory.peak)


def _count(job: Job, sizes: RankSizes, stage: int, *, recompute: bool) -> Memory:
    is_last = stage == job.pp - 1
    edges = (stage == 0) + (is_last and not (job.model.tied and job.pp == 1))
    layers = job.model.layers // job.pp
    dense = sizes.layer_params * layers + sizes.embedding_params * edges
    experts = sizes.expert_params * layers
    replicas = job.dp * job.cp
    shards = job.shard_ranks if job.sharding == "hsdp" else replicas
    whole, unit = dense + experts, sizes.layer_params + sizes.expert_params
    if job.sharding in ("fsdp", "hsdp"):
        held, gradients, gathered = whole // shards, whole // shards, 2 * unit + sizes.embedding_params * edges
    else:
        held, gradients, gathered = whole, whole // (replicas if job.sharding == "zero2" else 1), 0
    split = 1 if job.sharding == "none" else shards
    expert_split = 1 if job.sharding == "none" else max(shards // job.ep, 1)
    tokens = job.micro_batch * job.model.seq // job.cp
    one = saved_bytes(job, tokens)
    kept = 2 * tokens * job.model.hidden // job.tp if recompute else one
    working = one + gathered * PARAM_BYTES
    if is_last:
        working += _LOSS_BYTES * tokens * job.model.vocab // job.tp
    return Memory(
        weights=held * PARAM_BYTES,
        gradients=gradients * job.grad_bytes,
        optimizer=_STATE_BYTES * (dense // split + experts // expert_split),
        activations=round(kept * _layers_in_flight(job, stage)),
        working=working,
    )


def saved_bytes(job: Job, tokens: int) -> int:
    """What the forward pass of one layer leaves for backward, with flash attention and sequence parallelism."""
    model = job.model
    key_width = model.hidden * model.kv_heads // model.heads
    experts = model.top_k if model.experts else 1
    # Inputs of both norms, of the four projections, and queries, keys, values; gate, up and their product.
    width = 6 * model.hidden + 2 * key_width + 3 * experts * model.ffn
    return 2 * tokens * width // job.tp


def _layers_in_flight(job: Job, stage: int) -> float:
    """Layers of micro-batches whose backward pass has not come, at most."""
    chunk = job.model.layers / (job.pp * job.num_chunks)
    if job.schedule == "gpipe":
        return chunk * job.microbatches
    if job.num_chunks > 1:
        begun = (job.pp - stage - 1) * 2 + (job.num_chunks - 1) * job.pp + 1
        return chunk * min(begun, job.microbatches * job.num_chunks)
    return chunk * min(job.pp - stage, job.microbatches)
