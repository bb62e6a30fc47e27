"""Is the loss still sane: NaN at once, a spike when it does not heal, both against the run's own recent losses."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPolicy:
    """What counts as a spike, and how often a run may be rolled back for one."""

    enabled: bool = True
    window: int = 64
    min_history: int = 20
    deviations: float = 8.0  # above the median, in robust standard deviations
    min_rise: float = 0.5  # and at least this share of the median
    patience: int = 3  # steps in a row; shorter spikes heal by themselves
    lead_batches: int = 1  # batches before the first bad loss that may have caused it
    max_rollbacks: int = 3  # that did not get the run past the place


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """Losses that must not be trained on: the first bad step, and the batches to leave out."""

    first_step: int
    first_batch: int
    last_batch: int
    loss: float


@dataclass(slots=True, kw_only=True)
class LossWatch:
    """The last losses and the bad ones at their end."""

    recent: list[float] = field(default_factory=list)
    bad_steps: list[int] = field(default_factory=list)
    bad_batches: list[int] = field(default_factory=list)
    left_alone: bool = False  # people were told in this attempt that nothing can be done

    def add(self, step: int, batch: int, loss: float, policy: LossPolicy) -> Spike | None:
        """Note a loss; a spike is returned once it is sure."""
        limit = self.limit(policy)
        if math.isfinite(loss) and (limit is None or loss <= limit):
            self.recent = [*self.recent, loss][-policy.window :]
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

    def accept(self) -> None:
        """Take the present level as usual: what is known is learnt anew."""
        self.recent, self.bad_steps, self.bad_batches = [], [], []

    def limit(self, policy: LossPolicy) -> float | None:
        """The loss above which a step is bad; None while too little is known."""
        if len(self.recent) < policy.min_history:
            return None
        median = statistics.median(self.recent)
        # 1.4826 makes the median absolute deviation a standard deviation for normal noise.
        spread = 1.4826 * statistics.median(abs(loss - median) for loss in self.recent)
        return median + max(policy.deviations * spread, policy.min_rise * abs(median))
