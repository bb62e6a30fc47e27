"""A Lightning callback: restores at the start, reports every step, saves when it pays, leaves when told to go.

trainer = lightning.Trainer(callbacks=[PrismCallback(Path("checkpoints"))], enable_checkpointing=False)

prism supervise -- python examples/recover/lightning_callback.py
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import torch
from torch.distributed.checkpoint.stateful import Stateful

from prism.recover import Progress
from prism.recover.checkpoint import CheckpointConfig, Checkpointer, Health, TrainState


class LoopState(Stateful):
    """Lightning's account of steps, epochs and data, as one value: a fresh trainer does not have all its keys yet."""

    def __init__(self, trainer: lightning.Trainer) -> None:
        self.trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        return {"loops": json.dumps(self.trainer.fit_loop.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.trainer.fit_loop.load_state_dict(json.loads(state_dict["loops"]))


class PrismCallback(lightning.Callback):
    """For automatic optimization with one optimizer."""

    def __init__(self, folder: Path, interval_steps: int | None = None) -> None:
        self.config = CheckpointConfig(folder=folder, interval_steps=interval_steps)
        self.checkpointer: Checkpointer | None = None

    def on_fit_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self.progress = Progress.from_environment(trainer.global_rank)
        self.checkpointer = Checkpointer(self.config, self.progress)
        self.state = {"train": TrainState(pl_module, trainer.optimizers[0]), "trainer": LoopState(trainer)}
        self.checkpointer.restore(self.state)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert self.checkpointer is not None
        step = trainer.global_step
        loss = float(outputs["loss"] if isinstance(outputs, dict) else outputs)
        self.progress.step(step, loss=loss, batch=batch_idx)
        reason = self.checkpointer.should_save(step)
        if reason:
            self.checkpointer.save(step, self.state, Health(loss=loss))
        if reason == "preemption":
            trainer.should_stop = True

    def teardown(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        if self.checkpointer is not None:
            self.checkpointer.close()


class Batches:
    """A loader that can be continued, and that leaves out the batches which a rollback condemned."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.position = 0
        self.progress = Progress.from_environment()

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.position < self.count:
            batch = self.progress.next_batch(self.position)
            self.position = batch + 1
            yield torch.randn(8, 16, generator=torch.Generator().manual_seed(batch))
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.position = state_dict["position"]


class Regression(lightning.LightningModule):
    """Something small to train."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return (self.layer(batch) - batch.sum(dim=1, keepdim=True)).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main(folder: Path, steps: int, interval_steps: int | None = None) -> Regression:
    torch.manual_seed(0)
    model = Regression()
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        callbacks=[PrismCallback(folder, interval_steps)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(model, Batches(40))
    return model


if __name__ == "__main__":
    main(Path("checkpoints"), int(os.environ.get("STEPS", "500")))
