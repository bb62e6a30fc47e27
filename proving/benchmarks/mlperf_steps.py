"""A published MLPerf run as an execution graph: captured layers, the run's own layout, NCCL's model of its cluster.

Compute is one layer of each kind as it was timed on an H200 (`data/layer_times.json`, `emulate_layers.py`), times one
factor for the run's GPU and precision. Models without captured layers are counted in FLOPs.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import polars as pl

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from prism.simulate.cluster_file import load_cluster  # noqa: E402
from prism.simulate.costs import ClusterCosts  # noqa: E402
from prism.simulate.graph import Graph, repeat_graph  # noqa: E402
from prism.simulate.plans.job import Job  # noqa: E402
from prism.simulate.plans.layout import lay_out  # noqa: E402
from prism.simulate.plans.model import MODELS  # noqa: E402
from prism.simulate.plans.program import build_step  # noqa: E402
from prism.simulate.plans.sizes import RankSizes, size_up  # noqa: E402
from prism.simulate.solving.overlap import SLOWER, solve_contended  # noqa: E402

SHAPES = {
    "gpt3": replace(MODELS["gpt-175b"], seq=2048),
    # 126 layers; Megatron counts the embedding and the loss as one layer each when it cuts stages. The benchmark has
    # Mixtral's tokenizer (mlcommons/training, large_language_model_pretraining/nemo: vocabulary of 32,000).
    "llama31_405b": replace(MODELS["llama-405b"], vocab=32_000),
    "llama31_8b": MODELS["llama-8b"],
    "llama2_70b_lora": replace(MODELS["llama-70b"], seq=8192),
}
# The longer name first: a GB200 is no B200.
PRESETS = {"H100": "dgx-h100", "H200": "dgx-h200", "GB200": "gb200-nvl72", "B200": "dgx-b200", "A100": "dgx-a100"}
STEPS = 2  # solved in a row; the second gathers the parameters that the first has updated
SMALLEST_FACTOR = 0.05
LORA_RANK = 16
_VOCAB_MULTIPLE = 128  # Megatron pads the vocabulary to a multiple of this on every tensor-parallel rank
_EDGES_ARE_LAYERS = ("llama31_405b",)  # the embedding and the loss each take a place of a layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Times of one rank and micro-batch, in nanoseconds, and what forward leaves for backward."""

    forward_ns: float
    backward_ns: float
    logits_ns: float  # forward and backward
    activation_bytes: int
    optimizer_ns_per_parameter: float


def read_layers() -> dict[tuple[str, int, int, int], Layer]:
    """The captured layers by model, tensor and context parallelism, and micro-batch."""
    document = json.loads((ROOT / "proving" / "benchmarks" / "data" / "layer_times.json").read_text())
    return {
        (r["model"], r["tensor_parallel"], r["context_parallel"], r["micro_batch"]): Layer(
            forward_ns=r["forward_ns"],
            backward_ns=r["backward_ns"],
            logits_ns=r["logits_forward_ns"] + r["logits_backward_ns"],
            activation_bytes=r["activation_bytes"],
            optimizer_ns_per_parameter=r["optimizer_ns_per_parameter"],
        )
        for r in document["layers"]
    }


LAYERS = read_layers()


def layer_of(row: dict[str, Any]) -> Layer | None:
    """The captured layer of a run; None where none of its shape was captured."""
    key = (row["benchmark"], *(int(row[k]) for k in ("tensor_parallel", "context_parallel", "micro_batch")))
    return LAYERS.get(key)


def gpu_of(row: dict[str, Any]) -> str:
    """The kind of GPU, as the presets name it."""
    return next(name for name in PRESETS if name in row["accelerator"])


