"""Gossip SGD: after each local step a rank averages with one partner; the partner's distance doubles from step to step."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def partner_of(rank: int, step: int, world: int) -> int:
    distances = [d for d in (1, 2, 4) if d < world]
    return rank ^ distances[step % len(distances)]


def mix(model: nn.Module, partner: int) -> None:
    mine = parameters_to_vector(model.parameters()).detach()
    theirs = torch.empty_like(mine)
    send, receive = dist.isend(mine, partner), dist.irecv(theirs, partner)
    receive.wait()
    send.wait()
    vector_to_parameters((mine + theirs) / 2, model.parameters())


def spread(model: nn.Module, world: int) -> float:
    """How far the replicas have drifted apart."""
    mine = parameters_to_vector(model.parameters()).detach()
    mean = mine.clone()
    dist.all_reduce(mean)
    gap = (mine - mean / world).norm()
    dist.all_reduce(gap, op=dist.ReduceOp.MAX)
    return gap.item()


rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(rank)
for step in range(18):
    x, y = torch.randn(12, 24), torch.randint(0, 3, (12,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    mix(model, partner_of(rank, step, world))
    if step % 6 == 5:
        gap = spread(model, world)
        if rank == 0:
            print(f"step {step} spread {gap:.4f}")
dist.destroy_process_group()
