"""BUG: rank 0 sends the learning rate to every other rank, but the last one counts itself out of the receivers."""

import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def share_rate(step, rank, world):
    rate = torch.tensor([0.1 * 0.5 * (1 + math.cos(math.pi * step / 10))])
    if rank == 0:
        for other in range(1, world):
            dist.send(rate, dst=other)
    elif rank < world - 1:
        dist.recv(rate, src=0)
    return rate.item()


def main():
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 2)))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        for group in opt.param_groups:
            group["lr"] = share_rate(step, rank, world)
        x, y = torch.randn(8, 20), torch.randint(0, 2, (8,))
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
