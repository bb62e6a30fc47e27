"""A small real training program over gloo, run as a script on every host of the lab; writes the times of its steps.

Sleeping takes the place of the accelerator: kernels use no core of the host, as on a GPU. Matrices are multiplied
as well, so that a host with less CPU time falls behind.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

WIDTH, TOKENS = 256, 64
KERNEL_S = 0.025  # of one block's forward; the backward takes twice as long


class Kernel(torch.autograd.Function):
    """A kernel on the simulated accelerator, forward and backward."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        """Wait as long as the kernel runs."""
        time.sleep(KERNEL_S)
        return x.clone()

    @staticmethod
    def backward(ctx: object, *grads: torch.Tensor) -> torch.Tensor:
        """Wait twice as long."""
        time.sleep(2 * KERNEL_S)
        return grads[0]


class Block(nn.Module):
    """Matrix products and a kernel."""

    def __init__(self, passes: int) -> None:
        super().__init__()
        self.passes = passes
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One block."""
        waited: torch.Tensor = Kernel.apply(x)  # type: ignore[no-untyped-call]
        hidden = waited
        for _ in range(self.passes):
            hidden = self.down(torch.relu(self.up(hidden)))
        return x + hidden


def main() -> None:
    """Train, and write one line per step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", choices=["pipeline", "sharded"], required=True)
    parser.add_argument("--pp", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=2, help="per pipeline stage, or of the whole sharded model")
    parser.add_argument("--passes", type=int, default=1, help="of a block's matrices: work for the host's own cores")
    parser.add_argument("--microbatches", type=int, default=4, help="of a step of the pipeline")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--truth", type=Path, required=True, help="file to write the steps to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    run_step = _pipeline(options) if options.layout == "pipeline" else _sharded(options)
    dist.barrier()
    with options.truth.open("w", buffering=1) as truth:
        for step in range(options.steps):
            start = time.time_ns()
            run_step()
            truth.write(json.dumps({"rank": rank, "step": step, "start_ns": start, "end_ns": time.time_ns()}) + "\n")
    dist.barrier()
    os._exit(0)  # gloo's threads need no shutdown


def _pipeline(options: argparse.Namespace) -> Callable[[], None]:
    world = dist.get_world_size()
    mesh: DeviceMesh = init_device_mesh("cpu", (options.pp, world // options.pp), mesh_dim_names=("pp", "dp"))
    stage_index = mesh.get_local_rank("pp")
    module = DistributedDataParallel(_blocks(options), process_group=mesh.get_group("dp"))
    stage = PipelineStage(module, stage_index, options.pp, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, options.microbatches, loss_fn=lambda out, goal: ((out - goal) ** 2).mean())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    batch = torch.randn(options.microbatches * TOKENS, WIDTH)

    def run() -> None:
        optimizer.zero_grad()
        if stage_index == 0:
            schedule.step(batch)
        elif stage_index == options.pp - 1:
            schedule.step(target=batch)
        else:
            schedule.step()
        optimizer.step()

    return run


def _sharded(options: argparse.Namespace) -> Callable[[], None]:
    module = _blocks(options)
    for block in module:
        fully_shard(block)
    fully_shard(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    batch = torch.randn(TOKENS, WIDTH)

    def run() -> None:
        # One micro-batch: several would each gather and reduce in the same way, and would look like steps.
        optimizer.zero_grad()
        ((module(batch) - batch) ** 2).mean().backward()
        optimizer.step()

    return run


def _blocks(options: argparse.Namespace) -> nn.Sequential:
    return nn.Sequential(*(Block(options.passes) for _ in range(options.blocks)))


if __name__ == "__main__":
    main()
