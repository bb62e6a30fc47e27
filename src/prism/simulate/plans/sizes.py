"""How long one rank of a job computes, in nanoseconds, and how much it sends, in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from prism.simulate.plans.job import Job
from prism.simulate.plans.model import GENERIC_PEAK_FLOPS, PEAK_FLOPS

PARAM_BYTES = 2  # BF16
CHECKPOINT_BYTES_PER_PARAM = 14  # BF16 weights, FP32 weights and two FP32 Adam moments


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSizes:
    """Per layer and micro-batch unless said otherwise; bytes as OPS counts them."""

    forward_ns: float
    backward_ns: float
    logits_ns: float  # the last stage's output layer, forward
    activation_bytes: int  # the whole tensor between layers
    pipeline_bytes: int  # that a rank sends to the next stage
    kv_bytes: int  # one hop of the context-parallel ring
    exchange_bytes: int  # all that a rank sends in one expert dispatch
    layer_params: int  # of one layer on one rank, without experts
    expert_params: int  # of one layer's experts on one rank
    embedding_params: int  # on one rank of the first or last stage
    optimizer_ns: float  # per step


def size_up(job: Job, gpu: str) -> RankSizes:
    """Sizes from the model's shape; a GPU that is not listed counts as a small one."""
    model = job.model
    tokens = job.micro_batch * model.seq // job.cp
    flops = PEAK_FLOPS.get(gpu, GENERIC_PEAK_FLOPS) * job.efficiency * job.tp
    activation = tokens * model.hidden * PARAM_BYTES
    layer = (model.attention_params + (0 if model.experts else model.ffn_params)) // job.tp
    experts = model.experts // job.ep * model.ffn_params // job.tp
    on_rank = (layer + experts) * model.layers // job.pp
    # Adam reads and writes some 30 bytes per parameter at HBM speed, about 2 TB/s on these GPUs.
    optimizer = 30 * on_rank / (job.dp if job.sharding != "none" else 1) / 2e12 * 1e9
    forward = model.layer_flops(tokens) / flops * 1e9
    return RankSizes(
        forward_ns=forward,
        backward_ns=2 * forward,
        logits_ns=model.logits_flops(tokens) / flops * 1e9,
        activation_bytes=activation,
        pipeline_bytes=activation // job.tp,  # with sequence parallelism each rank holds its slice
        kv_bytes=2 * tokens * model.hidden * model.kv_heads // model.heads * PARAM_BYTES // job.tp,
        exchange_bytes=activation * model.top_k // job.tp,
        layer_params=layer,
        expert_params=experts,
        embedding_params=model.embedding_params // job.tp,
        optimizer_ns=optimizer,
    )
