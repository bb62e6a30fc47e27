"""torch's tensor parallelism (column and row wise) of TENSOR ranks, fully_shard over the rest."""

import os

import torch
import torch.distributed as dist
from parts import Truth, add_kernel
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH, TOKENS = 192, 128

dist.init_process_group("gloo")
torch.set_num_threads(1)
tensor = int(os.environ["TENSOR"])
mesh = init_device_mesh("cpu", (dist.get_world_size() // tensor, tensor), mesh_dim_names=("dp", "tp"))


class Layer(nn.Module):
    """A feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


model = nn.Sequential(*(Layer() for _ in range(3)))
for layer in model:
    parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    add_kernel(layer)
    if mesh["dp"].size() > 1:
        fully_shard(layer, mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
batch = torch.randn(TOKENS, WIDTH)
truth = Truth()
for _ in range(int(os.environ["STEPS"])):
    truth.begin()
    model(batch).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    truth.end()
dist.barrier()
os._exit(0)
