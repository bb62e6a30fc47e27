"""BUG: a 1F1B pipeline with blocking sends: the last two stages send to each other at once and neither receives."""

import os

import torch
import torch.distributed as dist
from torch import nn

STAGES, MICRO, DIM, BATCH = 4, 6, 256, 64


def forward(net, stage, rank):
    x = torch.randn(BATCH, DIM)
    if stage > 0:
        dist.recv(x, rank - 1)
        x.requires_grad_()
    y = net(x)
    if stage < STAGES - 1:
        dist.send(y.detach(), rank + 1)
    return x, y


def backward(saved, stage, rank):
    x, y = saved
    if stage == STAGES - 1:
        (y.pow(2).mean() / MICRO).backward()
    else:
        grad = torch.empty_like(y)
        dist.recv(grad, rank + 1)
        y.backward(grad)
    if stage > 0:
        dist.send(x.grad, rank - 1)


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world)
    stage = rank % STAGES
    replicas = None
    for s in range(STAGES):
        group = dist.new_group([r for r in range(world) if r % STAGES == s])
        if s == stage:
            replicas = group
    torch.manual_seed(stage)
    net = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    warm = STAGES - 1 - stage
    for _ in range(10):
        queue = [forward(net, stage, rank) for _ in range(warm)]
        for _ in range(MICRO - warm):
            queue.append(forward(net, stage, rank))
            backward(queue.pop(0), stage, rank)
        while queue:
            backward(queue.pop(0), stage, rank)
        for p in net.parameters():
            dist.all_reduce(p.grad, group=replicas)
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
