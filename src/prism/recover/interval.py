"""When to save: the interval follows from the measured cost of a save and the failure rate."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

from prism.recover.risks import NODE_MTBF

# Mean time between failures of one node in InfiniteHBD's trace: 584 faults, 400 nodes, 349 days.
NODE_MTBF_S = 239 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalConfig:
    """Assumptions until something is measured, and the limits of the interval."""

    node_mtbf_s: float = NODE_MTBF_S
    num_nodes: int | None = None  # None: from the launcher's variables
    min_s: float = 30.0
    max_s: float = 3_600.0
    cheap_s: float = 120.0  # no longer than this while saves cost little:
    cheap_share: float = 0.001  # of the training's time, in which it stands still,
    cheap_write_share: float = 0.1  # and of the time in which the storage is written to
    first_steps: int = 10  # until the first save, while nothing is measured
    write_headroom: float = 1.25  # an interval is at least this many times the background write


def choose_interval_s(save_s: float, mtbf_s: float) -> float:
    """The work between saves that loses least, where a save stops the training for `save_s`.

    Failures come at random, M apart on average; a segment of T of work and a save of C is tried until it passes, which
    takes M exp(R / M) (exp((T + C) / M) - 1) with a restart of R (J. T. Daly, FGCS 2006). The best T solves
    C / M = -T / M - log(1 - T / M), whatever R is; for C far below M it is Young's sqrt(2 C M).
    """
    cost = save_s / mtbf_s
    if cost <= 0:
        return 0.0
    share = min(math.sqrt(2.0 * cost), 1.0 - math.exp(-1.0 - cost))  # of M; Newton's steps from here on go one way
    for _ in range(50):
        step = (-share - math.log1p(-share) - cost) * (1.0 - share) / share
        share -= step
        if abs(step) <= 1e-13 * share:
            break
    return share * mtbf_s


def estimate_mtbf_s(config: IntervalConfig, num_failures: int, uptime_s: float) -> float:
    """Mean time between failures: the prior counts as one failure, together with those of this job."""
    node_s = config.node_mtbf_s
    with contextlib.suppress(ValueError):  # the supervisor may know the risk of these nodes
        node_s = float(os.environ.get(NODE_MTBF, "")) or node_s
    prior_s = node_s / (config.num_nodes or count_nodes(os.environ))
    return (prior_s + uptime_s) / (1 + num_failures)


def count_nodes(environment: Mapping[str, str]) -> int:
    """The number of nodes, from variables of Prism, Slurm or torchrun; 1 if none is set."""
    for name in ("PRISM_NUM_NODES", "SLURM_JOB_NUM_NODES"):
        if environment.get(name, "").isdigit():
            return max(1, int(environment[name]))
    ranks, here = environment.get("WORLD_SIZE", ""), environment.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(ranks) // max(1, int(here))) if ranks.isdigit() and here.isdigit() else 1


class SaveClock:
    """Measures steps and saves during training and chooses the number of steps between saves."""

    def __init__(self, config: IntervalConfig, num_failures: int = 0, uptime_s: float = 0.0) -> None:
        self.config = config
        self._mtbf_s = estimate_mtbf_s(config, num_failures, uptime_s)
        self._step_s: float | None = None
        self._stall_s: float | None = None
        self._write_s = 0.0
        self._last_step_at: float | None = None

    def step_done(self, now_s: float) -> None:
        """Note the moment a step ended; `now_s` is monotonic."""
        if self._last_step_at is not None:
            self._step_s = _smooth(self._step_s, max(0.0, now_s - self._last_step_at))
        self._last_step_at = now_s

    def save_done(self, stall_s: float) -> None:
        """Note how long a save stopped the training; the time until the next step is not counted as a step."""
        self._stall_s = _smooth(self._stall_s, stall_s)
        self._last_step_at = None

    def write_done(self, write_s: float) -> None:
        """Note how long the background write took."""
        self._write_s = _smooth(self._write_s or None, write_s)

    @property
    def interval_s(self) -> float | None:
        """Seconds between saves, once a save was measured."""
        if self._stall_s is None:
            return None
        wanted = choose_interval_s(self._stall_s, self._mtbf_s)
        least = max(self.config.min_s, self._write_s * self.config.write_headroom)
        stall_s, write_s = self._stall_s / self.config.cheap_share, self._write_s / self.config.cheap_write_share
        cheap_s = max(self.config.cheap_s, stall_s, write_s)
        return max(least, min(wanted, cheap_s, self.config.max_s))

    @property
    def interval_steps(self) -> int:
        """Steps between saves."""
        interval = self.interval_s
        if interval is None or not self._step_s:
            return self.config.first_steps
        return max(1, round(interval / self._step_s))


def _smooth(old: float | None, new: float, weight: float = 0.3) -> float:
    return new if old is None else old + weight * (new - old)
