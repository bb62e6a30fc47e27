"""Checkpoint advice: the interval with the smallest loss, and the expected goodput, from a measured failure rate.

Failures come at random with mean time M between them. A segment of T seconds of work and a save of C seconds is tried
until it passes; each failure costs the restart R first. The expected time per segment (J. T. Daly, "A higher order
estimate of the optimum checkpoint interval for restart dumps", FGCS 2006) is

    E(T) = M exp(R / M) (exp((T + C) / M) - 1)        goodput(T) = T / E(T)

and the best T maximises T / E(T). Young's first-order answer, T = sqrt(2 C M), is given as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from prism.errors import BadConfigError

FORMULA = "goodput(T) = T / (M exp(R/M) (exp((T+C)/M) - 1)), best T maximises it; Young: T = sqrt(2 C M)"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCosts:
    """Seconds that training stops for a save, and that a restart takes until training goes on."""

    save_s: float = 30.0
    restart_s: float = 600.0

    def __post_init__(self) -> None:
        if not (0 < self.save_s < 86_400 and 0 <= self.restart_s < 86_400 * 7):
            raise BadConfigError(
                f"save cost {self.save_s:g} s and restart cost {self.restart_s:g} s: the first must be above 0 and "
                "under a day, the second at least 0 and under a week"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAdvice:
    """Advice for jobs with this number of GPUs."""

    gpus: int
    mtbf_hours: float
    interval_s: float
    young_interval_s: float
    goodput_pct: float
    goodput_without_restart_pct: float  # after saving and redone work only


def advise_checkpoints(
    gpu_hours_per_failure: float, sizes: tuple[int, ...], costs: CheckpointCosts
) -> tuple[CheckpointAdvice, ...]:
    """The best interval per job size, for a mean number of GPU-hours between failures."""
    return tuple(_advise(gpu_hours_per_failure * 3600 / gpus, gpus, costs) for gpus in sizes)


def find_goodput(interval_s: float, mtbf_s: float, save_s: float, restart_s: float) -> float:
    """Share of time spent on work that counts."""
    exponent = (interval_s + save_s) / mtbf_s
    if exponent + restart_s / mtbf_s > 700:  # exp would overflow: nothing ever finishes
        return 0.0
    return interval_s / (mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1(exponent))


def find_best_interval(mtbf_s: float, save_s: float) -> float:
    """The interval with the highest goodput, by golden-section search on a function with one peak."""
    low, high = 0.0, max(10 * math.sqrt(2 * save_s * mtbf_s), 10 * save_s)
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    for _ in range(120):
        # The restart scales the goodput of all intervals equally, so the best interval does not depend on it.
        if find_goodput(a, mtbf_s, save_s, 0.0) > find_goodput(b, mtbf_s, save_s, 0.0):
            high, b = b, a
            a = high - ratio * (high - low)
        else:
            low, a = a, b
            b = low + ratio * (high - low)
    return (low + high) / 2


def _advise(mtbf_s: float, gpus: int, costs: CheckpointCosts) -> CheckpointAdvice:
    interval = find_best_interval(mtbf_s, costs.save_s)
    return CheckpointAdvice(
        gpus=gpus,
        mtbf_hours=mtbf_s / 3600,
        interval_s=interval,
        young_interval_s=math.sqrt(2 * costs.save_s * mtbf_s),
        goodput_pct=100 * find_goodput(interval, mtbf_s, costs.save_s, costs.restart_s),
        goodput_without_restart_pct=100 * find_goodput(interval, mtbf_s, costs.save_s, 0.0),
    )
