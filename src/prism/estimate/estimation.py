"""Estimate a job that has no program yet: step time, memory and MFU of one layout, or of the best of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from prism.errors import BadConfigError
from prism.estimate.gpus import Gpu
from prism.estimate.layers import time_layer
from prism.estimate.layouts import Layout, list_layouts
from prism.estimate.memory import Memory, count_memory
from prism.simulate.cluster import Cluster
from prism.simulate.costs import ClusterCosts
from prism.simulate.graph import repeat_graph
from prism.simulate.plans.job import Job
from prism.simulate.plans.layout import lay_out
from prism.simulate.plans.model import ModelShape
from prism.simulate.plans.program import build_step
from prism.simulate.plans.sizes import RankSizes, size_up
from prism.simulate.solving.overlap import solve_contended

_STEPS = 2  # solved in a row; the second gathers the parameters that the first has updated
_BATCH_TOKENS = 4 << 20
# AdamW of torch, fused: 0.0089 ns a parameter on an H200, that is 43 bytes at 4.8 TB/s (`emulate_layers.py`).
_OPTIMIZER_BYTES = 43
_ROUNDS_SOLVED = (2, 4)  # micro-batches in stages; a step is linear in them once its pipeline is full


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateConfig:
    """What is trained, on what, and how much of it in a step."""

    model: ModelShape
    gpus: int
    cluster: Cluster
    gpu: Gpu
    precision: str = "bf16"
    global_batch: int | None = None  # sequences; None: about four million tokens
    usable_memory: float = 0.94  # share of a GPU's memory: its context, NCCL's buffers and the allocator take the rest
    most_solved: int = 24  # layouts of a sweep that are solved, the best by a first look
    note: Callable[[str], None] = lambda message: None

    @property
    def sequences(self) -> int:
        """Sequences of a step."""
        if self.global_batch is not None:
            return self.global_batch
        return max(1, round(_BATCH_TOKENS / self.model.seq / self.gpus)) * self.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one layout would do."""

    layout: Layout
    step_ms: float
    band_pct: float
    memory: Memory
    mfu: float
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    layout: Layout
    job: Job
    sizes: RankSizes
    memory: Memory


def estimate(config: EstimateConfig, layout: Layout) -> Estimate:
    """One layout."""
    return _solve(config, _plan(config, layout))


def sweep(config: EstimateConfig) -> list[Estimate]:
    """The layouts that fit, fastest first; where none does, those that come nearest."""
    planned = list(_plan_all(config))
    if not planned:
        raise BadConfigError(
            f"no layout divides {config.model.layers} layers and {config.model.heads} heads over --gpus {config.gpus} "
            f"with {config.sequences} sequences a step; choose another number of GPUs or --global-batch"
        )
    limit = config.usable_memory * config.gpu.memory_bytes
    fitting = [one for one in planned if one.memory.peak <= limit]
    config.note(f"{len(planned)} layouts divide the model, {len(fitting)} of them fit into {config.gpu.name}")
    if fitting:
        chosen = sorted(fitting, key=lambda one: _guess_ns(config, one))[: config.most_solved]
    else:
        chosen = sorted(planned, key=lambda one: one.memory.peak)[:3]
    return sorted((_solve(config, one) for one in chosen), key=lambda found: (not found.fits, found.step_ms))


def _plan_all(config: EstimateConfig) -> Sequence[_Planned]:
    """Every layout as it is, and with recomputed activations where it would not fit otherwise."""
    limit = config.usable_memory * config.gpu.memory_bytes
    found = []
    for layout in list_layouts(config.model, config.gpus, config.cluster.gpus_per_host, config.sequences):
        one = _plan(config, layout)
        found.append(one if one.memory.peak <= limit else _plan(config, replace(layout, recompute=True)))
    return found


