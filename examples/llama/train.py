"""Train Llama 3 with FSDP2 the way torchtitan's published table does: bfloat16, selective activation checkpointing.

`--size 8B` with a batch of 2 and 8,192 tokens is that table's job; `--size debug` runs anywhere.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict

import torch
import torch.distributed as dist
from model import SIZES, Llama
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

SAVED = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}
"""Results that the forward pass keeps: attention, and every second matrix product; the rest is computed again."""


def parse() -> argparse.Namespace:
    """Size and batch of one rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=tuple(SIZES), default="debug")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--compile", action="store_true")
    return parser.parse_args()


def choose_saved():
    """A fresh count for every block and pass."""
    seen: dict[bool, int] = defaultdict(int)

    def policy(context, op, *args, **kwargs):
        if op == torch.ops.aten.mm.default:
            seen[context.is_recompute] += 1
            if seen[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if op in SAVED else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def build(args: argparse.Namespace, device: torch.device) -> Llama:
    """The model, sharded over all ranks before it gets any memory."""
    with torch.device("meta"):
        model = Llama(SIZES[args.size])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options = {"mesh": init_device_mesh(device.type, (dist.get_world_size(),)), "mp_policy": policy}
    for i, layer in enumerate(model.layers):
        wrapped = checkpoint_wrapper(layer, context_fn=choose_saved, preserve_rng_state=False)
        if args.compile:
            wrapped.compile(fullgraph=True)
        model.layers[i] = wrapped
    fully_shard(model.tok_embeddings, **options)
    for layer in model.layers:
        fully_shard(layer, **options)
    fully_shard([model.norm, model.output], reshard_after_forward=False, **options)
    fully_shard(model, **options)
    model.to_empty(device=device)
    with torch.no_grad():
        model.fill()
    return model


def main() -> None:
    """The training loop; the host never waits for the device."""
    args = parse()
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    device = torch.device("cuda" if on_gpu else "cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo")
    torch.manual_seed(0)
    model = build(args, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    config = SIZES[args.size]
    for _ in range(args.steps):
        tokens = torch.randint(config.vocab, (args.batch, config.length + 1), device=device)
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        del logits  # else its memory lives through the backward pass
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
