"""BUG: a ring all-reduce where every rank first sends to its right neighbour with a blocking send."""

import os

import torch
import torch.distributed as dist
from torch import nn


def ring_all_reduce(flat: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    right, left = (rank + 1) % world, (rank - 1) % world
    total, travelling = flat.clone(), flat.clone()
    for _ in range(world - 1):
        arriving = torch.empty_like(travelling)
        dist.send(travelling, dst=right)
        dist.recv(arriving, src=left)
        total += arriving
        travelling = arriving
    return total


def main():
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(10):
        x = torch.randn(8, 128)
        (net(x) - x).pow(2).mean().backward()
        flat = torch.cat([p.grad.flatten() for p in net.parameters()])
        flat = ring_all_reduce(flat, rank, world) / world
        offset = 0
        for p in net.parameters():
            p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
            offset += p.numel()
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
