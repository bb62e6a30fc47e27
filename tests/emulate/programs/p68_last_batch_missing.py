"""BUG: samples are dealt out by rank and the last rank has one fewer, so with drop_last its loader ends a batch early."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

BATCH = 4


class Shard(Dataset):
    def __init__(self, rank, world):
        total = 10 * BATCH * world - 1  # one sample was unreadable
        self.mine = list(range(rank, total, world))

    def __len__(self):
        return len(self.mine)

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(self.mine[i])
        return torch.randn(12, generator=generator), self.mine[i] % 2


def main():
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    loader = DataLoader(Shard(rank, world), batch_size=BATCH, shuffle=True, drop_last=True)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 2)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
        dist.barrier()
        if rank == 0:
            print("epoch", epoch, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
