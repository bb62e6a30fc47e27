"""How long one transformer layer takes on a kind of GPU: its work, and how fast that GPU does each part of it."""

from __future__ import annotations

from dataclasses import dataclass

from prism.estimate.gpus import Gpu, Speed
from prism.simulate.plans.job import Job
from prism.simulate.plans.model import ModelShape

_BYTES = 2  # of an activation


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """What one rank does for one layer and micro-batch, forward."""

    linear_flops: float
    attention_flops: float
    wide_bytes: float  # of activations whose width tensor parallelism divides, written once
    full_bytes: float  # of those between blocks, written once


def count_work(model: ModelShape, tokens: int, tp: int) -> LayerWork:
    """The work of `tokens` positions of sequences of the model's length, divided over `tp` ranks."""
    key_width = model.hidden * model.kv_heads // model.heads
    experts = model.top_k if model.experts else 1
    params = model.attention_params + experts * model.ffn_params
    width = 2 * model.hidden + 2 * key_width + 3 * experts * model.ffn
    return LayerWork(
        linear_flops=2.0 * params * tokens / tp,
        attention_flops=2.0 * tokens * model.seq * model.hidden / tp,
        wide_bytes=_BYTES * tokens * width / tp,
        full_bytes=_BYTES * tokens * model.hidden / tp,  # sequence parallelism divides these, too
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """Nanoseconds of one layer and micro-batch, and of the output layer forward."""

    forward_ns: float
    backward_ns: float
    logits_ns: float


def time_layer(job: Job, gpu: Gpu, speed: Speed, *, recompute: bool = False) -> LayerTime:
    """A layer of one rank of a job; with recomputing, backward repeats the forward pass."""
    tokens = job.micro_batch * job.model.seq // job.cp
    work = count_work(job.model, tokens, job.tp)
    forward = _time(work, gpu, speed, 1.0, 1.0)
    backward = _time(work, gpu, speed, 2.0, 2.5)
    logits = job.model.logits_flops(tokens) / job.tp / (gpu.bf16_flops * gpu.speeds["bf16"].linear)
    return LayerTime(forward_ns=forward, backward_ns=backward + forward * recompute, logits_ns=logits * 1e9)


def _time(work: LayerWork, gpu: Gpu, speed: Speed, linear: float, attention: float) -> float:
    """Matrix products at a share of the peak, attention at a share of BF16's, the rest at memory's speed."""
    memory = (speed.wide_passes * work.wide_bytes + speed.full_passes * work.full_bytes) * linear
    seconds = (
        linear * work.linear_flops / (speed.peak_flops * speed.linear)
        + attention * work.attention_flops / (gpu.bf16_flops * speed.attention)
        + memory / gpu.memory_bytes_per_s
    )
    return seconds * 1e9
