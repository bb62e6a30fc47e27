"""A recommender: 26 tables dealt to the ranks, looked up for the whole batch, exchanged by an uneven all-to-all."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
counts = [sum(1 for table in range(26) if table % world == owner) for owner in range(world)]
tables = nn.ModuleList(nn.Embedding(100, 16) for _ in range(counts[rank]))
top = nn.parallel.DistributedDataParallel(nn.Linear(26 * 16, 1))
optimizer = torch.optim.SGD([*tables.parameters(), *top.parameters()], lr=0.1)


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, out, inside):
        ctx.sizes = out, inside
        got = x.new_empty(sum(out))
        dist.all_to_all_single(got, x, out, inside)
        return got

    @staticmethod
    def backward(ctx, grad):
        out, inside = ctx.sizes
        back = grad.new_empty(sum(inside))
        dist.all_to_all_single(back, grad.contiguous(), inside, out)
        return back, None, None


for _ in range(12):
    ids = torch.randint(0, 100, (8 * world,))
    looked_up = torch.stack([table(ids) for table in tables], 1).flatten()
    sizes = [8 * 16 * count for count in counts]
    got = Exchange.apply(looked_up, sizes, [sizes[rank]] * world)
    loss = top(torch.cat([part.reshape(8, -1) for part in got.split(sizes)], 1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
