"""A callback in the manner of Lightning. It uses only the hooks' names, so it needs no Lightning to be read or tested.

trainer = lightning.Trainer(callbacks=[PrismCallback(Path("checkpoints"))], enable_checkpointing=False)
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from prism.recover import Progress
from prism.recover.checkpoint import CheckpointConfig, Checkpointer, Health, TrainState


class PrismCallback:
    """Restores at the start, reports every batch, saves when it pays, leaves when told to go.

    With Lightning installed, derive from `lightning.Callback` as well. The data position is Lightning's own loop state;
    to leave batches out after a rollback, ask `self.progress.next_batch` in your dataloader.
    """

    def __init__(self, folder: Path, interval_steps: int | None = None) -> None:
        self.config = CheckpointConfig(folder=folder, interval_steps=interval_steps)
        self.progress = Progress.from_environment()
        self.checkpointer: Checkpointer | None = None
        self.state: dict[str, Any] = {}

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.checkpointer = Checkpointer(self.config, self.progress)
        self.state = {"train": TrainState(module, trainer.optimizers[0]), "position": {"step": 0}}
        if self.checkpointer.restore(self.state):
            trainer.fit_loop.epoch_loop.global_step = self.state["position"]["step"]

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert self.checkpointer is not None
        step = int(trainer.global_step)
        loss = float(outputs["loss"] if isinstance(outputs, dict) else outputs)
        self.state["position"] = {"step": step}
        self.progress.step(step, loss=loss, batch=batch_idx)
        reason = self.checkpointer.should_save(step)
        if reason and math.isfinite(loss):
            self.checkpointer.save(step, self.state, Health(loss=loss))
        if reason == "preemption":
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, module: Any) -> None:
        assert self.checkpointer is not None
        self.checkpointer.close()
