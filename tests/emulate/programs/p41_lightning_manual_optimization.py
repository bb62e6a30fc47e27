"""Lightning with manual optimization: two optimizers in turn, gathered metrics at the end of the epoch, no validation."""

import os

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AutoencoderPair(pl.LightningModule):
    """An encoder and a decoder trained by an optimizer each."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.encoder = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 6))
        self.decoder = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 24))
        self.history = []

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        opt_e, opt_d = self.optimizers()
        loss = (self(x) - x).pow(2).mean()
        opt_e.zero_grad()
        opt_d.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(opt_e, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        opt_d.step()
        if batch_idx % 2 == 0:
            opt_e.step()
        self.history.append(loss.detach())

    def on_train_epoch_end(self):
        losses = self.all_gather(torch.stack(self.history).mean())
        self.history.clear()
        if self.trainer.is_global_zero:
            print("epoch", self.current_epoch, "loss", losses.mean().item())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.encoder.parameters(), 1e-3), torch.optim.SGD(self.decoder.parameters(), 1e-2)


if __name__ == "__main__":
    world, local = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    pl.seed_everything(0, verbose=False)
    data = DataLoader(TensorDataset(torch.randn(6 * 4 * world, 24)), batch_size=4)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=local,
        num_nodes=world // local,
        strategy="ddp",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(AutoencoderPair(), data)
