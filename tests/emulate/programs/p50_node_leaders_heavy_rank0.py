"""Two-level gradient averaging through node leaders; rank 0 also renders a picture of the weights every step."""

import os

import torch
import torch.distributed as dist
from torch import nn


def node_groups(world: int, per_node: int):
    locals_ = [dist.new_group(list(range(n, n + per_node))) for n in range(0, world, per_node)]
    leaders = dist.new_group(list(range(0, world, per_node)))
    return locals_, leaders


def average(model, local_group, leaders, leader_rank, is_leader, world):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.reduce(flat, dst=leader_rank, group=local_group)
    if is_leader:
        dist.all_reduce(flat, group=leaders)
    dist.broadcast(flat, src=leader_rank, group=local_group)
    offset = 0
    for p in model.parameters():
        p.grad.copy_(flat[offset : offset + p.numel()].view_as(p)).div_(world)
        offset += p.numel()


def render(model):
    """Some work that only rank 0 does while the others wait for it in the next reduction."""
    picture = torch.randn(128, 128)
    for _ in range(10):
        picture = torch.tanh(picture @ picture.T / 128)
    return picture.mean().item() + model[0].weight.mean().item()


def main():
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    per_node = 4 if world > 4 else 2
    leader_rank = rank // per_node * per_node
    locals_, leaders = node_groups(world, per_node)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    for _ in range(12):
        model(torch.randn(16, 64)).pow(2).mean().backward()
        average(model, locals_[rank // per_node], leaders, leader_rank, rank == leader_rank, world)
        opt.step()
        opt.zero_grad()
        if rank == 0:
            render(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
