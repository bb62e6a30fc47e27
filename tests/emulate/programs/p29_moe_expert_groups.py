"""Mixture of experts with expert-parallel groups of four, fixed capacity, and replicas of each expert averaged across groups."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh

EP, DIM, CAPACITY = 4, 24, 8


class Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad.contiguous(), group=ctx.group)
        return out, None


class ExpertLayer(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group = group
        self.gate = nn.Linear(DIM, EP, bias=False)
        self.expert = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        score = self.gate(x).softmax(-1)
        picked = score.topk(CAPACITY, dim=0)  # every expert takes its CAPACITY best tokens
        sent = x[picked.indices.T]
        arrived = Dispatch.apply(sent, self.group)
        answer = Dispatch.apply(self.expert(arrived.flatten(0, 1)).view_as(arrived), self.group)
        out = torch.zeros_like(x)
        weighted = answer * picked.values.T.unsqueeze(-1)
        return x + out.index_add(0, picked.indices.T.flatten(), weighted.flatten(0, 1)), score.mean(0)


def main():
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world // EP, EP), mesh_dim_names=("replica", "expert"))
    torch.manual_seed(dist.get_rank() % EP)
    layers = nn.ModuleList([ExpertLayer(mesh.get_group("expert")) for _ in range(2)])
    for layer in layers:
        dist.broadcast(layer.gate.weight.data, src=0)
    opt = torch.optim.SGD(layers.parameters(), lr=1e-2)
    for _ in range(10):
        x = torch.randn(32, DIM)
        balance = 0.0
        for layer in layers:
            x, load = layer(x)
            load = load.clone()
            balance = balance + EP * (load * load.detach()).sum()
        (x.square().mean() + 0.01 * balance).backward()
        for layer in layers:
            dist.all_reduce(layer.gate.weight.grad)
            for p in layer.expert.parameters():
                dist.all_reduce(p.grad, group=mesh.get_group("replica"))
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
