"""DDP; rank 0 looks for a checkpoint and tells the others by a broadcast of objects; saves with barriers every five steps."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

FOLDER = Path("checkpoints")


def newest() -> Path | None:
    files = sorted(FOLDER.glob("step-*.pt"))
    return files[-1] if files else None


def resume(model, optimizer, rank) -> int:
    box = [None]
    if rank == 0:
        FOLDER.mkdir(exist_ok=True)
        found = newest()
        box = [str(found) if found else None]
    dist.broadcast_object_list(box, src=0)
    if box[0] is None:
        return 0
    state = torch.load(box[0], weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def save(model, optimizer, step, rank):
    dist.barrier()
    if rank == 0:
        part = FOLDER / "part"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, part)
        part.rename(FOLDER / f"step-{step:05d}.pt")
    dist.barrier()


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    start = resume(model, optimizer, rank)
    ddp = DDP(model)
    for step in range(start + 1, start + 16):
        x = torch.randn(8, 64)
        y = (x[:, 0] > 0).long()
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()
        if step % 5 == 0:
            save(model, optimizer, step, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
