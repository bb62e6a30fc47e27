"""A tiny DDP job whose data is the same on every rank, so that real and emulated values must agree."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(6):
    loss = model(torch.randn(16, 32)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    shown = loss.detach().clone()
    dist.all_reduce(shown)
    losses.append(shown.item())
if dist.get_rank() == 0 and len(sys.argv) > 1:
    Path(sys.argv[1]).write_text(json.dumps(losses))
dist.destroy_process_group()
