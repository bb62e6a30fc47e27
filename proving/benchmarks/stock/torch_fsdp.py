"""torch's fully_shard over layers; over replicas where REPLICAS says so (HSDP)."""

import os

import torch
import torch.distributed as dist
from parts import Truth, Words, build_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
replicas, world = int(os.environ.get("REPLICAS", "1")), dist.get_world_size()
shape, names = ((replicas, world // replicas), ("replicate", "shard")) if replicas > 1 else ((world,), ("shard",))
mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
model = build_model()
for block in model.transformer.h:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = torch.utils.data.DataLoader(Words(), batch_size=2)
truth = Truth()
for _, batch in zip(range(int(os.environ["STEPS"])), loader, strict=False):
    truth.begin()
    model(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    truth.end()
dist.barrier()
os._exit(0)
