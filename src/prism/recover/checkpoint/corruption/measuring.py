"""Measurements of tensors on the device; only `wait` waits for the device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.distributed.tensor import DTensor

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ODD = 0x9E3779B97F4A7C15  # an odd multiplier per tensor, so that equal changes in two of them do not cancel
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """Two numbers for a set of tensors: their norm, and the sum of all bits."""

    norm: float
    bits: int


class Reading:
    """A few numbers on their way from the device to the host."""

    def __init__(self, values: torch.Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._values = values.detach()
        if values.is_cuda:
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values.detach(), non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    @property
    def ready(self) -> bool:
        """Whether they have arrived."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> Any:
        """The number, or the list of them; the host waits where they have not arrived."""
        if self._event is not None:
            self._event.synchronize()
        return self._values.tolist()


class SketchReading:
    """The sketch of tensors, being computed."""

    def __init__(self, tensors: Iterable[torch.Tensor], *, norm: bool = True) -> None:
        filled = [one for one in map(_local, tensors) if one.numel()]
        device = max((one.device for one in filled), key=lambda d: d.type != "cpu", default=torch.device("cpu"))
        size = norm_of([one for one in filled if one.is_floating_point()]) if norm else torch.zeros(())
        bits = torch.zeros((), dtype=torch.int64, device=device)
        if filled:
            sums = torch.stack([_sum_bits(one).to(device, non_blocking=True) for one in filled])
            bits = (sums * _multipliers(len(filled), device)).sum()
        packed = size.to(device, torch.float64, non_blocking=True).view(torch.int64)
        self._reading = Reading(torch.stack([packed, bits]))

    def wait(self) -> Sketch:
        """The two numbers."""
        packed, bits = self._reading.wait()
        norm = torch.tensor(packed, dtype=torch.int64).view(torch.float64)
        return Sketch(norm=float(norm), bits=bits & _MASK)


class HostCopy:
    """Part of a batch, being copied to the host."""

    def __init__(self, batch: Any, share: float) -> None:
        self._batch = move(take_part(batch, share), torch.device("cpu"))
        self._event = torch.cuda.Event() if torch.cuda.is_available() else None  # type: ignore[no-untyped-call]
        if self._event is not None:
            self._event.record()

    def wait(self) -> Any:
        """The part, on the host."""
        if self._event is not None:
            self._event.synchronize()
        return self._batch


def sketch(tensors: Iterable[torch.Tensor]) -> Sketch:
    """The norm and the bits of tensors, at once."""
    return SketchReading(tensors).wait()


def norm_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The norm of all tensors together, on their device: one pass."""
    return norm_of_local([one for one in map(_local, tensors) if one.numel()])


def norm_of_local(local: list[torch.Tensor]) -> torch.Tensor:
    """The same for plain tensors, without a Python call for each of them."""
    if not local:
        return torch.zeros(())
    norms = torch._foreach_norm(local)
    if len({(one.dtype, one.device) for one in norms}) > 1:
        # AdamW's step counters may lie on the CPU while the rest is on a GPU.
        norms = tuple(one.float().to(local[0].device, non_blocking=True) for one in norms)
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms), dtype=torch.float32)
    return total


def gradients_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """The gradients that a model has now."""
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> list[torch.Tensor]:
    """Weights and optimizer state, in the same order on every replica."""
    tensors: list[torch.Tensor] = list(model.parameters())
    if optimizer is not None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                entry = optimizer.state.get(parameter, {})
                tensors += [entry[name] for name in sorted(entry) if isinstance(entry[name], torch.Tensor)]
    return tensors


def versions_of(batch: Any) -> tuple[int, ...]:
    """How often each tensor of a batch was written to, which shows whether a kept batch is unchanged."""
    if isinstance(batch, torch.Tensor):
        return () if batch.is_inference() else (batch._version,)
    values = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ()
    return tuple(version for value in values for version in versions_of(value))


def take_part(batch: Any, share: float) -> Any:
    """The first rows of every tensor in a batch."""
    if isinstance(batch, torch.Tensor):
        return batch[: max(1, math.ceil(len(batch) * share))] if batch.dim() else batch
    return _map(batch, lambda value: take_part(value, share))


def move(batch: Any, device: torch.device) -> Any:
    """The tensors of a batch on another device; copies to the host may still be under way."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    return _map(batch, lambda value: move(value, device))


def _map(batch: Any, change: Any) -> Any:
    if isinstance(batch, dict):
        return {key: change(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(change, batch))
    return type(batch)(map(change, batch)) if isinstance(batch, (list, tuple)) else batch


def _sum_bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(_INTEGERS[tensor.element_size()]).sum(dtype=torch.int64)


@lru_cache(maxsize=16)
def _multipliers(count: int, device: torch.device) -> torch.Tensor:
    wrapped = [(2 * number + 1) * _ODD & _MASK for number in range(count)]
    return torch.tensor([value - (1 << 64) if value >> 63 else value for value in wrapped], device=device)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    found = tensor.detach() if tensor.requires_grad else tensor
    if isinstance(found, DTensor):
        found = found._local_tensor
    return found.contiguous()
