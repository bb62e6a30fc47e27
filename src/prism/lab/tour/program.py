"""The training program of the tour: a tiny GPT over bytes. Runs under torchrun, `prism supervise`, `prism emulate`.

It writes the checkpoints from which it restarts, and folders that `prism evaluate` scores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, relu, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

from prism.evaluate.run.adapters.builtin import BUILTIN_DATASETS, make_sample
from prism.evaluate.run.models.model import TINY
from prism.evaluate.run.models.tiny import write_safetensors
from prism.recover import Progress
from prism.recover.checkpoint import CheckpointConfig, Checkpointer, Health, TrainState

_HELD_OUT = 1_000_000  # samples below this number are for scoring


class Layer(nn.Module):
    """Attention and a feed-forward network, without biases."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = _matrix(width, 3 * width), _matrix(width, width)
        self.up, self.down = _matrix(width, 4 * width), _matrix(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer."""
        batch, length, width = x.shape
        parts = (_normalise(x) @ self.qkv).chunk(3, dim=-1)
        q, k, v = (p.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2) for p in parts)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.transpose(1, 2).flatten(2) @ self.out
        return x + relu(_normalise(x) @ self.up) @ self.down


class TinyGPT(nn.Module):
    """The architecture of `prism.evaluate.run.models.tiny`, with gradients."""

    def __init__(self, width: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.embed, self.place = _matrix(256, width), _matrix(context, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.scale = float(width) ** 0.5

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next byte."""
        x = self.embed[tokens] + self.place[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = _normalise(x) @ self.embed.T * self.scale
        return logits

    def export(self, folder: Path, heads: int) -> None:
        """Write the weights where `prism evaluate` finds them."""
        tensors = {name.removeprefix("layers."): t.detach().numpy() for name, t in self.named_parameters()}
        folder.mkdir(parents=True, exist_ok=True)
        context, width = self.place.shape
        shape = {"width": width, "layers": len(self.layers), "heads": heads, "context": context}
        (folder / "config.json").write_text(json.dumps({"model_type": TINY, **shape}))
        write_safetensors(folder / "model.safetensors", tensors)


def main() -> None:
    """Train."""
    options = _options()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    bare = TinyGPT(options.width, options.layers, options.heads, options.context)
    model = _shard(bare) if options.shard else DistributedDataParallel(bare)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    progress = Progress.from_environment(rank)
    if options.folder is None:
        for step in range(1, options.steps + 1):
            _train(model, optimizer, _batch(step, rank, options.context))
        return
    (options.folder / f"rank-{rank}.pid").write_text(str(os.getpid()))
    checkpointer = Checkpointer(CheckpointConfig(folder=options.folder / "checkpoints", writer="thread"), progress)
    state = {"train": TrainState(model, optimizer), "position": {"batch": 0}}
    restored = checkpointer.restore(state)
    for step in range(restored.step + 1 if restored else 1, options.steps + 1):
        loss = _train(model, optimizer, _batch(step, rank, options.context))
        state["position"] = {"batch": step}
        progress.step(step, loss=loss, batch=step)
        if step % options.save_every == 0:
            checkpointer.save(step, state, Health(loss=loss))
            if rank == 0:
                bare.export(options.folder / "exported" / f"step-{step:05d}", options.heads)
    checkpointer.close()
    dist.destroy_process_group()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--folder", type=Path, help="where checkpoints go; none are written without it")
    parser.add_argument("--shard", action="store_true", help="FSDP instead of DDP")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=96)
    return parser.parse_args()


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> float:
    optimizer.zero_grad()
    loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float(loss.detach())


def _batch(step: int, rank: int, context: int) -> torch.Tensor:
    """Lines of the built-in tasks that are never scored, as bytes."""
    rng = random.Random(step * 10_007 + rank)
    rows = []
    for _ in range(8):
        text = bytearray([0])
        while len(text) <= context:
            dataset = BUILTIN_DATASETS[rng.choice(["text", "copy", "copy", "order", "arithmetic"])]
            sample = make_sample(dataset, _HELD_OUT + rng.randrange(1 << 30))
            text += f"{sample.prompt}{sample.answer}\0".encode()
        rows.append(list(text[: context + 1]))
    return torch.tensor(rows)


def _shard(model: TinyGPT) -> nn.Module:
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return model


def _matrix(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) * rows**-0.5)


def _normalise(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6)


if __name__ == "__main__":
    main()
