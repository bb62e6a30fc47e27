"""A DeepSpeed training script as its users write it: nothing in it knows of Prism."""

import os
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
from torch.utils.data import DataLoader, Dataset

CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": int(os.environ.get("ZERO_STAGE", "2"))},
    "zero_allow_untested_optimizer": True,
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 20, "warmup_max_lr": 1e-2}},
    "steps_per_print": 10_000,
}


class Points(Dataset[torch.Tensor]):
    """Random vectors, the same in every run."""

    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(16, generator=torch.Generator().manual_seed(index))


def main(steps: int) -> None:
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
    loader = DataLoader(Points(), batch_size=8, shuffle=True)
    done = 0
    while done < 2 * steps:
        for batch in loader:
            time.sleep(float(os.environ.get("STEP_S", "0")) / 2)
            loss = (engine(batch) - batch.sum(dim=1, keepdim=True)).square().mean()
            engine.backward(loss)
            engine.step()
            done += 1
            if done == 2 * steps:
                break
    if torch.distributed.get_rank() == 0:
        sys.stdout.write(f"weights {sum(float(p.detach().double().sum()) for p in model.parameters())!r}\n")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[2]))
