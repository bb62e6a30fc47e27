"""A rank's own gradient norm under DDP, before it is averaged.

With its default settings DDP averages copies of the gradients, in buckets, and puts the averages into `.grad` when the
backward pass ends. Just before that `.grad` still holds what this rank computed. So the norm is taken there, at once
for all parameters: three short Python calls a step, however many buckets there are. With `gradient_as_bucket_view=True`
the gradients are averaged in place, and only a hook for every bucket sees them before. DDP then leaves the division to
the hook. torch's own hook makes a pass of its own over every bucket for it, which costs twice as much as the norm; NCCL
divides while it sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from prism.recover.checkpoint.corruption.measuring import norm_of_local


class OwnNorm(Protocol):
    """Measures during the backward pass."""

    def take(self) -> torch.Tensor | None:
        """The norm of the last backward pass, on the device; None if there was none that averages."""


def own_norm_of(ddp: DistributedDataParallel) -> OwnNorm:
    """The cheapest way that this DDP allows."""
    return _BucketNorms(ddp) if ddp.gradient_as_bucket_view else _EndOfBackward(ddp)


class _EndOfBackward:
    """Called back by autograd before DDP is."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._parameters = [parameter for parameter in ddp.module.parameters() if parameter.requires_grad]
        self._norm: torch.Tensor | None = None
        self._queued = False
        ddp.register_forward_hook(self._after_forward)

    def take(self) -> torch.Tensor | None:
        """The norm, once."""
        norm, self._norm = self._norm, None
        return norm

    def _after_forward(self, ddp: Any, inputs: Any, output: Any) -> None:
        if torch.is_grad_enabled() and ddp.require_backward_grad_sync:
            self._queued = False
            for tensor in _tensors(output):
                if tensor.requires_grad:
                    tensor.register_hook(self._at_start)  # type: ignore[no-untyped-call]

    def _at_start(self, gradient: torch.Tensor) -> None:
        if not self._queued:
            self._queued = True
            # Callbacks run in the order in which they are queued; DDP queues its own when the last bucket is ready.
            torch.autograd.Variable._execution_engine.queue_callback(self._at_end)

    def _at_end(self) -> None:
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        with torch.no_grad():
            self._norm = norm_of_local(gradients)


class _BucketNorms:
    """A hook for every bucket."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._norms: list[torch.Tensor] = []
        self._group = ddp.process_group
        self._share = 1.0 / self._group.size()
        # torch reads a hook's annotations and knows none that are text, as all are in this file.
        ddp.register_comm_hook(None, lambda state, bucket: self._note(bucket.buffer()))

    def take(self) -> torch.Tensor | None:
        """The norm, once."""
        norms, self._norms = self._norms, []
        return torch.stack(norms).norm() if norms else None

    def _note(self, gradients: torch.Tensor) -> Any:
        self._norms.append(torch.linalg.vector_norm(gradients, dtype=torch.float32))
        operation = dist.ReduceOp.SUM
        if gradients.is_cuda and self._share < 1.0 and dist.get_backend(self._group) == "nccl":
            operation = dist.ReduceOp.AVG  # NCCL multiplies by the share before it adds, as the next lines do
        elif self._share < 1.0:
            gradients.mul_(self._share)
        work = dist.all_reduce(gradients, op=operation, group=self._group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
        return
    values = output.values() if isinstance(output, dict) else output if isinstance(output, (list, tuple)) else ()
    for value in values:
        yield from _tensors(value)
