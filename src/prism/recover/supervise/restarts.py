"""Restart or not: by what the logs say, how far the run came, and what it has cost already."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

from prism.records.verdict import Verdict

_DAY_S = 86_400.0
# Below this a verdict rests on an exit code alone: SIGKILL may be memory, an operator or a dying node.
_SURE_ENOUGH = 0.6
HANG = "Hang"
SLOW = "Slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Failures of each class that are allowed in a day."""

    infrastructure: int = 50
    hang: int = 20
    unknown: int = 10
    framework: int = 5
    script: int = 2  # where the verdict was not sure; else it stops at once

    def of(self, category: str) -> int:
        """The budget of a class; none for one that is not known."""
        return int(getattr(self, category, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Budgets per class of failure and day, and the pauses between tries."""

    budgets: Budgets = field(default_factory=Budgets)
    startup_retries: int = 2  # for a job that never stepped, and only where the machines are to blame
    max_without_progress: int = 5  # failures in a row with no new step
    backoff_s: float = 10.0
    max_backoff_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One end of an attempt that was not wanted."""

    at_s: float
    reason: str
    category: str
    step: int
    host: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Restart after a pause, or stop, and why in a line for people."""

    restart: bool
    pause_s: float
    why: str


def judge(verdict: Verdict, failures: list[Failure], *, ever_stepped: bool, policy: RestartPolicy) -> Judgement:
    """Decide on the newest failure; it is the last of `failures`."""
    newest = failures[-1]
    name = f"{newest.reason} at step {newest.step}" + (f" on {newest.host}" if newest.host else "")
    blames_program = verdict.category == "script" or (verdict.category == "framework" and verdict.action == "stop")
    if blames_program and verdict.confidence >= _SURE_ENOUGH:
        return _stop(f"{name}: a fault of the program, a restart would meet it again; {_advice(verdict)}")
    if not ever_stepped:
        infrastructure = verdict.category == "infrastructure"
        if not infrastructure or len(failures) > policy.startup_retries:
            tries = f" after {len(failures)} tries" if len(failures) > 1 else ""
            return _stop(f"the job ended before its first step{tries} ({verdict.reason}); {_advice(verdict)}")
    twins = [f for f in failures[:-1] if (f.reason, f.step) == (newest.reason, newest.step)]
    # The same place on the same one of several hosts speaks against the host; strikes will see to that.
    if verdict.category == "framework" and any(f.host is None or f.host != newest.host for f in twins):
        return _stop(f"{name}, as before: it fails at the same place, a restart does not help; {_advice(verdict)}")
    recent = [f for f in failures if f.category == newest.category and f.at_s >= newest.at_s - _DAY_S]
    budget = policy.budgets.of(newest.category)
    if len(recent) > budget:
        return _stop(f"{name}: {len(recent)} failures of class {newest.category} in a day, {budget} are allowed")
    stuck = count_stuck(failures)
    if stuck > policy.max_without_progress:
        return _stop(f"{name}: {stuck} failures in a row without a new step")
    pause_s = 0.0 if stuck <= 1 else min(policy.max_backoff_s, policy.backoff_s * 2.0 ** (stuck - 2))
    return Judgement(restart=True, pause_s=pause_s, why=name)


def count_stuck(failures: list[Failure]) -> int:
    """Failures at the end of the list, from the last one that got further than all before it."""
    steps = [failure.step for failure in failures]
    best_so_far = list(accumulate(steps, max))
    furthest = [i for i, step in enumerate(steps) if i == 0 or step > best_so_far[i - 1]]
    return len(steps) - furthest[-1] if furthest else 0


def _stop(why: str) -> Judgement:
    return Judgement(restart=False, pause_s=0.0, why=why)


def _advice(verdict: Verdict) -> str:
    if verdict.evidence:
        line = verdict.evidence[0]
        place = f"{line.file} line {line.line}" if line.file else f"line {line.line}"
        return f"{place}: {line.text.strip()[:160]}"
    return verdict.mitigation or "see the log"
