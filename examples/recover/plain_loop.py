"""A plain PyTorch loop that survives: checkpoints, progress, batches left out after a rollback.

prism supervise -- torchrun --nproc-per-node 4 examples/recover/plain_loop.py
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from prism.recover import Progress
from prism.recover.checkpoint import CheckpointConfig, Checkpointer, Health, TrainState

TOTAL_STEPS = int(os.environ.get("STEPS", "500"))


def main() -> None:
    dist.init_process_group("gloo")  # on GPUs: "cpu:gloo,cuda:nccl"
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    progress = Progress.from_environment(rank)
    checkpointer = Checkpointer(CheckpointConfig(folder=Path("checkpoints")), progress)
    state = {"train": TrainState(model, optimizer), "position": {"batch": -1}}
    restored = checkpointer.restore(state)

    for step in range(restored.step + 1 if restored else 1, TOTAL_STEPS + 1):
        batch = progress.next_batch(state["position"]["batch"] + 1)
        state["position"] = {"batch": batch}
        inputs = torch.randn(32, 64, generator=torch.Generator().manual_seed(batch * 1000 + rank))
        loss = (model(inputs) - inputs.mean(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

        progress.step(step, loss=float(loss), grad_norm=float(norm), batch=batch)
        reason = checkpointer.should_save(step)
        if reason or step == TOTAL_STEPS:
            checkpointer.save(step, state, Health(loss=float(loss), grad_norm=float(norm)))
        if reason == "preemption":
            break
    checkpointer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
