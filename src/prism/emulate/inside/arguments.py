"""Errors that the real backends raise for arguments that do not fit the group, in their words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from prism.emulate.inside.recorder import find_source


def check_list(kind: str, tensors: Sequence[object], size: int) -> None:
    """A list needs one tensor per member."""
    if len(tensors) != size:
        raise ValueError(
            f"{kind}: incorrect list size {len(tensors)}, should be {size}, the size of the process group "
            f"({find_source()})"
        )


def check_operator(tensors: Sequence[Tensor], op: Any, backend: str) -> None:
    """NCCL combines no bits; gloo those of whole numbers only, and it gives no average of them."""
    bitwise = op == dist.ReduceOp.BAND or op == dist.ReduceOp.BOR or op == dist.ReduceOp.BXOR
    real = any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)
    if bitwise and backend == "nccl":
        raise ValueError(f"Cannot use ReduceOp.{op.op.name} with NCCL ({find_source()})")
    if bitwise and real:
        raise RuntimeError(f"Cannot use ReduceOp.{op.op.name} with non-integral dtype ({find_source()})")
    if op == dist.ReduceOp.AVG and backend == "gloo" and not real and tensors:
        raise RuntimeError(
            f"result type Float can't be cast to the desired output type of an average ({find_source()})"
        )


def check_splits(tensor: Tensor, splits: Sequence[int], size: int) -> None:
    """The parts of an all-to-all: one per member, and all rows."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if splits:
        check_list("all_to_all splits", splits, size)
    if splits and sum(splits) != rows:
        raise RuntimeError(f"Split sizes doesn't match total dim 0 size: {list(splits)} of {rows} ({find_source()})")
    if not splits and rows % size:
        raise RuntimeError(
            f"Tensor's dim 0 does not divide equally across group size: {rows} by {size} ({find_source()})"
        )


def check_whole(kind: str, whole: Tensor, part: Tensor, size: int) -> None:
    """A gathered or scattered buffer holds one part per member."""
    if whole.numel() != part.numel() * size:
        raise ValueError(
            f"{kind}: the large tensor has {whole.numel()} elements, should be {size} times the {part.numel()} of the "
            f"small one ({find_source()})"
        )
