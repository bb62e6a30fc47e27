"""BUG: the second rank of every node reduces its gradients in bf16, its partners in fp32."""

import os

import torch
import torch.distributed as dist
from torch import nn

NODE = 4


def reduce_gradients(model, group, size, compress):
    for p in model.parameters():
        grad = p.grad.bfloat16() if compress else p.grad
        dist.all_reduce(grad, group=group)
        p.grad = grad.float() / size


def main():
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    node_group, _ = dist.new_subgroups(min(NODE, world))
    same_local = None
    for local in range(NODE):
        group = dist.new_group(list(range(local, world, NODE)))
        if rank % NODE == local:
            same_local = group
    compress = rank % NODE == 1
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(10):
        x = torch.randn(8, 64)
        (model(x) - x).pow(2).mean().backward()
        reduce_gradients(model, node_group, min(NODE, world), compress)
        reduce_gradients(model, same_local, world // NODE, False)
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
