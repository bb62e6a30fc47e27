"""How long steps take; from that, how long a silence means a hang, and whether the run has become slow."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class PacePolicy:
    """Limits relative to the run's own step time. A limit of 0 switches its check off."""

    startup_s: float = 1_800.0  # from launch to the first step; only where the trainer is known to report steps
    hang_steps: float = 10.0  # a silence of so many steps is a hang,
    min_silence_s: float = 300.0  # if it lasts at least this long
    look_s: float = 10.0  # the least silence after which stacks are looked at; 0: never
    log_silence_s: float = 1_800.0  # the least silence of a job whose steps are read from its log
    slow_factor: float = 2.0  # relative to the run's own baseline
    slow_steps: int = 30  # consecutive slow steps before anything is done
    baseline_steps: int = 30


@dataclass(slots=True, kw_only=True)
class Pace:
    """Step times of the present attempt and the baseline of the run."""

    last_seen_s: float = 0.0  # when the run last showed activity
    stepped: bool = False  # in this attempt
    reports: bool = False  # the trainer reports its steps; otherwise they are read from its log
    ever_stepped: bool = False
    paused: bool = False
    waits_for: str = ""  # what an unplanned pause waits for; reported if it lasts
    started_s: float = 0.0
    recent: list[float] = field(default_factory=list)
    longest_s: float = 0.0  # between two steps of one attempt
    longest_silence_s: float = 0.0  # between two reads that found something new in the log, or from launch to the first
    looked_after_s: float = 0.0  # the silence after which stacks were looked at; 0: not since the last activity
    told_of: str = ""  # what was told of the present silence
    in_line: bool = False  # the log ends within a line: its writer buffers blocks, so silence says nothing of steps
    longest_startup_s: float = 0.0
    baseline_s: float | None = None
    last_trainer_s: float | None = None

    def restart(self, now_s: float) -> None:
        """Begin a new attempt. What was learned about the run is kept."""
        self.last_seen_s, self.started_s, self.stepped, self.paused = now_s, now_s, False, False
        self.recent, self.last_trainer_s, self.in_line = [], None, False
        self.looked_after_s, self.told_of = 0.0, ""

    def note_output(self, now_s: float, *, in_line: bool = False) -> None:
        """Note that the log has grown. Buffered output arrives in blocks, which may hold hundreds of steps."""
        self.longest_silence_s = max(self.longest_silence_s, now_s - self.last_seen_s)
        self.last_seen_s, self.in_line = now_s, in_line
        self.looked_after_s, self.told_of = 0.0, ""

    def step_done(self, now_s: float, trainer_s: float | None, policy: PacePolicy) -> None:
        """Note a step. Its duration is measured on the trainer's clock if the trainer reports it."""
        end_s = now_s if trainer_s is None else trainer_s
        if self.last_trainer_s is not None and end_s >= self.last_trainer_s:
            gap_s = end_s - self.last_trainer_s
            if self.recent:  # the first step of an attempt compiles, warms up, fills caches
                self.longest_s = max(self.longest_s, gap_s)
            self.recent = [*self.recent, gap_s][-max(policy.slow_steps, policy.baseline_steps) :]
        if not self.stepped:
            self.longest_startup_s = max(self.longest_startup_s, now_s - self.started_s)
        self.last_trainer_s = end_s
        self.note_output(now_s)
        self.stepped, self.ever_stepped, self.paused = True, True, False
        if self.baseline_s is None and len(self.recent) >= policy.baseline_steps:
            self.baseline_s = statistics.median(self.recent)

    def silence_limit_s(self, policy: PacePolicy) -> float | None:
        """The longest silence that is not a hang; None if no silence is a hang."""
        if self.paused:
            return None
        if not self.stepped:
            known = self.reports or self.ever_stepped
            return max(policy.startup_s, 3.0 * self.longest_startup_s) if known and policy.startup_s else None
        if not policy.hang_steps:
            return None
        usual = statistics.median(self.recent) if self.recent else self.baseline_s or 0.0
        if self.reports:
            return max(policy.min_silence_s, policy.hang_steps * usual, 2.0 * self.longest_s)
        if self.in_line:
            return None
        return max(policy.log_silence_s, policy.hang_steps * max(usual, self.longest_silence_s))

    def is_look_due(self, silent_s: float, limit_s: float | None, policy: PacePolicy) -> bool:
        """Whether to look at the stacks: after an unusual silence, at each doubling of it, and at the limit."""
        if not policy.look_s or self.paused:
            return False
        if self.looked_after_s:
            passed = limit_s is not None and self.looked_after_s <= limit_s < silent_s
            return passed or silent_s > 2.0 * self.looked_after_s
        if not self.stepped:
            return silent_s > policy.min_silence_s
        usual = statistics.median(self.recent) if self.recent else self.baseline_s or 0.0
        longest = self.longest_s if self.reports else self.longest_silence_s
        return silent_s > max(policy.look_s, policy.hang_steps * usual, 2.0 * longest)

    def is_slow(self, policy: PacePolicy) -> bool:
        """Whether all of the last steps took much longer than the baseline."""
        if not policy.slow_factor or self.baseline_s is None or len(self.recent) < policy.slow_steps:
            return False
        return min(self.recent[-policy.slow_steps :]) > policy.slow_factor * self.baseline_s

    def accept(self, policy: PacePolicy) -> None:
        """Take the duration of the steps that were found slow as the new baseline."""
        self.baseline_s = statistics.median(self.recent[-policy.slow_steps :]) if self.recent else None
