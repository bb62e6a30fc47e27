"""BUG: one rank names itself as the source of the weights' broadcast, all others name rank 0."""

import os

import torch
import torch.distributed as dist
from torch import nn


class Restored:
    """Which rank has the newest weights on its disk."""

    def __init__(self, rank, world):
        self.rank, self.has_file = rank, rank in (0, world - 2)

    def source(self):
        return self.rank if self.has_file else 0


def main():
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    restored = Restored(rank, world)
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 16))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(12):
        if step % 4 == 0:  # replicas are made alike again now and then
            for p in model.parameters():
                dist.broadcast(p.data, src=restored.source())
        x, y = torch.randn(8, 256), torch.randint(0, 16, (8,))
        nn.functional.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