def job_of(row: dict[str, Any]) -> Job:
    """The run's layout; pipelines of several chunks are interleaved, and Adam's state is sharded over replicas."""
    chunks, shape = int(row["virtual_pipeline"] or 1), SHAPES[row["benchmark"]]
    multiple = _VOCAB_MULTIPLE * int(row["tensor_parallel"])
    return Job(
        id=row["benchmark"],
        model=replace(shape, vocab=-(-shape.vocab // multiple) * multiple),
        dp=int(row["data_parallel"]),
        tp=int(row["tensor_parallel"]),
        pp=int(row["pipeline_parallel"]),
        cp=int(row["context_parallel"]),
        sharding="zero1",
        microbatches=int(row["accumulation"]),
        micro_batch=int(row["micro_batch"]),
        schedule="interleaved" if chunks > 1 and row["pipeline_parallel"] > 1 else "1f1b",
        virtual_stages=max(chunks, 1),
        efficiency=1.0,
        grad_bytes=2 if row["precision"] == "fp8" else 4,
        gap_ms=0.0,
    )


def write_step(row: dict[str, Any]) -> tuple[Graph, ClusterCosts]:
    """The graph of one step at the captured speed, and what its communication costs."""
    job, gpu, layer = job_of(row), gpu_of(row), layer_of(row)
    cluster = load_cluster(PRESETS[gpu])
    per_host = cluster.gpus_per_host
    cluster = replace(cluster, num_hosts=max(cluster.num_hosts, -(-job.num_gpus // per_host)))
    ranks = np.arange(job.num_gpus)
    layout = lay_out(job, ranks // per_host, ranks % per_host)
    sizes = _sizes(job, gpu, layer)
    graph = repeat_graph(build_step(layout, sizes), STEPS)
    return graph, ClusterCosts(cluster, None)


def _sizes(job: Job, gpu: str, layer: Layer | None) -> RankSizes:
    sizes = size_up(job, gpu)
    if job.id == "llama2_70b_lora":
        # Frozen weights have no gradients; adapters of rank r on four projections of each layer have.
        shape = job.model
        widths = 4 * shape.hidden + 2 * shape.hidden * shape.kv_heads // shape.heads + 3 * (shape.hidden + shape.ffn)
        sizes = replace(sizes, layer_params=LORA_RANK * widths // job.tp, embedding_params=0)
    if layer is None:
        return sizes
    params = sizes.layer_params * job.model.layers / job.pp / (job.dp * job.cp)
    return replace(
        sizes,
        forward_ns=layer.forward_ns,
        backward_ns=layer.backward_ns,
        logits_ns=0.0 if job.id in _EDGES_ARE_LAYERS else layer.logits_ns / 3,
        optimizer_ns=layer.optimizer_ns_per_parameter * params,
    )


def _scale(graph: Graph, which: pl.Expr, factor: float) -> Graph:
    scaled = pl.when(which).then((pl.col("duration_ns") * factor).round().cast(pl.Int64)).otherwise("duration_ns")
    return replace(graph, ops=graph.ops.with_columns(scaled.alias("duration_ns")))


def step_seconds(graph: Graph, costs: ClusterCosts, factor: float, slower: float = SLOWER) -> float:
    """A step with compute scaled by the factor, and slower beside collectives."""
    scaled = _scale(graph, pl.col("kind").is_in(["compute", "host"]), factor)
    return float(solve_contended(scaled, costs, slower=slower).step_ns[-1]) / 1e9


def fit_factor(graph: Graph, costs: ClusterCosts, measured_s: float, slower: float = SLOWER) -> float:
    """The compute factor at which the step takes as long as measured."""
    # A step is nearly linear in the factor, so a few secants are enough.
    before, factor = 1.0, 0.7
    at_before = step_seconds(graph, costs, before, slower)
    for _ in range(5):
        at = step_seconds(graph, costs, factor, slower)
        if abs(at / measured_s - 1) < 1e-4 or at == at_before:
            break
        slope = (at - at_before) / (factor - before)
        before, at_before, factor = factor, at, max(SMALLEST_FACTOR, factor + (measured_s - at) / slope)
    return factor


def slowest_of(count: int) -> float:
    """How many standard deviations the slowest of so many equal GPUs lies above their mean (Blom's approximation)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def state_gib(row: dict[str, Any]) -> float:
    """Adam's state of a rank of the first stage: FP32 weights and two moments, sharded over its replicas."""
    job = job_of(row)
    sizes = size_up(job, gpu_of(row))
    layers = job.model.layers / job.pp - (row["benchmark"] in _EDGES_ARE_LAYERS)
    params = sizes.layer_params * layers + sizes.embedding_params
    return 12 * params / (job.dp * job.cp) / 2**30
