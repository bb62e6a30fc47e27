"""Context parallel attention by hand: keys and values travel round a ring of ranks with batch_isend_irecv, both ways."""

import os

import torch
import torch.distributed as dist
from torch import nn

CP, DIM, HEADS, LOCAL_SEQ = 4, 32, 4, 8


def rotate(tensors, group_ranks, position, group):
    """Send the tensors to the next rank of the ring and return those of the one before."""
    nxt = group_ranks[(position + 1) % len(group_ranks)]
    prv = group_ranks[(position - 1) % len(group_ranks)]
    received = [torch.empty(t.shape) for t in tensors]
    ops = []
    for out, into in zip(tensors, received, strict=True):
        ops.append(dist.P2POp(dist.isend, out.contiguous(), nxt, group))
        ops.append(dist.P2POp(dist.irecv, into, prv, group))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return received


class RingAttention(torch.autograd.Function):
    """Linear attention over the ring: q (k^T v) summed over all blocks."""

    @staticmethod
    def forward(ctx, q, k, v, ranks, position, group):
        ctx.save_for_backward(q, k, v)
        ctx.place = (ranks, position, group)
        out = torch.zeros_like(q)
        block = [k, v]
        for step in range(len(ranks)):
            out += q @ (block[0].transpose(-1, -2) @ block[1])
            if step < len(ranks) - 1:
                block = rotate(block, ranks, position, group)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v = ctx.saved_tensors
        ranks, position, group = ctx.place
        dq = torch.zeros_like(q)
        block = [k, v, torch.zeros_like(k), torch.zeros_like(v)]
        for _ in range(len(ranks)):
            bk, bv, dk, dv = block
            dq += grad @ (bv.transpose(-1, -2) @ bk)
            dk = dk + bv @ (grad.transpose(-1, -2) @ q)
            dv = dv + bk @ (q.transpose(-1, -2) @ grad)
            block = rotate([bk, bv, dk, dv], ranks, position, group)
        return dq, block[2], block[3], None, None, None


class Layer(nn.Module):
    def __init__(self, ranks, position, group):
        super().__init__()
        self.place = (ranks, position, group)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = RingAttention.apply(q, k, v, *self.place)
        return x + self.out(y.transpose(1, 2).reshape(b, s, DIM)) / (s * CP)


def main():
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    ring = None
    for start in range(0, world, CP):
        ranks = list(range(start, start + CP))
        group = dist.new_group(ranks)
        if rank in ranks:
            ring = (ranks, rank - start, group)
    torch.manual_seed(0)
    model = nn.Sequential(Layer(*ring), Layer(*ring))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(8):
        model(torch.randn(2, LOCAL_SEQ, DIM)).pow(2).mean().backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(flat)
        offset = 0
        for p in model.parameters():
            p.grad.copy_(flat[offset : offset + p.numel()].view_as(p) / world)
            offset += p.numel()
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
