"""Time real collectives between the ranks at hand: one process of `prism calibrate`, started once per rank."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from prism.emulate.inside.measure_plan import MeasurePlan, Point, read_plan

_CACHE_BYTES = 8 << 20  # training finds its buffers cold, so the cache is emptied between repetitions
_BURST_S = 0.004  # a few of the kernel's time slices
_FEWEST_ROUNDS = 4
_ONE_WAY = ("send", "broadcast")  # who sends is free early; otherwise each rank goes on when its own part is done
# torch 2.13 renamed these.
_gather_into: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter_into: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def main() -> None:
    """Measure and let rank 0 write the points."""
    plan = read_plan(Path(sys.argv[1]))
    torch.set_num_threads(1)
    if plan.backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(plan.backend)
    durations = _time_all(plan, join_groups(plan))
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps([asdict(point) for point in list_points(plan, durations)]))
    dist.destroy_process_group()


def join_groups(plan: MeasurePlan) -> dict[int, Any]:
    """This rank's group of every size that the plan asks for."""
    return {size: _join_group(size) for size in sorted({wanted.num_ranks for wanted in plan.wanted})}


def list_points(plan: MeasurePlan, durations: list[int]) -> list[Point]:
    """The plan's collectives with what they took."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    return [
        Point(plan.backend, w.kind, w.num_ranks, -(-w.num_ranks // local), w.bytes, duration)
        for w, duration in zip(plan.wanted, durations, strict=True)
    ]


def _join_group(size: int) -> Any:
    """Groups of this size over all ranks, so that all of them run at once, as they do in training."""
    world, rank = dist.get_world_size(), dist.get_rank()
    groups = [dist.new_group(list(range(first, first + size))) for first in range(0, world, size)]
    return groups[rank // size]


def _time_all(plan: MeasurePlan, groups: dict[int, Any]) -> list[int]:
    """Time of each collective; rounds go over all of them, so that a disturbance does not fall on one alone."""
    bench = Bench(plan, groups)
    rounds: list[Tensor] = []
    began = time.monotonic()
    for _ in range(plan.repetitions):
        rounds.append(bench.time_round())
        # Every rank must stop after the same round, so they go by the slowest.
        spent = torch.tensor([time.monotonic() - began], device=bench.device)
        dist.all_reduce(spent, dist.ReduceOp.MAX)
        if spent.item() > plan.budget_s and len(rounds) >= _FEWEST_ROUNDS:
            break
    return bench.average(rounds[1:] or rounds)  # the first round makes the connections


class Bench:
    """The collectives of a plan, ready to be timed."""

    def __init__(self, plan: MeasurePlan, groups: dict[int, Any]) -> None:
        self.device = "cuda" if plan.backend == "nccl" else "cpu"
        self._plan = plan
        self._groups = groups
        self._cold = torch.ones(_CACHE_BYTES // 4, device=self.device)
        self._calls = [_make_call(w.kind, w.bytes, groups[w.num_ranks], self.device) for w in plan.wanted]

    def time_round(self) -> Tensor:
        """Begin and end of every collective, once each."""
        times = torch.zeros(len(self._calls), 2, dtype=torch.int64)
        for number, (wanted, call) in enumerate(zip(self._plan.wanted, self._calls, strict=True)):
            dist.barrier(self._groups[wanted.num_ranks])
            _compute(self._cold, self.device)
            call.write_inputs()
            _finish(self.device)
            times[number, 0] = time.perf_counter_ns()
            call.run()
            _finish(self.device)
            times[number, 1] = time.perf_counter_ns()
        return times

    def average(self, rounds: list[Tensor]) -> list[int]:
        """Duration of each collective, the mean over ranks and rounds.

        Not the median: an iteration adds many of them up, and a sum is made of means. The slowest tenth is left out.
        """
        kept = torch.stack(rounds).to(self.device)
        means = []
        for number, wanted in enumerate(self._plan.wanted):
            group = self._groups[wanted.num_ranks]
            # The clock is one for all processes of a host.
            began, ended = kept[:, number, 0].contiguous(), kept[:, number, 1].contiguous()
            dist.all_reduce(began, dist.ReduceOp.MAX, group=group)
            if wanted.kind in _ONE_WAY:
                dist.all_reduce(ended, dist.ReduceOp.MAX, group=group)
            durations = (ended - began).clamp(min=1).sort().values
            mean = durations[: max(len(durations) * 9 // 10, 1)].double().mean().view(1)
            dist.all_reduce(mean)
            means.append(round(mean.item() / dist.get_world_size()))
        return means


def _compute(cold: Tensor, device: str) -> None:
    """What precedes a collective in training: a busy core and a cold cache. The kernel schedules by it."""
    until = time.perf_counter() + _BURST_S
    while time.perf_counter() < until:
        cold.add_(1)
    _finish(device)


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


@dataclass(frozen=True, slots=True)
class _TimedCall:
    """A collective, and the tensors that it sends."""

    run: Callable[[], object]
    inputs: tuple[Tensor, ...]

    def write_inputs(self) -> None:
        """Frameworks copy or compute what they send right before they send it, so a cache holds what fits."""
        for tensor in self.inputs:
            tensor.fill_(1.0)


def _make_call(kind: str, size: int, group: Any, device: str) -> _TimedCall:
    """One collective of this size, bytes counted as OPS counts them."""
    members = dist.get_world_size(group)
    count = max(size // 4 // members, 1)
    part, full = _ones(count, device), _ones(count * members, device)
    # Outputs are made once: a running program gets the memory of the step before, and its collectives take no page
    # faults (counted in steps of FSDP2 under torchrun).
    some, every = _ones(count, device), _ones(count * members, device)
    first = dist.get_global_rank(group, 0)
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(full, group=group),
        "all_gather": lambda: _gather_into(every, part, group=group),
        "reduce_scatter": lambda: _scatter_into(some, full, group=group),
        "broadcast": lambda: dist.broadcast(full, first, group=group),
        "all_to_all": lambda: dist.all_to_all_single(every, full, group=group),
        "send": lambda: _pass(full, group),
        "barrier": lambda: dist.barrier(group),
    }
    sent = {"all_gather": (part,), "barrier": ()}.get(kind, (full,))
    return _TimedCall(calls[kind], sent)


def _pass(tensor: Tensor, group: Any) -> None:
    if dist.get_rank(group) == 0:
        dist.send(tensor, group=group, group_dst=1)
    else:
        dist.recv(tensor, group=group, group_src=0)


def _ones(count: int, device: str) -> Tensor:
    return torch.ones(count, dtype=torch.float32, device=device)


if __name__ == "__main__":
    main()
