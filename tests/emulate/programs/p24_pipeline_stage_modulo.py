"""Hand-written pipeline, stage = rank % stages: neighbours in rank are neighbours in the pipeline; 1F1B order."""

import os

import torch
import torch.distributed as dist
from torch import nn

STAGES, MICRO, DIM, BATCH = 4, 6, 48, 4


def forward(net, stage, rank, sent):
    x = torch.randn(BATCH, DIM)
    if stage > 0:
        dist.recv(x, rank - 1)
        x.requires_grad_()
    y = net(x)
    if stage < STAGES - 1:
        y_out = y.detach()
        sent.append((dist.isend(y_out, rank + 1), y_out))
    return x, y


def backward(saved, stage, rank, sent):
    x, y = saved
    if stage == STAGES - 1:
        (y.pow(2).mean() / MICRO).backward()
    else:
        grad = torch.empty_like(y)
        dist.recv(grad, rank + 1)
        y.backward(grad)
    if stage > 0:
        sent.append((dist.isend(x.grad, rank - 1), x.grad))


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
        sent = []  # a blocking send would stop both neighbours in the steady state
        queue = [forward(net, stage, rank, sent) for _ in range(warm)]
        for _ in range(MICRO - warm):
            queue.append(forward(net, stage, rank, sent))
            backward(queue.pop(0), stage, rank, sent)
        while queue:
            backward(queue.pop(0), stage, rank, sent)
        for work, _ in sent:
            work.wait()
        for p in net.parameters():
            dist.all_reduce(p.grad, group=replicas)
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
