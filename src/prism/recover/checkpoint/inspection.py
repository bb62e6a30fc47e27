"""Finds NaN, infinity and implausibly large values in the tensors of a state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from prism.recover.manifest import Health

_NARROW_BYTES = 1  # float8 has no arithmetic of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionConfig:
    """When a tensor is suspect."""

    # The largest value of a tensor, against the save before. Weights and moments of training move by small factors; a
    # flipped exponent bit multiplies a number by 2**16 or more, up to 2**128.
    outlier_factor: float = 1e4


def find_not_finite(tensors: Mapping[str, torch.Tensor]) -> frozenset[str]:
    """Names of tensors that hold NaN or infinity; one pass, without a copy."""
    return frozenset(name for name, tensor in tensors.items() if not _is_finite(tensor))


def find_largest(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, float]:
    """The largest absolute value of every floating-point tensor; NaN or infinity if it contains one."""
    largest = {}
    for name, tensor in tensors:
        plain = _as_real(tensor)
        if plain is None:
            continue
        low, high = torch.aminmax(plain)
        largest[name] = math.nan if bool(low.isnan() | high.isnan()) else max(-float(low), float(high), 0.0)
    return largest


def judge_tensors(
    told: Health,
    largest: Mapping[str, float],
    before: Mapping[str, float],
    tolerated: frozenset[str] = frozenset(),
    config: InspectionConfig | None = None,
) -> Health:
    """Add to the trainer's report what its tensors show; those `tolerated` were not finite when training began."""
    factor = (config or InspectionConfig()).outlier_factor
    bad = [name for name, value in largest.items() if not math.isfinite(value) and name not in tolerated]
    grown = [
        name
        for name, value in largest.items()
        if math.isfinite(value) and 0.0 < before.get(name, 0.0) < math.inf and value > factor * before[name]
    ]
    worst = (bad or grown or [""])[0]
    return replace(told, num_not_finite=len(bad), num_outliers=len(grown), worst=worst)


def merge_health(parts: Iterable[Health]) -> Health:
    """The health of a whole state from the parts of all ranks."""
    merged = list(parts)
    bad = [one for one in merged if one.num_not_finite]
    grown = [one for one in merged if one.num_outliers]
    looked = all(one.num_not_finite is not None for one in merged)
    return replace(
        merged[0],
        num_not_finite=sum(one.num_not_finite or 0 for one in merged) if looked or bad else None,
        num_outliers=sum(one.num_outliers or 0 for one in merged) if looked or grown else None,
        worst=next((one.worst for one in (*bad, *grown)), ""),
    )


def _is_finite(tensor: torch.Tensor) -> bool:
    plain = _as_real(tensor)
    if plain is None:
        return True
    # NaN and infinity survive a sum, so a finite sum proves that all are; the sum itself may overflow.
    total = plain.sum(dtype=torch.float64 if plain.dtype is torch.float64 else torch.float32)
    return bool(total.isfinite()) or bool(plain.isfinite().all())


def _as_real(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor as real floating-point numbers; None if it has none."""
    if tensor.numel() == 0 or not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    return tensor.float() if tensor.element_size() == _NARROW_BYTES else tensor
