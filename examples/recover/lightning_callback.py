"""A Lightning script with Prism's callback: restores at the start, reports every step, saves when it pays.

trainer = lightning.Trainer(callbacks=[make_callback(lightning.Callback, Path("checkpoints"))])

prism supervise -- python examples/recover/lightning_callback.py

Without a line in the script the same is had by `prism supervise --checkpoint auto -- python train.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import torch

from prism.recover import Progress
from prism.recover.checkpoint.integrations.lightning_trainer import make_callback


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
        callbacks=[make_callback(lightning.Callback, folder, interval_steps)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(model, Batches(40))
    return model


if __name__ == "__main__":
    main(Path("checkpoints"), int(os.environ.get("STEPS", "500")))
