"""Checkpoints for a plain training loop, in four lines.

training = TrainingLoop(Path("checkpoints"), model, optimizer)
for step in training.steps(total):
    ...                                   # the data of this step is number `training.batch`
    training.report(loss=float(loss))
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from prism.recover.checkpoint.checkpointer import CheckpointConfig, Checkpointer
from prism.recover.checkpoint.train_state import TrainState
from prism.recover.manifest import Health
from prism.recover.progress import Progress

PREEMPTED_CODE = 143  # as for a program that SIGTERM ended: not 0, which launchers take for the end of the work


class TrainingLoop:
    """Restores when it is created; reports, saves and ends between the steps.

    One per rank, made after the process group and the wrapped model. `more` is state beside model and optimizer.
    """

    def __init__(
        self,
        folder: Path,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        more: dict[str, Any] | None = None,
        config: CheckpointConfig | None = None,
    ) -> None:
        self.progress = Progress.from_environment()
        self.checkpointer = Checkpointer(config or CheckpointConfig(folder=folder), self.progress)
        self.state: dict[str, Any] = {**(more or {}), "train": TrainState(model, optimizer), "position": {"batch": -1}}
        restored = self.checkpointer.restore(self.state)
        self.first_step = restored.step + 1 if restored else 1
        self._loss: float | None = None
        self._norm: float | None = None

    @property
    def batch(self) -> int:
        """The number of the data of this step; batches that caused a rollback are skipped."""
        return int(self.state["position"]["batch"])

    def steps(self, total: int) -> Iterator[int]:
        """The remaining steps, up to `total`. At a preemption the program ends after a save.

        What follows the loop, such as an export, must not run on a model that is half trained.
        """
        for step in range(self.first_step, total + 1):
            self.state["position"] = {"batch": self.progress.next_batch(self.batch + 1)}
            self._loss = self._norm = None
            yield step
            self.progress.step(step, loss=self._loss, grad_norm=self._norm, batch=self.batch)
            reason = self.checkpointer.should_save(step)
            if reason or step == total:
                self.checkpointer.save(step, self.state, Health(loss=self._loss, grad_norm=self._norm))
            if reason == "preemption":
                self.checkpointer.close()
                raise SystemExit(PREEMPTED_CODE)
        self.checkpointer.close()
        if self.progress.rank == 0:
            self.progress.event("paused", what="after training")

    def report(self, loss: float | None = None, grad_norm: float | None = None) -> None:
        """Report the results of this step to the supervisor and for the checkpoint's health."""
        self._loss, self._norm = loss, grad_norm
