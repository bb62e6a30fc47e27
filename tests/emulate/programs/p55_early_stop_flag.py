"""Early stopping that all ranks agree on: validation every four steps, patience kept on rank 0, the flag broadcast."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class EarlyStop:
    def __init__(self, patience: int):
        self.best, self.left, self.patience = float("inf"), patience, patience

    def update(self, value: float) -> bool:
        if value < self.best - 1e-4:
            self.best, self.left = value, self.patience
        else:
            self.left -= 1
        return self.left <= 0


@torch.no_grad()
def validate(model, loader):
    model.eval()
    totals = torch.zeros(2)
    for x, y in loader:
        totals += torch.tensor([(model.module(x) - y).pow(2).sum().item(), float(len(x))])
    dist.all_reduce(totals)
    model.train()
    return (totals[0] / totals[1]).item()


def main():
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    x = torch.randn(32 * world, 10)
    data = TensorDataset(x, x @ torch.randn(10, 1))
    sampler = DistributedSampler(data, shuffle=True)
    train = DataLoader(data, batch_size=8, sampler=sampler)
    valid = DataLoader(data, batch_size=16, sampler=DistributedSampler(data, shuffle=False))
    model = DDP(nn.Linear(10, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.4)
    stopper, step, stop = EarlyStop(patience=2), 0, torch.zeros(1)
    for epoch in range(12):
        sampler.set_epoch(epoch)
        for features, target in train:
            opt.zero_grad()
            (model(features) - target).pow(2).mean().backward()
            opt.step()
            step += 1
            if step % 4 == 0:
                error = validate(model, valid)
                if rank == 0:
                    stop.fill_(float(stopper.update(error)))
                dist.broadcast(stop, src=0)
                if stop.item():
                    break
        if stop.item():
            break
    if rank == 0:
        print("stopped after", step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
