"""What the ranks agree on, over gloo groups that carry nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

Answer = TypeVar("Answer")


class Ranks:
    """This rank among the others. Without a process group it makes one of a single rank."""

    def __init__(self) -> None:
        self._own_world = not dist.is_initialized()
        if self._own_world:
            # torch's background writer wants a process group, also for a world of one.
            dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.control = dist.new_group(backend="gloo")
        self.uploads = dist.new_group(backend="gloo")  # used by the upload thread alone
        self._asked: tuple[dist.Work, torch.Tensor] | None = None

    def barrier(self) -> None:
        """Wait for everyone."""
        dist.barrier(group=self.control)

    def gather(self, value: Answer, group: dist.ProcessGroup | None = None) -> list[Answer]:
        """Everyone's value, by rank."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=group or self.control)
        return values

    def from_first(self, value: Answer) -> Answer:
        """Rank 0's value, on every rank."""
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=0, group=self.control)
        answer: Answer = box[0]
        return answer

    def on_first(self, work: Callable[[], Answer]) -> Answer | None:
        """Run something on rank 0; its failure is raised on every rank. None elsewhere."""
        answer: Answer | None = None
        failure: Exception | None = None
        if self.rank == 0:
            try:
                answer = work()
            except Exception as error:
                failure = error
        failure = self.from_first(failure)
        if failure is not None:
            raise failure
        return answer

    def any_of_last_step(self, flag: bool) -> bool:
        """Whether any rank's flag was up at the previous call: asked in the background, so that no step waits."""
        raised = False
        if self._asked is not None:
            work, votes = self._asked
            work.wait()
            raised = bool(votes.item())
        votes = torch.tensor([int(flag)], dtype=torch.int32)
        work = dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self.control, async_op=True)
        self._asked = (work, votes) if work is not None else None
        return raised

    def close(self) -> None:
        """Settle what is under way, and leave the groups."""
        if self._asked is not None:
            self._asked[0].wait()
            self._asked = None
        if self._own_world:
            dist.destroy_process_group()
