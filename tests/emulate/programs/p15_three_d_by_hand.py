"""Data x pipeline x tensor parallel written by hand over plain groups: 2 tensor ranks, 2 stages, the rest replicas."""

import itertools

import torch
import torch.distributed as dist
from torch import nn

TP, PP, D, B, MICRO = 2, 2, 32, 4, 3


class AllReduceForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        y = x.clone()
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class AllReduceBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class ParallelMLP(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group = group
        self.up, self.down = nn.Linear(D, 4 * D // TP), nn.Linear(4 * D // TP, D, bias=False)

    def forward(self, x):
        x = AllReduceBackward.apply(x, self.group)
        return AllReduceForward.apply(self.down(torch.relu(self.up(x))), self.group)


def make_groups(rank, world):
    """Ranks are laid out with tensor parallel fastest, then data, then pipeline."""
    dp = world // (TP * PP)
    grid = torch.arange(world).view(PP, dp, TP)
    mine = {}
    for p, d in itertools.product(range(PP), range(dp)):
        ranks = grid[p, d].tolist()
        group = dist.new_group(ranks)
        if rank in ranks:
            mine["tp"] = group
    for p, t in itertools.product(range(PP), range(TP)):
        ranks = grid[p, :, t].tolist()
        group = dist.new_group(ranks)
        if rank in ranks:
            mine["dp"] = group
    return mine, rank // (dp * TP), dp * TP


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    groups, stage, stride = make_groups(rank, world)
    torch.manual_seed(rank)
    net = nn.Sequential(ParallelMLP(groups["tp"]), nn.LayerNorm(D), ParallelMLP(groups["tp"]))
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    for _ in range(10):
        saved = []
        for _m in range(MICRO):
            x = torch.randn(B, D)
            if stage > 0:
                dist.recv(x, src=rank - stride)
                x.requires_grad_()
            y = net(x)
            saved.append((x, y))
            if stage < PP - 1:
                dist.send(y.detach(), dst=rank + stride)
        for x, y in saved:
            if stage == PP - 1:
                y.square().mean().backward()
            else:
                g = torch.empty_like(y)
                dist.recv(g, src=rank + stride)
                y.backward(g)
            if stage > 0:
                dist.send(x.grad, dst=rank - stride)
        for p in net.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM, group=groups["dp"])
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
