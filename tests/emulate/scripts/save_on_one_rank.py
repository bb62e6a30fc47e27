"""BUG: only rank 0 starts an asynchronous save, which all ranks must."""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
saving = None
for step in range(6):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 2 and dist.get_rank() == 0:
        saving = dcp.async_save({"model": model.state_dict()}, checkpoint_id=sys.argv[1])
if saving:
    saving.result()
