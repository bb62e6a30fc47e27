"""Hand-written two-way pipeline: each rank has a stage of a pipe going down the ranks and one of a pipe going up."""

import torch
import torch.distributed as dist
from torch import nn

DEPTH, DIM, BATCH, MICRO = 4, 32, 4, 2


def swap(rank, base, sends, receives):
    """Start every transfer of this tick together and wait for all of them."""
    ops = [dist.P2POp(dist.isend, t, base + to) for t, to in sends]
    buffers = [torch.empty(BATCH, DIM) for _ in receives]
    ops += [dist.P2POp(dist.irecv, b, base + frm) for b, frm in zip(buffers, receives, strict=True)]
    if ops:
        for work in dist.batch_isend_irecv(ops):
            work.wait()
    return buffers


def run_pipe(net, place, here, direction, base):
    """Forward and backward of MICRO batches through the pipe; place counts along the pipe, here along the ranks."""
    first, last = place == 0, place == DEPTH - 1
    kept = []
    for _ in range(MICRO):
        x = torch.randn(BATCH, DIM)
        if not first:
            (x,) = swap(here, base, [], [here - direction])
        x.requires_grad_()
        y = net(x)
        if not last:
            swap(here, base, [(y.detach(), here + direction)], [])
        kept.append((x, y))
    for x, y in reversed(kept):
        if last:
            y.pow(2).mean().backward()
        else:
            (g,) = swap(here, base, [], [here + direction])
            y.backward(g)
        if not first:
            swap(here, base, [(x.grad, here - direction)], [])


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    base, here = rank // DEPTH * DEPTH, rank % DEPTH
    down, up = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
    # The rank that mirrors this one holds the same stages in the other direction.
    mirrors = {}
    for b in range(0, world, DEPTH):
        for i in range(DEPTH // 2):
            pair = (b + i, b + DEPTH - 1 - i)
            mirrors[pair] = dist.new_group(list(pair))
    mine = mirrors[(base + min(here, DEPTH - 1 - here), base + max(here, DEPTH - 1 - here))]
    opt = torch.optim.SGD([*down.parameters(), *up.parameters()], lr=0.01)
    for _ in range(10):
        run_pipe(down, here, here, +1, base)
        run_pipe(up, DEPTH - 1 - here, here, -1, base)
        lower = here < DEPTH // 2
        for net in (down, up) if lower else (up, down):
            for p in net.parameters():
                dist.all_reduce(p.grad, group=mine)
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


main()
