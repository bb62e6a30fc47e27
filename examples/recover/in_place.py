"""A training that goes on in the same processes when one of them dies.

python -m prism.recover.checkpoint.inplace --ranks 4 --spares 1 -- examples/recover/in_place.py
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

from prism.recover import Progress
from prism.recover.checkpoint import CheckpointConfig, Checkpointer, Health, TrainState
from prism.recover.checkpoint.inplace import Place, run_in_place

TOTAL_STEPS = int(os.environ.get("STEPS", "500"))
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "10"))


def train(place: Place) -> None:
    """Called again, in the same process, whenever a rank was lost; everything is built anew and restored."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    progress = Progress.from_environment(place.rank)
    checkpointer = Checkpointer(CheckpointConfig(folder=Path("checkpoints"), interval_steps=SAVE_EVERY), progress)
    state = {"train": TrainState(model, optimizer)}
    restored = checkpointer.restore(state)
    if place.rank == 0:
        source = f"step {restored.step} from {restored.source}" if restored else "scratch"
        print(f"generation {place.generation} starts from {source}", flush=True)
    for step in range(restored.step + 1 if restored else 1, TOTAL_STEPS + 1):
        inputs = torch.randn(32, 64, generator=torch.Generator().manual_seed(step * 1000 + place.rank))
        loss = (model(inputs) - inputs.mean(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= place.world_size
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if place.rank == 0:
            print(f"step {step} loss {float(mean / place.world_size).hex()}", flush=True)
        progress.step(step, loss=float(mean / place.world_size))
        reason = checkpointer.should_save(step)
        if reason:
            checkpointer.save(step, state, Health(loss=float(loss.detach())))
        if reason == "preemption":
            break
    checkpointer.close()


if __name__ == "__main__":
    run_in_place(train)
