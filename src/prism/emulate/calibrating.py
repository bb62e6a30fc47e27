"""Measure collectives on the ranks at hand and keep them as a calibration."""

from __future__ import annotations

import os

import polars as pl

from prism.emulate.inside.measure_plan import KINDS, MeasurePlan, Wanted
from prism.emulate.measuring import measure_collectives
from prism.errors import BadConfigError
from prism.simulate.calibration import Calibration, calibration_of

_SMALLEST, _LARGEST = 1 << 10, 1 << 26


def calibrate(
    backend: str,
    ranks: int | None = None,
    *,
    largest_bytes: int = _LARGEST,
    kinds: tuple[str, ...] = KINDS,
    pin: bool = False,
) -> Calibration:
    """Time every kind at powers of two up to `largest_bytes`, in groups of 2, 4, ... up to all ranks of this host."""
    num_ranks = ranks if ranks is not None else count_ranks(backend)
    if num_ranks < 2:
        raise BadConfigError(f"--ranks is {num_ranks}; a collective needs at least 2")
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise BadConfigError(f"no collective '{unknown[0]}'; choose from {', '.join(KINDS)}")
    if backend == "nccl":
        _check_gpus(num_ranks)
    wanted = tuple(
        Wanted(kind, group, size)
        for group in list_group_sizes(num_ranks)
        for kind in kinds
        if kind != "send" or group == 2
        for size in ((0,) if kind == "barrier" else list_sizes(largest_bytes))
    )
    points = measure_collectives(MeasurePlan(backend=backend, wanted=wanted), num_ranks, pin=pin and backend == "gloo")
    return calibration_of(pl.DataFrame(points))


def list_group_sizes(num_ranks: int) -> list[int]:
    """Powers of two that divide the ranks, and all of them."""
    sizes = [2**k for k in range(1, num_ranks.bit_length()) if num_ranks % 2**k == 0 and 2**k <= num_ranks]
    return sorted({*sizes, num_ranks})


def list_sizes(largest: int) -> list[int]:
    """Powers of two from 1 KiB."""
    return [_SMALLEST << k for k in range((max(largest, _SMALLEST) // _SMALLEST).bit_length())]


def count_ranks(backend: str) -> int:
    """One rank per core or per GPU of this host."""
    import torch

    # A collective needs two ranks; on one core they take turns.
    return torch.cuda.device_count() if backend == "nccl" else max(2, len(os.sched_getaffinity(0)))


def _check_gpus(num_ranks: int) -> None:
    import torch

    if torch.cuda.device_count() < num_ranks:
        raise BadConfigError(
            f"nccl needs one GPU per rank: {num_ranks} ranks, {torch.cuda.device_count()} GPUs; lower --ranks, or give "
            "nccl-tests output of the real cluster to `prism emulate --calibration`"
        )
