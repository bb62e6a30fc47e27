"""Train a small GPT with megatron-core (pip install megatron-core): tensor, pipeline and data parallelism.

On GPUs: megatron's own DDP, distributed optimizer and pipeline schedules. Without one: tensor and data parallelism
only, since megatron-core keeps its gradient buffers and pipeline buffers on CUDA devices.
"""

from __future__ import annotations

import argparse
import os
from functools import partial

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig


def parse() -> argparse.Namespace:
    """Degrees and sizes; data parallelism takes what tensor and pipeline leave."""
    parser = argparse.ArgumentParser()
    for name, default in (
        ("tp", 1), ("pp", 1), ("layers", 4), ("width", 128), ("heads", 4), ("length", 64), ("batch", 4),
        ("microbatches", 4), ("vocab", 1024), ("steps", 10),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--sequence-parallel", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Set megatron up as its own examples do, then train."""
    args = parse()
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    parallel_state.initialize_model_parallel(args.tp, args.pp)
    if on_gpu:
        tensor_parallel.model_parallel_cuda_manual_seed(1)
    torch.manual_seed(1)
    model = build_model(args, on_gpu)
    train_step = _with_megatron(model, args) if on_gpu else _with_torch(model, args)
    for step in range(args.steps):
        loss = train_step()
        if loss is not None and dist.get_rank() == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


def build_model(args: argparse.Namespace, on_gpu: bool) -> GPTModel:
    """This rank's part of the model."""
    config = TransformerConfig(
        num_layers=args.layers, hidden_size=args.width, num_attention_heads=args.heads,
        use_cpu_initialization=not on_gpu, pipeline_dtype=torch.float32,
        tensor_model_parallel_size=args.tp, pipeline_model_parallel_size=args.pp,
        sequence_parallel=args.sequence_parallel, hidden_dropout=0.0, attention_dropout=0.0,
        gradient_accumulation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False,
    )  # fmt: skip
    spec = get_gpt_layer_local_spec()
    if not on_gpu:
        spec.submodules.self_attention.submodules.core_attention = PlainAttention
    model = GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=args.vocab,
        max_sequence_length=args.length,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    )
    return model.cuda() if on_gpu else model


class PlainAttention(torch.nn.Module):
    """Attention without megatron's scratch buffer, which lives on a CUDA device."""

    def __init__(self, config: TransformerConfig, *unused: object, **unused_too: object) -> None:
        super().__init__()
        self.config = config

    def forward(self, query, key, value, *unused, **unused_too):
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))  # length, batch, heads, width
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.permute(2, 0, 1, 3).flatten(-2).contiguous()


def _batch(args: argparse.Namespace, device: str) -> dict[str, torch.Tensor]:
    tokens = torch.randint(args.vocab, (args.batch, args.length), device=device)
    mask = torch.ones(args.batch, 1, args.length, args.length, dtype=torch.bool, device=device).tril() < 0.5
    return {
        "input_ids": tokens,
        "position_ids": torch.arange(args.length, device=device).expand_as(tokens),
        "attention_mask": mask,
        "labels": tokens,
    }


def _with_megatron(model: GPTModel, args: argparse.Namespace):
    """Megatron's DDP, distributed optimizer and pipeline schedule."""
    config = model.config
    wrapped = DistributedDataParallel(
        config, DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_grad_reduce=True), model
    )
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=1e-4, use_distributed_optimizer=True, clip_grad=1.0), [wrapped]
    )

    def loss_of(output: torch.Tensor):
        loss = output.float().mean()
        return loss, {"loss": loss.detach()}

    def forward(data, part):
        return part(**_batch(args, "cuda")), loss_of

    def step() -> float | None:
        wrapped.zero_grad_buffer()
        optimizer.zero_grad()
        losses = get_forward_backward_func()(
            forward_step_func=forward, data_iterator=None, model=[wrapped], num_microbatches=args.microbatches,
            seq_length=args.length, micro_batch_size=args.batch, forward_only=False,
        )  # fmt: skip
        optimizer.step()
        return losses[0]["loss"].item() if losses else None

    return step


def _with_torch(model: GPTModel, args: argparse.Namespace):
    """Megatron's tensor-parallel layers under torch's DDP."""
    if args.pp > 1:
        raise SystemExit("megatron-core's pipeline needs a CUDA device; use --pp 1 here")
    group = parallel_state.get_data_parallel_group()
    wrapped = torch.nn.parallel.DistributedDataParallel(model, process_group=group) if group.size() > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    reduce = partial(
        dist.all_reduce, op=dist.ReduceOp.AVG if torch.cuda.is_available() else dist.ReduceOp.SUM, group=group
    )

    def step() -> float:
        optimizer.zero_grad()
        loss = wrapped(**_batch(args, "cpu")).float().mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not torch.isfinite(norm):
            raise RuntimeError("the gradient norm is not finite")
        optimizer.step()
        shown = loss.detach().clone()
        reduce(shown)
        return float(shown) / group.size()

    return step


if __name__ == "__main__":
    main()
