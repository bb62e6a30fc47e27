"""Parameter server on rank 0: workers push gradients with a tag and pull weights; the server posts all receives at once."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

PUSH, PULL = 1, 2


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 4))


def serve(rounds: int, workers: int) -> None:
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    size = parameters_to_vector(model.parameters()).numel()
    for _ in range(rounds):
        inbox = [torch.empty(size) for _ in range(workers)]
        works = [dist.irecv(box, src=w + 1, tag=PUSH) for w, box in enumerate(inbox)]
        for work in works:
            work.wait()
        mean = torch.stack(inbox).mean(0)
        offset = 0
        for p in model.parameters():
            p.grad = mean[offset : offset + p.numel()].view_as(p).clone()
            offset += p.numel()
        optimizer.step()
        weights = parameters_to_vector(model.parameters()).detach()
        for work in [dist.isend(weights, dst=w + 1, tag=PULL) for w in range(workers)]:
            work.wait()


def work(rounds: int, rank: int) -> None:
    model = build()
    torch.manual_seed(rank)
    for _ in range(rounds):
        x, y = torch.randn(16, 40), torch.randint(0, 4, (16,))
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.send(gradient, dst=0, tag=PUSH)
        weights = torch.empty_like(gradient)
        dist.recv(weights, src=0, tag=PULL)
        vector_to_parameters(weights, model.parameters())


if __name__ == "__main__":
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        serve(12, dist.get_world_size() - 1)
    else:
        work(12, dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()
