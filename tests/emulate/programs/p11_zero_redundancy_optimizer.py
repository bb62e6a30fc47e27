"""DDP with ZeroRedundancyOptimizer; the sharded optimizer state is gathered on rank 0 now and then."""

import itertools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(5)
    sizes = [30, 60, 120, 60, 30, 10]
    layers = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.Tanh()]
    model = DDP(nn.Sequential(*layers[:-1]))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    for step in range(12):
        x, y = torch.randn(16, 30), torch.randint(0, 10, (16,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if step == 7:
            optimizer.consolidate_state_dict(to=0)
            if rank == 0:
                torch.save({"step": step, "optimizer": optimizer.state_dict()}, "optimizer.pt")
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
