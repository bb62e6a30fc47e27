"""Agreement between ranks, over a gloo group of its own, called only from the training thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

Answer = TypeVar("Answer")


class Ranks:
    """This rank among the others; without a process group there is one rank."""

    def __init__(self) -> None:
        self._alone = not dist.is_initialized() or dist.get_world_size() == 1
        self.rank = 0 if self._alone else dist.get_rank()
        self.world_size = 1 if self._alone else dist.get_world_size()
        self.control = None if self._alone else _find_control()

    def barrier(self) -> None:
        """Wait for everyone."""
        if not self._alone:
            dist.barrier(group=self.control)

    def gather(self, value: Answer) -> list[Answer]:
        """Everyone's value, by rank."""
        if self._alone:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def gather_on_first(self, value: Answer) -> list[Answer]:
        """Everyone's value, by rank, on rank 0; nothing elsewhere."""
        if self._alone:
            return [value]
        values: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
        dist.gather_object(value, values, group=self.control, dst=0)
        return values or []

    def scatter_from_first(self, work: Callable[[], list[Answer]]) -> Answer:
        """Run a function on rank 0 and send each rank its part; an error is raised on every rank."""
        if self._alone:
            return work()[0]
        parts: list[Any] = [None] * self.world_size
        if self.rank == 0:
            try:
                parts = list(work())
            except Exception as error:
                parts = [error] * self.world_size
        box: list[Any] = [None]
        dist.scatter_object_list(box, parts if self.rank == 0 else None, src=0, group=self.control)
        if isinstance(box[0], Exception):
            raise box[0]
        answer: Answer = box[0]
        return answer

    def from_first(self, value: Answer) -> Answer:
        """Rank 0's value, on every rank."""
        return self.from_rank(0, value)

    def from_rank(self, rank: int, value: Answer) -> Answer:
        """One rank's value, on every rank."""
        if self._alone:
            return value
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=rank, group=self.control)
        answer: Answer = box[0]
        return answer

    def on_first(self, work: Callable[[], Answer]) -> Answer:
        """Run a function on rank 0 and send its result to every rank; an error is raised on every rank."""
        answer: Answer | Exception
        try:
            answer = work() if self.rank == 0 else None  # type: ignore[assignment]
        except Exception as error:
            answer = error
        answer = self.from_first(answer)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def largest(self, *numbers: int) -> list[int]:
        """The largest of every number over all ranks: one small all-reduce."""
        if self._alone:
            return list(numbers)
        votes = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self.control)
        return [int(one) for one in votes.tolist()]


_CONTROL: list[tuple[object, dist.ProcessGroup]] = []  # of the present default group; every group holds connections


def _find_control() -> dist.ProcessGroup:
    """The group for agreement, shared by all checkpointers of this process."""
    world = dist.group.WORLD
    if not _CONTROL or _CONTROL[0][0] is not world:
        _CONTROL[:] = [(world, dist.new_group(backend="gloo"))]
    return _CONTROL[0][1]


class LaggedVote:
    """The largest number that any rank gave at the previous call, reduced in the background so that no step waits."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._asked: tuple[dist.Work | None, torch.Tensor] | None = None

    def ask(self, number: int) -> int:
        """Give this rank's number; the answer of the previous call, 0 at the first."""
        before = self._settle()
        votes = torch.tensor([number], dtype=torch.int64)
        work = None
        if self._ranks.control is not None:
            work = dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self._ranks.control, async_op=True)
        self._asked = (work, votes)
        return before

    def close(self) -> None:
        """Finish the reduction in progress."""
        self._settle()
        self._asked = None

    def _settle(self) -> int:
        if self._asked is None:
            return 0
        work, votes = self._asked
        if work is not None:
            work.wait()
        return int(votes.item())
