"""Hugging Face Accelerate: a hand-written loop with prepare(), accumulate(), clipping and gathered metrics."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def loaders(world: int):
    set_seed(0)
    x = torch.randn(32 * 8 * world, 20)
    y = (x.sum(dim=1) > 0).long()
    train = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    test = DataLoader(TensorDataset(x[: 16 * world], y[: 16 * world]), batch_size=8)
    return train, test


def main() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    train, test = loaders(accelerator.num_processes)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.5)
    model, optimizer, train, test, scheduler = accelerator.prepare(model, optimizer, train, test, scheduler)
    for epoch in range(2):
        model.train()
        for features, labels in train:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(features), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        model.eval()
        right = total = 0
        for features, labels in test:
            with torch.no_grad():
                guess = model(features).argmax(dim=-1)
            guess, labels = accelerator.gather_for_metrics((guess, labels))
            right += (guess == labels).sum().item()
            total += labels.numel()
        accelerator.print(f"epoch {epoch}: accuracy {right / total:.3f}")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
