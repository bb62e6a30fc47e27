"""Sequence parallel attention by all-to-all: shards of the sequence become shards of the heads and back."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SP, DIM, HEADS, LOCAL_SEQ = 4, 32, 8, 8


def exchange(x, group, scatter_dim, gather_dim):
    parts = [c.contiguous() for c in x.chunk(SP, dim=scatter_dim)]
    received = torch.empty(SP, *parts[0].shape)
    dist.all_to_all_single(received, torch.stack(parts), group=group)
    return torch.cat(list(received), dim=gather_dim)


class SeqToHead(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return exchange(x, group, 2, 1)

    @staticmethod
    def backward(ctx, grad):
        return exchange(grad, ctx.group, 1, 2), None


class HeadToSeq(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return exchange(x, group, 1, 2)

    @staticmethod
    def backward(ctx, grad):
        return exchange(grad, ctx.group, 2, 1), None


class UlyssesBlock(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group = group
        self.norm = nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, s, 3, HEADS, -1).unbind(2)
        q, k, v = (SeqToHead.apply(t, self.group).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).contiguous()
        return x + self.out(HeadToSeq.apply(y, self.group).reshape(b, s, DIM))


def main():
    dist.init_process_group("gloo")
    group, _ = dist.new_subgroups(group_size=SP)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*[UlyssesBlock(group) for _ in range(2)], nn.Linear(DIM, 1)))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    for _ in range(10):
        x = torch.randn(2, LOCAL_SEQ, DIM)
        loss = (model(x).squeeze(-1) - x.mean(-1)).pow(2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
