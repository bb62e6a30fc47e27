"""How fast the run steps, and from that: when silence means a hang, and when it has become slow."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class PacePolicy:
    """Limits against the run's own step time."""

    startup_s: float = 1_800.0  # from launch to the first step
    hang_steps: float = 10.0  # silence of so many steps is a hang,
    min_silence_s: float = 120.0  # but never before this
    slow_factor: float = 2.0  # against the run's own baseline; 0 turns it off
    slow_steps: int = 30  # for so many steps in a row
    baseline_steps: int = 30


@dataclass(slots=True, kw_only=True)
class Pace:
    """Step times of the present attempt and the baseline of the run."""

    last_seen_s: float = 0.0  # when the run last gave a sign of life
    stepped: bool = False  # in this attempt
    recent: list[float] = field(default_factory=list)
    baseline_s: float | None = None
    last_trainer_s: float | None = None

    def restart(self, now_s: float) -> None:
        """A new attempt begins; the baseline stays."""
        self.last_seen_s, self.stepped, self.recent, self.last_trainer_s = now_s, False, [], None

    def step_done(self, now_s: float, trainer_s: float | None, policy: PacePolicy) -> None:
        """Note a step; its length is measured on the trainer's clock where it tells it."""
        end_s = now_s if trainer_s is None else trainer_s
        if self.last_trainer_s is not None and end_s >= self.last_trainer_s:
            self.recent = [*self.recent, end_s - self.last_trainer_s][-max(policy.slow_steps, policy.baseline_steps) :]
        self.last_trainer_s = end_s
        self.last_seen_s, self.stepped = now_s, True
        if self.baseline_s is None and len(self.recent) >= policy.baseline_steps:
            self.baseline_s = statistics.median(self.recent)

    def silence_limit_s(self, policy: PacePolicy) -> float:
        """How long nothing may be heard."""
        if not self.stepped:
            return policy.startup_s
        usual = statistics.median(self.recent) if self.recent else self.baseline_s
        return max(policy.min_silence_s, policy.hang_steps * (usual or 0.0))

    def is_slow(self, policy: PacePolicy) -> bool:
        """Whether the last steps were all well above the baseline: one slow step is no reason to stop."""
        if not policy.slow_factor or self.baseline_s is None or len(self.recent) < policy.slow_steps:
            return False
        return min(self.recent[-policy.slow_steps :]) > policy.slow_factor * self.baseline_s

    def accept(self) -> None:
        """Take the present speed as the new baseline."""
        self.baseline_s = statistics.median(self.recent) if self.recent else None