def _plan(config: EstimateConfig, layout: Layout) -> _Planned:
    job = layout.job(config.model, config.sequences, grad_bytes=4 if config.precision == "bf16" else 2)
    if job.num_gpus != config.gpus:
        raise BadConfigError(f"the layout takes {job.num_gpus} GPUs, but --gpus is {config.gpus}")
    return _Planned(
        layout=layout,
        job=job,
        sizes=measure_sizes(config, job, recompute=layout.recompute),
        memory=count_memory(job, size_up(job, config.gpu.name), recompute=layout.recompute),
    )


def measure_sizes(config: EstimateConfig, job: Job, *, recompute: bool = False) -> RankSizes:
    """What a rank computes and sends, at the speed of its GPU."""
    sizes = size_up(job, config.gpu.name)
    times = time_layer(job, config.gpu, config.gpu.speed(config.precision), recompute=recompute)
    on_rank = (sizes.layer_params + sizes.expert_params) * job.model.layers // job.pp
    shards = 1 if job.sharding == "none" else job.dp * job.cp
    return replace(
        sizes,
        forward_ns=times.forward_ns,
        backward_ns=times.backward_ns,
        logits_ns=times.logits_ns,
        optimizer_ns=_OPTIMIZER_BYTES * on_rank / shards / config.gpu.memory_bytes_per_s * 1e9,
    )


def _guess_ns(config: EstimateConfig, one: _Planned) -> float:
    """A first look: compute, the pipeline's bubble, and tensor parallelism's bytes over NVLink or the network."""
    job, sizes = one.job, one.sizes
    layers = job.model.layers / job.pp
    link = config.cluster.nvlink.gb_per_s if config.cluster.nvlink else config.cluster.pcie_gb_per_s
    inside = 6 * sizes.activation_bytes * (job.tp - 1) / job.tp / link + 2 * (job.cp - 1) * sizes.kv_bytes / link
    exchange = (
        4 * sizes.exchange_bytes * (job.ep > 1) / (link if job.ep * job.tp <= config.cluster.gpus_per_host else 50)
    )
    layer = sizes.forward_ns + sizes.backward_ns + inside + exchange
    bubble = 1 + (job.pp - 1) / (job.num_chunks * job.microbatches)
    shards = 3 * job.microbatches * (job.sharding == "fsdp") * sizes.layer_params * 2 * layers / 40
    busy = job.microbatches * (layers * layer + 3 * sizes.logits_ns / job.pp) * bubble
    return max(busy, shards) + sizes.optimizer_ns


def _solve(config: EstimateConfig, one: _Planned) -> Estimate:
    step_ns = solve_step(config, one.job, one.sizes)
    speed = config.gpu.speed(config.precision)
    tokens = config.sequences * config.model.seq
    flops = 3 * (config.model.layers * config.model.layer_flops(tokens) + config.model.logits_flops(tokens))
    peak = config.gpu.bf16_flops * config.gpus * step_ns / 1e9
    return Estimate(
        layout=one.layout,
        step_ms=step_ns / 1e6,
        band_pct=speed.band_pct,
        memory=one.memory,
        mfu=flops / peak,
        fits=one.memory.peak <= config.usable_memory * config.gpu.memory_bytes,
    )


def solve_step(config: EstimateConfig, job: Job, sizes: RankSizes) -> float:
    """Nanoseconds of a step. Of many micro-batches a few are solved: each further one takes as long as the last."""
    low, high = (min(job.microbatches, rounds * job.pp) for rounds in _ROUNDS_SOLVED)
    if high >= job.microbatches:
        return _solve_short(config, job, sizes)
    few, more = (_solve_short(config, replace(job, microbatches=count), sizes) for count in (low, high))
    return few + (more - few) / (high - low) * (job.microbatches - low)


def _solve_short(config: EstimateConfig, job: Job, sizes: RankSizes) -> float:
    per_host = config.cluster.gpus_per_host
    cluster = replace(config.cluster, num_hosts=max(config.cluster.num_hosts, -(-job.num_gpus // per_host)))
    ranks = np.arange(job.num_gpus)
    graph = repeat_graph(build_step(lay_out(job, ranks // per_host, ranks % per_host), sizes), _STEPS)
    return float(solve_contended(graph, ClusterCosts(cluster, None)).step_ns[-1])
