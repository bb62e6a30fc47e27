"""DDP over shards of unequal length: the ranks with fewer batches leave through the join context."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


def make_shard(rank: int) -> TensorDataset:
    # Files are not equally long: every third rank has one batch more than the others.
    batches = 10 + (rank % 3 == 0)
    generator = torch.Generator().manual_seed(rank)
    return TensorDataset(
        torch.randn(batches * 8, 20, generator=generator), torch.randint(0, 2, (batches * 8,), generator=generator)
    )


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    seen = 0
    with model.join():
        for features, labels in DataLoader(make_shard(rank), batch_size=8):
            loss = nn.functional.cross_entropy(model(features), labels)
            loss.backward()
            opt.step()
            opt.zero_grad()
            seen += 1
    count = torch.tensor([seen])
    dist.all_reduce(count)
    if rank == 0:
        print("batches in total", count.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
