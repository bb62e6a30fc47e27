"""A two-rank program for the tests: DDP, FSDP2 or tensor parallel, saved and restored with Prism's checkpointer.

    python sharded_program.py KIND FOLDER [MEMORY PORT RANKS]...
Torch is imported once; the ranks of each run, one after the other, are forks. Each run prints a digest of all weights and optimizer moments after training, and after restoring into a fresh model.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import torch
import torch._dynamo  # every optimizer imports it: once here, and not by every rank
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from prism.recover.checkpoint import CheckpointConfig, Checkpointer, Health, TrainState


def build(kind: str, world_size: int) -> torch.nn.Module:
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
    mesh = init_device_mesh("cpu", (world_size,))
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp":
        return fully_shard(model, mesh=mesh)
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
        model(inputs).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def digest(state: TrainState) -> str:
    """Of the full tensors, so that it does not depend on how they are sharded."""
    total = hashlib.sha256()
    whole = state.state_dict()
    moments = {f"{n}.{k}": v for n, entry in whole["optimizer"]["state"].items() for k, v in entry.items()}
    for name, value in sorted({**whole["model"], **moments}.items()):
        full = value.full_tensor() if isinstance(value, DTensor) else value
        total.update(f"{name}{full.detach().double().flatten().tolist()}".encode())
    return total.hexdigest()


def run(rank: int, kind: str, folder: Path, memory: Path, port: str, world_size: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    config = CheckpointConfig(folder=folder, interval_steps=1, memory_dir=memory, writer="thread", watch_signals=False)
    checkpointer = Checkpointer(config)
    model = build(kind, world_size)
    state = TrainState(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    restored = checkpointer.restore({"train": state})
    if restored is None:
        train(model, state.optimizer, 3)
        checkpointer.save(3, {"train": state}, Health(loss=1.0))
        checkpointer.wait_written()
        assert checkpointer.last_error is None, checkpointer.last_error
    value = digest(state)
    if rank == 0:
        print("DIGEST", restored.source if restored else "trained", value, flush=True)
    checkpointer.close(keep_memory=True)
    dist.destroy_process_group()


def fork_ranks(kind: str, folder: Path, memory: Path, port: str, world_size: int) -> int:
    """The worst exit code of the ranks."""
    children = []
    for rank in range(world_size):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                run(rank, kind, folder, memory, port, world_size)
                code = 0
            finally:
                sys.stdout.flush()
                os._exit(code)
        children.append(pid)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children)


if __name__ == "__main__":
    kind, folder, *runs = sys.argv[1:]
    for first in range(0, len(runs), 3):
        memory, port, ranks = runs[first : first + 3]
        code = fork_ranks(kind, Path(folder), Path(memory), port, int(ranks))
        if code:
            sys.exit(code)
