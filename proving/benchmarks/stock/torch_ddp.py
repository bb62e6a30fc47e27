"""torch's DistributedDataParallel, as its tutorial writes it."""

import os

import torch
import torch.distributed as dist
from parts import Truth, Words, build_model
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(build_model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = torch.utils.data.DataLoader(Words(), batch_size=2)
truth = Truth()
for _, batch in zip(range(int(os.environ["STEPS"])), loader, strict=False):
    truth.begin()
    optimizer.zero_grad()
    model(**batch).loss.backward()
    optimizer.step()
    truth.end()
dist.barrier()
os._exit(0)
