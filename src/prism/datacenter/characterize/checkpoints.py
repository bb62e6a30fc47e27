"""Checkpoint advice: the best interval of `recover.interval`, and the goodput it gives, from a measured failure rate.

A segment of T of work and a save of C takes M exp(R / M) (exp((T + C) / M) - 1), with M between failures and a restart
of R; its goodput is T over that. Young's first-order interval, sqrt(2 C M), is given as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from prism.errors import BadConfigError
from prism.recover.interval import choose_interval_s

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


def _advise(mtbf_s: float, gpus: int, costs: CheckpointCosts) -> CheckpointAdvice:
    interval = choose_interval_s(costs.save_s, mtbf_s)
    return CheckpointAdvice(
        gpus=gpus,
        mtbf_hours=mtbf_s / 3600,
        interval_s=interval,
        young_interval_s=math.sqrt(2 * costs.save_s * mtbf_s),
        goodput_pct=100 * find_goodput(interval, mtbf_s, costs.save_s, costs.restart_s),
        goodput_without_restart_pct=100 * find_goodput(interval, mtbf_s, costs.save_s, 0.0),
    )
