"""BUG: pairs exchange halves of their gradients by tagged messages; the last odd rank waits for the wrong tag."""

import torch
import torch.distributed as dist
from torch import nn

LOWER, UPPER = 10, 20


def swap_halves(flat, rank, world):
    """The even rank reduces the lower half of the pair's gradient, the odd rank the upper half."""
    partner = rank ^ 1
    lower, upper = flat.chunk(2)
    if rank % 2 == 0:
        other = torch.empty_like(lower)
        work = dist.isend(upper.contiguous(), partner, tag=UPPER)
        dist.recv(other, partner, tag=LOWER)
        lower += other
    else:
        other = torch.empty_like(upper)
        work = dist.isend(lower.contiguous(), partner, tag=LOWER)
        dist.recv(other, partner, tag=UPPER if rank < world - 1 else LOWER)
        upper += other
    work.wait()
    return partner


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Linear(32, 32, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(10):
        net(torch.randn(8, 32)).pow(2).mean().backward()
        flat = net.weight.grad.flatten()
        swap_halves(flat, rank, world)
        net.weight.grad.copy_(flat.view_as(net.weight))
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
