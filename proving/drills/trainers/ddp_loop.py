"""A plain DDP loop with data loader workers and Prism's checkpoints, as the guide shows it."""

import os
import socket
import stat
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from prism.recover import Progress
from prism.recover.checkpoint import CheckpointConfig, Checkpointer, Health, TrainState


class Points(Dataset[torch.Tensor]):
    """Random vectors, the same in every run."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(16, generator=torch.Generator().manual_seed(index))


def drop_connections() -> None:
    """What a network that resets them does to the connections of this process."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        descriptor = int(entry.name)
        if not entry.exists() or not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            continue
        with socket.socket(fileno=os.dup(descriptor)) as one:
            connected = one.family != socket.AF_UNIX and not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if connected:
                one.shutdown(socket.SHUT_RDWR)


def main(folder: Path, steps: int) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    width = int(os.environ.get("WIDTH", "16"))  # a wide one takes a while to write
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.Linear(width, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    progress = Progress.from_environment(dist.get_rank())
    interval = int(os.environ["SAVE_STEPS"]) if "SAVE_STEPS" in os.environ else None
    checkpointer = Checkpointer(CheckpointConfig(folder=folder, interval_steps=interval), progress)
    state = {"train": TrainState(model, optimizer)}
    restored = checkpointer.restore(state)
    points = Points()
    loader = DataLoader(points, batch_size=4, num_workers=2, sampler=DistributedSampler(points, shuffle=False))
    for step, batch in enumerate(loader, start=restored.step + 1 if restored else 1):
        time.sleep(float(os.environ.get("STEP_S", "0")))
        if step == int(os.environ.get("DROP_AT", "0")) and dist.get_rank() == 1 and progress.orders.attempt == 1:
            drop_connections()
        loss = (model(batch) - batch.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.step(step, loss=float(loss.detach()))
        reason = checkpointer.should_save(step)
        if reason:
            checkpointer.save(step, state, Health(loss=float(loss.detach())))
        if reason == "preemption" or step >= steps:
            break
    checkpointer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
