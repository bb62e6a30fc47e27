"""A small data-parallel training program over gloo that can be told to fail; it prints as real trainers do."""

from __future__ import annotations

import argparse
import datetime
import os
import time

import torch
import torch.distributed as dist
from faults import FAULTS

ACCUMULATE = 4  # steps between two gradient exchanges
NUM_SETTINGS = 150  # Megatron-LM prints about as many arguments when it starts


def log(message: str) -> None:
    """One line with a time and a rank, as loggers write it."""
    stamp = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
    print(f"[{stamp}] [rank{os.environ['RANK']}] {message}", flush=True)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """The command line of the trainer."""
    parser = argparse.ArgumentParser(prog="train.py")
    parser.add_argument("--fault", default="none")
    parser.add_argument("--faulty-rank", type=int, default=0)
    parser.add_argument("--fault-step", type=int, default=200)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--timeout-s", type=float, default=6.0)
    parser.add_argument("--scratch", default="/tmp")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Train a toy model; at the given step the given rank meets its fault."""
    args = parse_arguments(arguments)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    fault = FAULTS[args.fault]
    for number in range(NUM_SETTINGS):
        log(f"  setting_{number:03d} {'.' * 24} {number * 7 % 31}")
    log(f"initializing process group, backend gloo, world size {world_size}")
    if fault.before is not None and (fault.everywhere or rank == args.faulty_rank):
        fault.before(args)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=args.timeout_s))
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    model = torch.nn.Linear(64, 64)
    for name, parameter in model.named_parameters():
        log(f"parameter {name} has {parameter.numel()} elements, requires_grad={parameter.requires_grad}")
    for step in range(1, args.steps + 1):
        started = time.perf_counter()
        if step == args.fault_step and fault.during is not None and (fault.everywhere or rank == args.faulty_rank):
            fault.during(args)
        loss = model(torch.randn(8, 64)).square().mean()
        loss.backward()
        if step % ACCUMULATE == 0:
            for parameter in model.parameters():
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad)
                parameter.grad.zero_()
        report(step, args.steps, loss.item(), (time.perf_counter() - started) * 1000)
    dist.destroy_process_group()
    log("training finished")


def report(step: int, steps: int, loss: float, milliseconds: float) -> None:
    """What a trainer prints at each step: progress, timers, memory and the odd harmless warning."""
    log(f"iteration {step}/ {steps} | elapsed time per iteration (ms): {milliseconds:.1f} | lm loss: {loss:.6E} |")
    log(f"    forward-backward ...: {milliseconds * 0.8:.2f} optimizer ...: {milliseconds * 0.1:.2f}")
    log(f"step {step}: memory allocated 1203.{step % 90} MB, max allocated 1811.{step % 70} MB")
    log(f"batch {step} of epoch 1: 8 samples, {64 * 8} tokens")
    if step % 40 == 0:
        log("WARNING failed to send metrics to the collector, will retry")


if __name__ == "__main__":
    main()
