"""Mixture of experts, one expert per rank: counts are exchanged first, tokens by an uneven all_to_all_single."""

import os

import torch
import torch.distributed as dist
from torch import nn

DIM, TOKENS = 32, 24


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, recv):
        ctx.splits = (send, recv)
        out = x.new_empty(sum(recv), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), recv, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        send, recv = ctx.splits
        back = grad.new_empty(sum(send), grad.shape[1])
        dist.all_to_all_single(back, grad.contiguous(), send, recv)
        return back, None, None


class MoE(nn.Module):
    def __init__(self, experts: int):
        super().__init__()
        self.experts = experts
        self.router = nn.Linear(DIM, experts)
        self.expert = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        weight, choice = self.router(x).softmax(-1).max(-1)
        order = choice.argsort(stable=True)
        counts = torch.bincount(choice, minlength=self.experts)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        send, recv = counts.tolist(), arriving.tolist()
        y = Exchange.apply(self.expert(Exchange.apply(x[order], send, recv)), recv, send)
        out = torch.empty_like(y)
        out[order] = y
        return x + out * weight.unsqueeze(-1)


def main():
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    embed, moe = nn.Linear(16, DIM), MoE(world)
    shared = [*embed.parameters(), *moe.router.parameters()]
    opt = torch.optim.Adam([*shared, *moe.expert.parameters()], lr=1e-3)
    torch.manual_seed(rank)
    for _ in range(12):
        moe(embed(torch.randn(TOKENS, 16))).pow(2).mean().backward()
        for p in shared:
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
