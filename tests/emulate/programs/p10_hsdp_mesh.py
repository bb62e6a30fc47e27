"""Hybrid sharding: FSDP2 over a (replicate, shard) mesh, shards within pairs or fours, loss averaged over the world."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


def main() -> None:
    world = int(os.environ["WORLD_SIZE"])
    shard = 4 if world >= 8 else 2
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (world // shard, shard), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(11)
    model = nn.ModuleDict({"trunk": nn.Sequential(*[mlp(40) for _ in range(3)]), "head": nn.Linear(40, 5)})
    for layer in model["trunk"]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model["head"], mesh=mesh)
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, lr=0.05)
    for step in range(12):
        x, y = torch.randn(8, 40), torch.randint(0, 5, (8,))
        loss = nn.functional.cross_entropy(model["head"](model["trunk"](x)), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 2:
            mean = loss.detach().clone()
            dist.all_reduce(mean, op=dist.ReduceOp.SUM)
            if dist.get_rank() == 0:
                print(f"step {step} mean loss {mean.item() / world:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
