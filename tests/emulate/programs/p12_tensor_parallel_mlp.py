"""Tensor parallel feed-forward stack with DTensor styles over all ranks (up to eight) and DDP-like averaging between them."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


world = int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
tp_size = min(world, 4)
mesh = init_device_mesh("cpu", (world // tp_size, tp_size), mesh_dim_names=("dp", "tp"))
torch.manual_seed(0)
model = nn.Sequential(*[FeedForward(32, 64) for _ in range(3)])
for block in model:
    parallelize_module(
        block, mesh["tp"], {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
    )
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
data_group = mesh["dp"].get_group()
torch.manual_seed(mesh["dp"].get_local_rank())

for _ in range(10):
    x = torch.randn(4, 32)
    loss = model(x).square().mean()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad.to_local(), group=data_group)
        p.grad.to_local().div_(world // tp_size)
    optimizer.step()
    optimizer.zero_grad()

dist.destroy_process_group()
