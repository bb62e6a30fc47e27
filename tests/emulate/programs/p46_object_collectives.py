"""Plain data parallel loop with object collectives: scattered file lists, gathered reports, a monitored barrier per epoch."""

import random
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


def plan_files(world: int, seed: int) -> list[list[str]]:
    files = [f"part-{i:04d}" for i in range(4 * world)]
    random.Random(seed).shuffle(files)
    return [files[i::world] for i in range(world)]


def read_file(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(int(name.split("-")[1]))
    x = torch.randn(8, 16, generator=generator)
    return x, x.sum(dim=1, keepdim=True)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(4):
        mine: list[list[str] | None] = [None]
        dist.scatter_object_list(mine, plan_files(world, epoch) if rank == 0 else None, src=0)
        losses = {}
        for name in mine[0]:
            x, y = read_file(name)
            loss = (model(x) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            dist.all_reduce_coalesced([p.grad for p in model.parameters()])
            for p in model.parameters():
                p.grad /= world
            optimizer.step()
            losses[name] = loss.item()
        reports: list[dict[str, float] | None] = [None] * world
        dist.all_gather_object(reports, losses)
        if rank == 0:
            worst = max((v, k) for r in reports for k, v in r.items())
            print(f"epoch {epoch}: worst file {worst[1]} with {worst[0]:.3f}")
        dist.monitored_barrier(timeout=timedelta(seconds=60), wait_all_ranks=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
