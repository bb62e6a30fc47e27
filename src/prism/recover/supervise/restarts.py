"""Restart or not: by how the attempt ended, how far the run came, and what it has cost already.

What is not understood is restarted, as torchrun would. Only a fault that a restart is sure to meet again stops a run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from prism.records.verdict import Verdict

_DAY_S = 86_400.0
# Below this a verdict rests on an exit code alone: SIGKILL may be memory, an operator or a dying node.
SURE_ENOUGH = 0.6
# Faults of the code itself. Files, permissions and commands may be those of a storage that was away for a moment.
_BUGS = {"TypeError", "NameError", "ImportError", "KeyError", "SyntaxError", "ArgumentError", "IndexError"}
HANG = "Hang"
SLOW = "Slow"
CORRUPTION = "SilentCorruption"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Failures of each class that are allowed in a day without a new step; those that got further are free."""

    infrastructure: int = 50
    hang: int = 20
    unknown: int = 10
    framework: int = 5
    script: int = 2

    def of(self, category: str) -> int:
        """The budget of a class; none for one that is not known."""
        return int(getattr(self, category, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Budgets per class of failure and day, and the pauses between tries."""

    budgets: Budgets = field(default_factory=Budgets)
    startup_retries: int = 2  # in a row, for a job that ends before it has done anything
    useful_s: float = 600.0  # an attempt of a job that reports no steps has done something after this
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
    lived_s: float = 0.0
    gained: bool = True  # the attempt got further than all before it
    code: int | None = None  # the command's exit code, where it ended by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Restart after a pause, or stop, and why in a line for people."""

    restart: bool
    pause_s: float
    why: str


def judge(verdict: Verdict, failures: list[Failure], *, policy: RestartPolicy) -> Judgement:
    """Decide on the newest failure; it is the last of `failures`."""
    newest = failures[-1]
    at = f"at step {newest.step}" if newest.step >= 0 else f"after {newest.lived_s:.0f} s"
    unknown = newest.reason == "Unknown" and newest.code is not None
    what = f"exit code {newest.code}, cause unknown," if unknown else newest.reason
    name = f"{what} {at}" + (f" on {newest.host}" if newest.host else "")
    if (why := _find_reason_to_stop(verdict, failures, policy)) is not None:
        return Judgement(restart=False, pause_s=0.0, why=f"{name}: {why}")
    stuck = count_stuck(failures)
    pause_s = 0.0 if stuck <= 1 else min(policy.max_backoff_s, policy.backoff_s * 2.0 ** (stuck - 2))
    return Judgement(restart=True, pause_s=pause_s, why=name)


def _find_reason_to_stop(verdict: Verdict, failures: list[Failure], policy: RestartPolicy) -> str | None:
    newest = failures[-1]
    sure = verdict.confidence >= SURE_ENOUGH
    started = any(f.step >= 0 or f.lived_s >= policy.useful_s for f in failures)
    meets_it_again = verdict.action == "stop" or verdict.reason in _BUGS
    programs = verdict.category in ("script", "framework") and meets_it_again
    if programs and sure and (verdict.reason in _BUGS or not started):
        return f"a fault of the program, a restart would meet it again; {_advice(verdict)}"
    # The same place on the same one of several hosts speaks against the host; strikes will see to that.
    twins = [f for f in failures[:-1] if (f.reason, f.step) == (newest.reason, newest.step)]
    here = any(f.host is None or f.host != newest.host for f in twins)
    if here and newest.step >= 0 and sure and verdict.category in ("framework", "script"):
        return f"as before: it fails at the same place, a restart does not help; {_advice(verdict)}"
    stuck = count_stuck(failures)
    if not started and stuck > policy.startup_retries:
        return f"it ended before its first step, {stuck} times in a row; {_advice(verdict)}"
    if stuck > policy.max_without_progress:
        return f"{stuck} failures in a row without a new step; {_advice(verdict)}"
    day = [f for f in failures if f.category == newest.category and f.at_s >= newest.at_s - _DAY_S and not f.gained]
    budget = policy.budgets.of(newest.category)
    if len(day) > budget:
        return f"{len(day)} failures of class {newest.category} in a day without a new step, {budget} are allowed"
    return None


def count_stuck(failures: list[Failure]) -> int:
    """Failures at the end of the list, from the last one that got further than all before it."""
    for back, failure in enumerate(reversed(failures)):
        if failure.gained:
            return back + 1
    return len(failures)


def _advice(verdict: Verdict) -> str:
    if verdict.evidence:
        line = verdict.evidence[0]
        place = f"{line.file} line {line.line}" if line.file else f"line {line.line}"
        return f"{place}: {line.text.strip()[:160]}"
    return verdict.mitigation or "see the log"
