"""A Lightning training script as its users write it: nothing in it knows of Prism."""

import os
import sys
import time

import lightning
import torch
from torch.utils.data import DataLoader, Dataset


class Points(Dataset[torch.Tensor]):
    """Random vectors, the same in every run."""

    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(16, generator=torch.Generator().manual_seed(index))


class Regression(lightning.LightningModule):  # type: ignore[misc]
    """Something small to train, with a schedule and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        time.sleep(float(os.environ.get("STEP_S", "0")))
        loss: torch.Tensor = (self.layers(batch) - batch.sum(dim=1, keepdim=True)).square().mean()
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main(output: str, steps: int) -> None:
    lightning.seed_everything(0)
    model = Regression()
    workers = int(os.environ.get("WORKERS", "2"))
    loader = DataLoader(Points(), batch_size=8, shuffle=True, num_workers=workers)
    trainer = lightning.Trainer(max_steps=steps, accelerator="cpu", default_root_dir=output, logger=False)
    trainer.fit(model, loader)
    if trainer.is_global_zero:
        sys.stdout.write(f"weights {sum(float(p.detach().double().sum()) for p in model.parameters())!r}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
