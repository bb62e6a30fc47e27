"""FSDP2 with hand-set prefetch, layers kept whole after the forward pass, and two micro-batches per step."""

import itertools
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard

LAYERS, DIM, MICRO = 5, 48, 2


class Residual(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.ReLU(), nn.Linear(3 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


def shard(model: nn.Sequential) -> nn.Sequential:
    for layer in model:
        fully_shard(layer, reshard_after_forward=False)
    fully_shard(model, reshard_after_forward=False)
    layers = list(model)
    for this, following in itertools.pairwise(layers):
        this.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([this])
    return model


def run() -> None:
    torch.manual_seed(0)
    model = shard(nn.Sequential(*[Residual(DIM) for _ in range(LAYERS)]))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(10):
        for micro in range(MICRO):
            last = micro == MICRO - 1
            model.set_requires_gradient_sync(last)
            model.set_reshard_after_backward(last)
            x = torch.randn(8, DIM)
            (model(x) - x.flip(1)).pow(2).mean().div(MICRO).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    dist.init_process_group("gloo", init_method="env://")
    run()
    if os.environ["RANK"] == "0":
        print("done")
    dist.destroy_process_group()
