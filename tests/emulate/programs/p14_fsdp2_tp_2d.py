"""Two-dimensional mesh: tensor parallel pairs inside, FSDP2 across them."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class MLPBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.fc2(torch.relu(self.fc1(self.norm(x))))


def build(mesh):
    model = nn.Sequential(*(MLPBlock(32) for _ in range(4)))
    for block in model:
        parallelize_module(block, mesh["tp"], {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


if __name__ == "__main__":
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = build(mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    # Both ranks of a tensor parallel pair must read the same samples.
    torch.manual_seed(1000 + mesh.get_local_rank("dp"))
    for step in range(10):
        x = torch.randn(8, 32)
        loss = (model(x) - 1).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 0:
            shown = loss.detach().clone()
            dist.all_reduce(shown, group=mesh["dp"].get_group())
            if dist.get_rank() == 0:
                print(step, shown.item() / mesh["dp"].size())
    dist.destroy_process_group()
