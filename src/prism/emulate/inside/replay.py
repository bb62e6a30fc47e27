"""One rank of a replay: real gloo collectives in the captured order, and the captured work between them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_TIMEOUT = timedelta(seconds=30)  # calls that do not meet in a replay end it
Step = Callable[[], object]
Call = Callable[[], Any]


class Replay:
    """The steps of one rank's iterations, with tensors made beforehand, as a running program has them."""

    def __init__(self, groups: list[Any]) -> None:
        self._groups = groups
        self._buffers: dict[tuple[str, int], Tensor] = {}
        self._pending: dict[int, Any] = {}

    def prepare(self, ops: list[list[Any]]) -> list[Step]:
        """One iteration."""
        steps = [self._make(op) for op in ops]
        return [*steps, self._finish]

    def _make(self, op: list[Any]) -> Step:
        what, *values = op
        if what == "work":
            return lambda: _work(values[0])
        if what == "wait":
            return lambda: self._wait(values[0])
        number, kind, group, size, peer, tag, later, sends, takes = values
        call = self._call(kind, self._groups[group], size, peer, tag, sends, takes)
        if later:
            return lambda: self._pending.__setitem__(number, call())
        return lambda: call().wait()

    def _wait(self, number: int) -> None:
        work = self._pending.pop(number, None)
        if work is not None:
            work.wait()

    def _finish(self) -> None:
        """What is never waited for ends with the iteration."""
        for number in list(self._pending):
            self._wait(number)

    def _buffer(self, use: str, size: int) -> Tensor:
        """Elements of four bytes, as gradients have; the same memory in every iteration."""
        key = (use, max(size // 4, 1))
        return self._buffers.setdefault(key, torch.zeros(key[1]))

    def _call(
        self, kind: str, group: Any, size: int, peer: int, tag: int, sends: list[int] | None, takes: list[int] | None
    ) -> Call:
        whole, members = self._buffer("whole", size), dist.get_world_size(group)
        part = self._buffer("part", size // members)
        every = self._buffer("every", 4 * part.numel() * members)
        roots = [list(every.chunk(members))] if peer == dist.get_rank(group) else []
        # The group's own methods: what Python does around them is part of the captured work.
        calls: dict[str, Call] = {
            "all_reduce": lambda: group.allreduce([whole]),
            "reduce": lambda: group.reduce([whole], _rooted(dist.ReduceOptions(), peer)),
            "broadcast": lambda: group.broadcast([whole], _rooted(dist.BroadcastOptions(), peer)),
            "all_gather": lambda: _gather_into(group)(every, part),
            "reduce_scatter": lambda: _scatter_into(group)(part, every),
            "gather": lambda: group.gather(roots, [part], _rooted(dist.GatherOptions(), peer)),
            "scatter": lambda: group.scatter([part], roots, _rooted(dist.ScatterOptions(), peer)),
            "barrier": lambda: group.barrier(),
            "send": lambda: group.send([whole], peer, tag),
            "recv": lambda: group.recv([whole], peer, tag),
            "all_to_all": self._exchange(group, every, sends, takes),
        }
        return calls[kind]

    def _exchange(self, group: Any, every: Tensor, sends: list[int] | None, takes: list[int] | None) -> Call:
        if sends is None or takes is None:
            out = self._buffer("out", 4 * every.numel())
            return lambda: group.alltoall_base(out, every, [], [])
        give, get = ([size // 4 for size in sizes] for sizes in (sends, takes))
        own, other = torch.zeros(sum(give)), torch.zeros(sum(get))
        return lambda: group.alltoall_base(other, own, get, give)


def _rooted(options: Any, root: int) -> Any:
    options.rootRank = root
    return options


def _gather_into(group: Any) -> Any:
    """torch 2.13 renamed it, and the next one."""
    return getattr(group, "_allgather_base", None) or group.all_gather_single


def _scatter_into(group: Any) -> Any:
    return getattr(group, "_reduce_scatter_base", None) or group.reduce_scatter_single


def _work(duration_ns: int) -> None:
    """Keep the core busy for so much of this thread's own time."""
    until = time.thread_time_ns() + duration_ns
    while time.thread_time_ns() < until:
        pass


def main() -> None:
    """Run the plan and leave when each iteration ended."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=_TIMEOUT)
    rank = dist.get_rank()
    groups = [dist.new_group(ranks, timeout=_TIMEOUT) for ranks in plan["groups"]]
    replay = Replay(groups)
    iterations = [replay.prepare(ops) for ops in plan["ranks"][rank]]
    dist.barrier()
    ends = []
    for _ in range(plan["rounds"]):
        for steps in iterations:
            for step in steps:
                step()
            ends.append(time.perf_counter_ns())
    Path(f"{sys.argv[2]}.{rank}").write_text(json.dumps(ends))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
