"""The store of the default group as a download barrier and a progress board, DDP for the training itself."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def prepare_data(store, local_rank: int) -> Path:
    """The first rank of the node writes the file, the others wait for its key."""
    path = Path(f"data-{os.environ.get('GROUP_RANK', '0')}.pt")
    key = f"data-ready-{os.environ.get('GROUP_RANK', '0')}"
    if local_rank == 0:
        torch.save({"x": torch.randn(64, 12), "y": torch.randn(64, 1)}, path)
        store.set(key, "1")
    else:
        store.wait([key])
    return path


def main():
    dist.init_process_group("gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    store = dist.distributed_c10d._get_default_store()
    data = torch.load(prepare_data(store, local_rank), weights_only=True)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step in range(12):
        pick = torch.randint(0, 64, (8,))
        loss = (model(data["x"][pick]) - data["y"][pick]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done = store.add(f"finished-step-{step}", 1)
        if done == dist.get_world_size():
            print(f"rank {rank} was the last in step {step}")
    total = store.add("ranks-done", 1)
    assert 1 <= total <= dist.get_world_size()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
