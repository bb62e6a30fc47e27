"""DDP, four micro-batches per step under no_sync, bf16 autocast, gradient clipping and a cosine schedule."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUMULATE = 4


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(48, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 8)
    )


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(7)
    model = DDP(build_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    torch.manual_seed(rank)

    for step in range(10):
        total = 0.0
        for micro in range(ACCUMULATE):
            x, y = torch.randn(8, 48), torch.randint(0, 8, (8,))
            last = micro == ACCUMULATE - 1
            with contextlib.nullcontext() if last else model.no_sync():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(x), y) / ACCUMULATE
                loss.backward()
            total += loss.item()
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"{step:3d} loss {total:.3f} norm {norm.item():.3f} lr {scheduler.get_last_lr()[0]:.2e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
