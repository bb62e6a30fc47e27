"""A linear model under Lightning's DDP on CPU ranks; its loss is averaged over ranks every step."""

import os

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    """Least squares."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(32, 1)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = (self.layer(batch[0]) - 1).square().mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-2)


local, world = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
trainer = lightning.Trainer(
    accelerator="cpu", strategy="ddp", devices=local, num_nodes=world // local, max_steps=12, logger=False,
    enable_checkpointing=False, enable_progress_bar=False,
)  # fmt: skip
trainer.fit(Regression(), DataLoader(TensorDataset(torch.randn(4096, 32)), batch_size=4))
