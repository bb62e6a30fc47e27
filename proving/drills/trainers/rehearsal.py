"""A tiny trainer for drills: several real gloo ranks, the same numbers every time, and faults on order.

    python proving/drills/trainers/rehearsal.py --ranks 4 --steps 100 --checkpoints DIR --losses FILE

It imports torch once and forks its ranks. Gradients are averaged by plain all-reduces: DDP rebuilds its buckets
after the first step, and with that the order of its sums, so a restarted run would differ in the last bit.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import FrameType

import torch
import torch._dynamo  # every optimizer imports it: once here, and not by every rank
import torch.distributed as dist

from prism.recover.checkpoint.checkpointer import CheckpointConfig, Checkpointer
from prism.recover.checkpoint.train_state import TrainState
from prism.recover.interval import IntervalConfig
from prism.recover.manifest import Health
from prism.recover.progress import HOST, Progress

WIDTH = 16
_COLLECTIVE_TIMEOUT = timedelta(seconds=120)


def main() -> None:
    """Start the ranks of this host and wait for them."""
    options = _parse_arguments()
    node_rank = int(os.environ.get("PRISM_NODE_RANK", "0"))
    num_nodes = int(os.environ.get("PRISM_NUM_NODES", "1"))
    if options.raise_at == 0:
        raise TypeError("train() got an unexpected keyword argument 'warmpup'")
    print(f"launching {options.ranks} ranks on node {node_rank} of {num_nodes}", flush=True)
    world_size = options.ranks * num_nodes
    children: dict[int, int] = {}
    for local in range(options.ranks):
        rank = node_rank * options.ranks + local
        pid = os.fork()
        if pid == 0:
            _run_rank(rank, world_size, options)
        children[pid] = rank
    sys.exit(_wait_for(children))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--memory-dir", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--state-mb", type=int, default=0)
    parser.add_argument("--writer", default="process")
    parser.add_argument("--losses", type=Path)
    parser.add_argument("--payload-kb", type=int, default=0)  # more bytes over the network in every step
    parser.add_argument("--poison", default="")  # nan:57-57 or spike:57-60
    parser.add_argument("--raise-at", type=int)  # a user's TypeError at this step; 0: at start-up
    parser.add_argument("--bad-host", default="")  # n2:15: this host dies at that step of every attempt
    return parser.parse_args()


def _run_rank(rank: int, world_size: int, options: argparse.Namespace) -> None:
    code = 1
    try:
        os.environ["RANK"] = str(rank)
        torch.set_num_threads(1)
        address = f"tcp://{os.environ.get('MASTER_ADDR', '127.0.0.1')}:{os.environ.get('MASTER_PORT', '29511')}"
        dist.init_process_group(
            "gloo", init_method=address, rank=rank, world_size=world_size, timeout=_COLLECTIVE_TIMEOUT
        )
        train(rank, options)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def train(rank: int, options: argparse.Namespace) -> None:
    """The loop: restore, then step, report and save until done."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ballast = torch.zeros(options.state_mb << 18)  # float32
    progress = Progress.from_environment(rank)
    config = CheckpointConfig(
        folder=options.checkpoints,
        interval_steps=options.save_every,
        interval=IntervalConfig(),
        memory_dir=options.memory_dir / progress.orders.host,  # hosts of a drill share one machine, not their memory
        writer=options.writer,
    )
    checkpointer = Checkpointer(config, progress)
    state = {"train": TrainState(model, optimizer), "position": {"batch": -1}, "ballast": ballast}
    restored = checkpointer.restore(state)
    start = restored.step + 1 if restored else 1
    if restored:
        print(f"restored step {restored.step} from {restored.source}", flush=True)
    bad_host, _, bad_step = options.bad_host.partition(":")
    for step in range(start, options.steps + 1):
        batch = progress.next_batch(state["position"]["batch"] + 1)  # type: ignore[index]
        state["position"] = {"batch": batch}
        loss = _train_step(model, optimizer, rank, batch, options.poison)
        if options.payload_kb:
            dist.all_reduce(torch.ones(options.payload_kb << 8))
        if step == options.raise_at:
            raise TypeError("unsupported operand type(s) for +: 'Tensor' and 'NoneType'")
        if bad_host and os.environ.get(HOST) == bad_host and step >= start + int(bad_step):
            os.kill(os.getpid(), signal.SIGKILL)
        progress.step(step, loss=loss, batch=batch)
        if rank == 0:
            _tell(step, loss, options.losses)
        if options.step_s:
            time.sleep(options.step_s)
        reason = checkpointer.should_save(step)
        if reason is not None:
            checkpointer.save(step, state, Health(loss=loss))
        if reason == "preemption":
            break
    checkpointer.close()


def _train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, batch: int, poison: str) -> float:
    generator = torch.Generator().manual_seed(batch * 1_000 + rank)
    inputs = torch.randn(8, WIDTH, generator=generator)
    targets = inputs.sum(dim=1, keepdim=True).sin()
    kind, _, where = poison.partition(":")
    first, _, last = where.partition("-")
    if where and int(first) <= batch <= int(last):
        targets = targets * (float("nan") if kind == "nan" else 1e4)
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    world_size = dist.get_world_size()
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return float(mean / world_size)


def _tell(step: int, loss: float, losses: Path | None) -> None:
    print(f"step {step} loss {loss:.6f}", flush=True)
    if losses is not None:
        with losses.open("a") as handle:
            handle.write(f"{step} {loss.hex()}\n")


def _wait_for(children: dict[int, int]) -> int:
    """Wait for the ranks; when one fails the others are stopped, as torchrun does."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        for pid in children:
            os.kill(pid, number)

    signal.signal(signal.SIGTERM, pass_on)
    worst = 0
    while children:
        pid, status = os.wait()
        rank = children.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            continue
        if worst == 0:
            print(f"rank {rank} (pid {pid}) ended with exit code {code}; stopping the others", flush=True)
            worst = code if code > 0 else 128 - code
            for other in children:
                os.kill(other, signal.SIGKILL)
    return worst


if __name__ == "__main__":
    main()
