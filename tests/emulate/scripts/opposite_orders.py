"""BUG: rank 1 sums over two groups in the other order."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
one, two = dist.new_group(list(range(world))), dist.new_group(list(range(world)))
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.randn(4, 8)).sum().backward()
    groups = (two, one) if rank == 1 else (one, two)
    for group in groups:
        dist.all_reduce(torch.ones(4), group=group)
    optimizer.step()
    optimizer.zero_grad()
