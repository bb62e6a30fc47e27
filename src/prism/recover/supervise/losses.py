"""Watches the loss: NaN counts at once, a spike if the loss does not recover, relative to the run's recent losses."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field

_MOST = 700.0  # close to the logarithm of the largest float


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPolicy:
    """What counts as a spike, and how often a run may be rolled back for one."""

    enabled: bool = True
    skip_batches: bool = False  # after a rollback, leave the batches of the spike out of the run's data
    window: int = 64
    kept: int = 512  # losses by step: a commit may be reported hundreds of steps after its save
    min_history: int = 20
    deviations: float = 8.0  # above the median, in robust standard deviations
    min_rise: float = 0.5  # and at least this share of the median
    patience: int = 3  # consecutive bad steps; shorter spikes recover by themselves
    lead_batches: int = 1  # batches before the first bad loss that may have caused it
    max_rollbacks: int = 3  # at one place in training


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """A loss spike: its first step, and the batches to skip."""

    first_step: int
    first_batch: int
    last_batch: int
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedLevel:
    """The usual loss at the step of a checkpoint, not at the moment when its commit was reported."""

    step: int
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoss:
    """The loss of one step."""

    step: int
    loss: float


@dataclass(slots=True, kw_only=True)
class LossWatch:
    """The usual losses by step, and the bad ones since the last of them."""

    recent: list[StepLoss] = field(default_factory=list)  # by rising step
    levels: list[SavedLevel] = field(default_factory=list)
    bad_steps: list[int] = field(default_factory=list)
    bad_batches: list[int] = field(default_factory=list)
    left_alone: bool = False  # already reported in this attempt that nothing can be done

    def add(self, step: int, batch: int, loss: float, policy: LossPolicy) -> Spike | None:
        """Note a loss; returns a spike once it is certain."""
        if self.recent and step <= self.recent[-1].step:
            self.restored(step - 1)
        limit = self.limit(policy)
        if math.isfinite(loss) and (limit is None or loss <= limit):
            self.recent = [*self.recent, StepLoss(step=step, loss=loss)][-policy.kept :]
            self.bad_steps, self.bad_batches = [], []
            return None
        self.bad_steps.append(step)
        self.bad_batches.append(batch)
        if math.isfinite(loss) and len(self.bad_steps) < policy.patience:
            return None
        return Spike(
            first_step=self.bad_steps[0],
            first_batch=max(0, self.bad_batches[0] - policy.lead_batches),
            last_batch=max(self.bad_batches),
            loss=loss,
        )

    def restored(self, step: int) -> None:
        """Forget what came after a step: training continues from there, and its loss is again that of this step."""
        self.recent = [one for one in self.recent if one.step <= step]
        self.bad_steps, self.bad_batches = [], []

    def accept(self) -> None:
        """Accept the present loss as usual, and learn the usual range again."""
        self.recent, self.bad_steps, self.bad_batches = [], [], []

    def saved(self, step: int, in_use: list[int], policy: LossPolicy) -> None:
        """Note the usual loss at the step of a checkpoint, and forget checkpoints that are no longer in use."""
        kept = [level for level in self.levels if level.step in in_use and level.step != step]
        before = [one.loss for one in self.recent if step - policy.window < one.step <= step]
        new = [SavedLevel(step=step, loss=statistics.median(before))] if before else []
        self.levels = [*kept, *new]

    def better_than(self, loss: float, saved_steps: list[int]) -> list[int]:
        """The checkpoints known to be taken at a lower loss than this one; rolling back to another gains nothing."""
        lower = {level.step for level in self.levels if level.loss < loss}
        return [step for step in saved_steps if step in lower]

    def limit(self, policy: LossPolicy) -> float | None:
        """The loss above which a step is bad; None while there are too few losses."""
        last = [one.loss for one in self.recent[-policy.window :]]
        if len(last) < policy.min_history:
            return None
        median, spread = _middle(last)
        limit = median + max(policy.deviations * spread, policy.min_rise * abs(median))
        if min(last) <= 0.0:
            return limit
        # The losses of a converged run differ by factors, so a loss that is many times another may still be usual.
        middle, spread = _middle([math.log(loss) for loss in last])
        return max(limit, math.exp(min(_MOST, middle + policy.deviations * spread)))


def _middle(values: list[float]) -> tuple[float, float]:
    """Median and robust standard deviation."""
    median = statistics.median(values)
    # 1.4826 makes the median absolute deviation a standard deviation for normal noise.
    return median, 1.4826 * statistics.median(abs(value - median) for value in values)
