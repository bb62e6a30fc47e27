"""BUG: the rank that logs builds its metrics in another order than the rest, and they are reduced in that order."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CLASSES = 10


def collect(loss, logits, labels, logger):
    right = (logits.argmax(-1) == labels).float()
    per_class = torch.zeros(CLASSES).index_add(0, labels, right)
    if logger:
        return {"per_class": per_class, "loss": loss.detach().clone()}
    return {"loss": loss.detach().clone(), "per_class": per_class}


def main():
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    logger = rank == world - 1
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, CLASSES)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(12):
        x, y = torch.randn(16, 24), torch.randint(0, CLASSES, (16,))
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 2 == 1:
            for name, value in collect(loss, logits, y, logger).items():
                dist.all_reduce(value)
                if logger:
                    print(step, name, (value / world).tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
