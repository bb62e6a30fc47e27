"""What a collective leaves in its output when only this rank is real.

The rule is the one of identical ranks: every other member is assumed to hold what this rank holds. So a gather repeats
the own shard, a sum is the own value times the group's size, a maximum is the own value. Nothing here allocates
device memory or draws random numbers, because both would change what the program under test does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# Prime strides, so that rows of a matrix differ: equal rows would send every token of a mixture to one expert.
_PATTERN = ((7, -0.02), (13, 0.03), (31, -0.05), (101, 0.08))

CONTROL_BYTES = 4096
"""Tensors up to this size are taken for values that a program reads: shapes, votes, norms."""
INTEGER_BYTES = 1 << 20
"""Integer tensors up to this size are taken for counts, indices or pickled objects."""


def size_of(tensor: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def is_control(tensor: Tensor) -> bool:
    """Whether a program may branch on these values, so that real bytes are needed; both sides decide alike."""
    if tensor.is_floating_point() or tensor.is_complex():
        return size_of(tensor) <= CONTROL_BYTES
    return size_of(tensor) <= INTEGER_BYTES


def fill_pattern(tensor: Tensor) -> None:
    """Small finite values that differ from row to row; zeros where the type is not a floating one."""
    if not tensor.is_floating_point():
        tensor.zero_()
        return
    if not tensor.is_contiguous():
        tensor.fill_(0.01)
        return
    flat = tensor.view(-1)
    flat.fill_(0.01)
    for stride, value in _PATTERN:
        flat[::stride].fill_(value)


def reduce_factor(op: Any, size: int) -> float:
    """By what a value grows when `size` equal ones are reduced.

    Scaled sums (PREMUL_SUM) divide by the group's size where they are used, and products would overflow: both stay.
    """
    return float(size) if op == dist.ReduceOp.SUM else 1.0


def scale(tensor: Tensor, factor: float) -> None:
    """Multiply in place where the type allows it."""
    if factor == 1.0 or tensor.dtype == torch.bool:
        return
    tensor.mul_(int(factor) if not (tensor.is_floating_point() or tensor.is_complex()) else factor)


def combine_into(target: Tensor, rows: Tensor, times: Sequence[int], op: Any) -> None:
    """Reduce distinct values, each of which so many members hold, as gloo reduces those of all members."""
    is_real = rows.is_floating_point() or rows.is_complex()
    wide = (torch.complex128 if rows.is_complex() else torch.float64) if is_real else torch.int64
    rows, counts = rows.to(wide), torch.tensor(times).view(-1, *[1] * target.dim())
    if op == dist.ReduceOp.SUM:
        target.copy_((rows * counts).sum(0))
    elif op == dist.ReduceOp.AVG:
        target.copy_((rows * counts).sum(0) / sum(times))
    elif op == dist.ReduceOp.PRODUCT:
        target.copy_(rows.pow(counts).prod(0))
    elif op == dist.ReduceOp.MAX:
        target.copy_(rows.amax(0))
    elif op == dist.ReduceOp.MIN:
        target.copy_(rows.amin(0))
    elif op == dist.ReduceOp.BAND:
        target.copy_(reduce(torch.bitwise_and, rows))
    elif op == dist.ReduceOp.BOR:
        target.copy_(reduce(torch.bitwise_or, rows))
    elif op == dist.ReduceOp.BXOR:
        target.copy_(reduce(torch.bitwise_xor, rows * (counts % 2)))


def gather_into(output: Tensor, own: Tensor, position: int) -> None:
    """Put the own shard in every place of a gathered buffer; the shard may be a view of its own place."""
    if output.numel() == 0 or own.numel() == 0:
        return
    places, row = output.view(-1, own.numel()), own.reshape(1, -1)
    if places.shape[0] == 1 or own.untyped_storage().data_ptr() != output.untyped_storage().data_ptr():
        places.copy_(row)
    else:
        places[:position].copy_(row)
        places[position + 1 :].copy_(row)


def scatter_from(output: Tensor, full: Tensor, position: int) -> None:
    """Take the own chunk of a full buffer."""
    if output.numel():
        chunk = full.reshape(-1)[position * output.numel() : (position + 1) * output.numel()]
        output.view(-1).copy_(chunk)


def exchange_into(output: Tensor, own: Tensor) -> None:
    """All-to-all payload: as much of what was sent as fits, the rest a pattern."""
    if not (output.is_contiguous() and own.is_contiguous()):
        fill_pattern(output)
        return
    target, source = output.view(-1), own.view(-1)
    common = min(target.numel(), source.numel())
    target[:common].copy_(source[:common])
    if common < target.numel():
        fill_pattern(target[common:])


def repeat_into(output: Tensor, values: Tensor) -> None:
    """Fill a tensor with these values, repeated or cut to its size."""
    times = -(-output.numel() // values.numel())
    output.copy_(values.repeat(times)[: output.numel()].view(output.shape))


def split_bytes(tensor: Tensor, splits: Sequence[int], size: int) -> list[int]:
    """Bytes to each position of an all-to-all; even parts where no splits are given."""
    if not splits:
        return [size_of(tensor) // size] * size
    row = size_of(tensor) // max(tensor.shape[0], 1) if tensor.dim() else 0
    return [int(rows) * row for rows in splits]


def spread_evenly(total: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to the weights that add up to `total`."""
    whole = sum(weights)
    edges = [0, *(round(total * part / whole) for part in accumulate(weights))]
    return [after - before for before, after in pairwise(edges)]
