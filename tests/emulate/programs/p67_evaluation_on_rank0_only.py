"""BUG: only rank 0 evaluates, but the evaluation reduces its metric over all ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


@torch.no_grad()
def evaluate(model, loader):
    totals = torch.zeros(2)
    for x, y in loader:
        totals[0] += (model(x).argmax(-1) == y).sum()
        totals[1] += len(y)
    dist.all_reduce(totals)
    return (totals[0] / totals[1]).item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 3)))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    held_out = DataLoader(TensorDataset(torch.randn(32, 16), torch.randint(0, 3, (32,))), batch_size=8)
    for step in range(1, 13):
        x, y = torch.randn(8, 16), torch.randint(0, 3, (8,))
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
        if step % 4 == 0 and rank == 0:
            print(step, evaluate(model.module, held_out))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
