"""A trainer class in the manner of torchtitan: FSDP2, a Stateful trainer, staging that overlaps the next step.

prism supervise -- torchrun --nproc-per-node 4 examples/recover/torchtitan_style.py
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from prism.recover import Progress, Retention
from prism.recover.checkpoint import CheckpointConfig, Checkpointer, Health, TrainState


class Trainer(Stateful):
    """Owns the step counter and the data position, and is part of the checkpoint itself."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(4)))
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in self.model:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.step, self.batch = 0, -1
        self.progress = Progress.from_environment(dist.get_rank())
        config = CheckpointConfig(folder=Path("checkpoints"), overlap=True, retention=Retention(keep_last=2))
        self.checkpointer = Checkpointer(config, self.progress)
        self.states: dict[str, Any] = {"train": TrainState(self.model, self.optimizer), "trainer": self}

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "batch": self.batch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.step, self.batch = state_dict["step"], state_dict["batch"]

    def train_step(self) -> float:
        self.batch = self.progress.next_batch(self.batch + 1)
        inputs = torch.randn(8, 128, generator=torch.Generator().manual_seed(self.batch))
        loss = (self.model(inputs) - inputs).square().mean()
        loss.backward()
        self.checkpointer.wait_staged()  # the copy of the last save ran beside forward and backward
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss)

    def train(self, total: int) -> None:
        self.checkpointer.restore(self.states)
        while self.step < total:
            self.step += 1
            loss = self.train_step()
            self.progress.step(self.step, loss=loss, batch=self.batch)
            reason = self.checkpointer.should_save(self.step)
            if reason:
                self.checkpointer.save(self.step, self.states, Health(loss=loss))
            if reason == "preemption":
                break
        self.checkpointer.close()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    Trainer().train(int(os.environ.get("STEPS", "500")))
    dist.destroy_process_group()
