"""torch.compile (aot_eager) of each block inside FSDP2, with recomputation of every other block."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard


class Mixer(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.across = nn.Linear(tokens, tokens)
        self.inside = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.inside(self.norm2(x))


def build(depth=4, tokens=8, dim=32):
    blocks = []
    for i in range(depth):
        block = Mixer(tokens, dim)
        if i % 2 == 1:
            block = checkpoint_wrapper(block)
        block.compile(backend="aot_eager")
        blocks.append(fully_shard(block))
    return fully_shard(nn.Sequential(*blocks))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for _ in range(10):
        x = torch.randn(4, 8, 32)
        loss = (model(x) - x.roll(1, dims=1)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
