"""torchtitan's own checkpoint manager, optimizers and schedules, called as its trainer calls them, on a CPU.

Its trainer itself needs a GPU; the order of calls here is that of `Trainer.train`.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw


class Counters(Stateful):
    """What torchtitan's trainer keeps of itself."""

    step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step, "ntokens_seen": 64 * self.step}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.step = state_dict["step"]


def main(output: str, steps: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
    fully_shard(model)
    torch.manual_seed(dist.get_rank())
    settings = default_adamw(lr=1e-2)
    settings.implementation = "foreach"
    optimizers = settings.build(model_parts=[model])
    schedules = LRSchedulersContainer.Config(warmup_steps=5).build(optimizers=optimizers, training_steps=steps)
    counters = Counters()
    manager = CheckpointManager(
        CheckpointManager.Config(),
        dataloader=None,
        model_parts=[model],
        optimizers=optimizers,
        lr_schedulers=schedules,
        states={"train_state": counters},
        sd_adapter=None,
        base_folder=output,
    )
    manager.load(step=-1)
    while counters.step < steps:
        counters.step += 1
        time.sleep(float(os.environ.get("STEP_S", "0")))
        batch = torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * counters.step + dist.get_rank()))
        optimizers.zero_grad()
        (model(batch) - batch.sum(dim=1, keepdim=True)).square().mean().backward()
        manager.maybe_wait_for_staging()
        optimizers.step()
        schedules.step()
        manager.save(counters.step, last_step=counters.step == steps)
    manager.close()
    whole = [p.full_tensor() for p in model.parameters() if isinstance(p, DTensor)]
    total = sum(float(one.detach().double().sum()) for one in whole)
    if dist.get_rank() == 0:
        sys.stdout.write(f"weights {total!r}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
