"""BUG: a group of the lower half and one rank more is made by the lower half only; the rank more never calls new_group."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def make_group(rank, world):
    members = list(range(world // 2 + 1))
    group = None
    if rank < world // 2:
        group = dist.new_group(members)
    return group


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    statistics = make_group(rank, world)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if statistics is not None:
            value = loss.detach().clone()
            dist.all_reduce(value, group=statistics)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
