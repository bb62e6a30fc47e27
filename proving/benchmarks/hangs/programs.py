"""Programs as users write them, in which one rank goes wrong: five ways to train times a dozen ways to get stuck.

A case is drawn from its seed. Ranks are forked from a process that has imported torch, join by a file, and have no
number in their environment and no Flight Recorder: nothing is prepared for whoever looks at them.
"""

from __future__ import annotations

import os
import queue
import random
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

SHAPES = ("ddp", "fsdp", "hsdp", "pipeline", "tensor")
FAULTS = (
    "read", "lock", "sleep", "spin", "regex", "stop", "barrier", "skip", "queue", "process", "socket", "matmul", "save",
)  # fmt: skip
_WIDTH, _STEPS, _FAULT_STEP = 16, 8, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One case: how the ranks train, what goes wrong, and at which of them."""

    seed: int
    shape: str
    fault: str
    ranks: int
    victim: int


def draw_program(seed: int) -> Program:
    """A case by its seed; shapes and faults take turns, so that neighbours differ in both."""
    rng = random.Random(seed)
    ranks = rng.choice((3, 4, 5)) if SHAPES[seed % 5] in ("ddp", "fsdp") else 4
    fault = FAULTS[seed % len(FAULTS)]
    return Program(seed=seed, shape=SHAPES[seed % 5], fault=fault, ranks=ranks, victim=rng.randrange(ranks))


def train(program: Program, rank: int, folder: Path) -> None:
    """One rank, to its end or to where it hangs; every finished step is a byte in its own file."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    init = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=program.ranks, timeout=timedelta(hours=1))
    run_step = _BUILD[program.shape](rank, program.ranks)
    with (folder / f"steps_{rank}").open("ab", buffering=0) as steps:
        for step in range(_STEPS):
            wrong = rank == program.victim and step == _FAULT_STEP
            if not (wrong and fail(program.fault, folder)):
                run_step()
            loss = torch.ones(1)
            dist.all_reduce(loss)
            steps.write(b".")
    time.sleep(3600)


def fail(fault: str, folder: Path) -> bool:
    """Go wrong; whether the rank then leaves its step out."""
    if fault in _STUCK:
        _STUCK[fault](folder)
    if fault == "barrier":
        dist.barrier()
    return fault == "skip"


def load_shard(folder: Path) -> None:
    """Wait for a file that answers nobody, as on a network mount that hangs."""
    path = folder / "shard.bin"
    os.mkfifo(path)
    with path.open("rb") as file:
        file.read()


def take_twice(folder: Path) -> None:
    """Wait for a lock that this thread holds."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def spin(folder: Path) -> None:
    """Iterate until a limit that is never reached."""
    error = 1.0
    while error > 1e-9:
        error = max(error * 0.5, 1e-8)


def ask_server(folder: Path) -> None:
    """Wait for the answer of a server that accepts and says nothing."""
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    client.recv(1)


def multiply(folder: Path) -> None:
    """Compute without end."""
    matrix = torch.eye(1500)
    while True:
        matrix = matrix @ matrix


def save(folder: Path) -> None:
    """Write a checkpoint to a pipe that nobody empties."""
    os.mkfifo(folder / "model.pt")
    handle = os.open(folder / "model.pt", os.O_RDWR)
    with os.fdopen(handle, "wb", buffering=0) as file:
        torch.save(torch.ones(1 << 20), file)


_STUCK: dict[str, Callable[[Path], object]] = {
    "read": load_shard,
    "lock": take_twice,
    "sleep": lambda folder: time.sleep(3600),
    "spin": spin,
    "regex": lambda folder: re.match(r"(a+)+$", "a" * 60 + "b"),
    "stop": lambda folder: os.kill(os.getpid(), signal.SIGSTOP),
    "queue": lambda folder: queue.Queue[int]().get(),
    "process": lambda folder: subprocess.run(["sleep", "3600"], check=False),
    "socket": ask_server,
    "matmul": multiply,
    "save": save,
}


def _net() -> nn.Sequential:
    return nn.Sequential(*[nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.ReLU()) for _ in range(4)])


def _learn(model: nn.Module) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def run_step() -> None:
        model(torch.randn(4, _WIDTH)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return run_step


def _build_ddp(rank: int, ranks: int) -> Callable[[], None]:
    return _learn(DistributedDataParallel(_net(), bucket_cap_mb=0.002))


def _build_fsdp(rank: int, ranks: int) -> Callable[[], None]:
    model = _net()
    for layer in model:
        fully_shard(layer)
    return _learn(fully_shard(model))


def _build_hsdp(rank: int, ranks: int) -> Callable[[], None]:
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicate", "shard"))
    model = _net()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return _learn(fully_shard(model, mesh=mesh))


def _build_tensor(rank: int, ranks: int) -> Callable[[], None]:
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("data", "tensor"))
    plan = {"0.0": ColwiseParallel(), "1.0": RowwiseParallel(), "2.0": ColwiseParallel(), "3.0": RowwiseParallel()}
    model = parallelize_module(_net(), mesh["tensor"], plan)
    step, group = _learn(model), mesh["data"].get_group()

    def run_step() -> None:
        step()
        dist.all_reduce(torch.ones(64), group=group)

    return run_step


def _build_pipeline(rank: int, ranks: int) -> Callable[[], None]:
    stage = PipelineStage(nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.ReLU()), rank, ranks, torch.device("cpu"))
    kind = Schedule1F1B if ranks % 2 == 0 else ScheduleGPipe
    schedule = kind(stage, n_microbatches=4, loss_fn=lambda y, t: (y - t).pow(2).mean())

    def run_step() -> None:
        if rank == 0:
            schedule.step(torch.randn(8, _WIDTH))
        elif rank == ranks - 1:
            schedule.step(target=torch.randn(8, _WIDTH), losses=[])
        else:
            schedule.step()

    return run_step


_BUILD = {
    "ddp": _build_ddp,
    "fsdp": _build_fsdp,
    "hsdp": _build_hsdp,
    "pipeline": _build_pipeline,
    "tensor": _build_tensor,
}
