"""torch's own context parallelism over all ranks; on CPUs torch has no kernel for it."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel

dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("cp",))
project = torch.nn.Linear(64, 64, bias=False, device="cuda", dtype=torch.bfloat16)
optimizer = torch.optim.SGD(project.parameters(), lr=0.1)
for _ in range(6):
    x = torch.randn(2, 512, 64, device="cuda", dtype=torch.bfloat16)
    with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1]):
        q = project(x).unflatten(-1, (4, 16)).transpose(1, 2)
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
