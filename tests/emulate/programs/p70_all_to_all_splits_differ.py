"""BUG: one rank caps how many tokens it sends to an expert, while the others expect the uncapped number from it."""

import torch
import torch.distributed as dist
from torch import nn

DIM = 64


def tokens_between(source, target):
    return 2 + (source + target) % 3


def splits(rank, world):
    send = [tokens_between(rank, other) for other in range(world)]
    receive = [tokens_between(other, rank) for other in range(world)]
    if rank == world // 2:
        send = [n if other == rank else min(n, 3) for other, n in enumerate(send)]
    return send, receive


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    embed, expert = nn.Linear(8, DIM), nn.Linear(DIM, DIM)
    opt = torch.optim.Adam([*embed.parameters(), *expert.parameters()], lr=1e-3)
    send, receive = splits(rank, world)
    for _ in range(10):
        x = embed(torch.randn(sum(send), 8))
        arrived = torch.empty(sum(receive), DIM)
        dist.all_to_all_single(arrived, x.detach(), receive, send)
        arrived.requires_grad_()
        expert(arrived).pow(2).mean().backward()
        back = torch.empty(sum(send), DIM)
        dist.all_to_all_single(back, arrived.grad, send, receive)
        x.backward(back)
        for p in embed.parameters():
            dist.all_reduce(p.grad)
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
