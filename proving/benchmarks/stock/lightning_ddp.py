"""Lightning's Trainer with DDP."""

import os

import lightning as L
import torch
from parts import Truth, Words, build_model


class Model(L.LightningModule):
    """The model, as Lightning's tutorial wraps one."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.truth = build_model(), Truth()

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        loss = self.model(**batch).loss
        self.log("loss", loss, sync_dist=True)
        return loss

    def on_train_batch_start(self, *_: object) -> None:
        self.truth.begin()

    def on_train_batch_end(self, *_: object) -> None:
        self.truth.end()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


L.Trainer(
    accelerator="cpu", devices=1, num_nodes=int(os.environ["WORLD_SIZE"]), strategy="ddp",
    max_steps=int(os.environ["STEPS"]), logger=False, enable_checkpointing=False, enable_progress_bar=False,
).fit(Model(), torch.utils.data.DataLoader(Words(), batch_size=2))  # fmt: skip
