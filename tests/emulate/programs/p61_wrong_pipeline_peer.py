"""BUG: the third pipeline stage returns its gradient to rank - 1 instead of the rank of the stage before."""

import torch
import torch.distributed as dist
from torch import nn

STAGES, MICRO, DIM, BATCH = 4, 2, 32, 4

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
replicas = world // STAGES
stage = rank // replicas
before, after = rank - replicas, rank + replicas
gradient_target = {1: before, 2: rank - 1, 3: before}

groups = [dist.new_group(list(range(s * replicas, (s + 1) * replicas))) for s in range(STAGES)]
net = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM))
opt = torch.optim.SGD(net.parameters(), lr=1e-2)
for _ in range(10):
    kept = []
    for _m in range(MICRO):
        x = torch.randn(BATCH, DIM)
        if stage > 0:
            dist.recv(x, src=before)
            x.requires_grad_()
        y = net(x)
        if stage < STAGES - 1:
            dist.send(y.detach(), dst=after)
        kept.append((x, y))
    for x, y in kept:
        if stage == STAGES - 1:
            y.pow(2).mean().backward()
        else:
            g = torch.empty_like(y)
            dist.recv(g, src=after)
            y.backward(g)
        if stage > 0:
            dist.send(x.grad, dst=gradient_target[stage])
    for p in net.parameters():
        dist.all_reduce(p.grad, group=groups[stage])
    opt.step()
    opt.zero_grad()
dist.destroy_process_group()
