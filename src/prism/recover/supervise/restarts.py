"""Whether to restart: depends on how the attempt ended, on progress, and on the failures so far.

A failure that is not understood leads to a restart, as under torchrun. A run stops only if a restart would certainly
fail again, or if restarts make no progress.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from prism.records.verdict import Verdict

_DAY_S = 86_400.0
# Below this confidence a verdict rests on an exit code only: a SIGKILL may come from the OOM killer or an operator.
SURE_ENOUGH = 0.6
# Bugs of the program. A missing file or permission is not among them: storage may have been away for a moment.
_BUGS = {"TypeError", "NameError", "ImportError", "KeyError", "SyntaxError", "ArgumentError", "IndexError"}
HANG = "Hang"
SLOW = "Slow"
CORRUPTION = "SilentCorruption"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Failures of each class that are allowed per day; those of attempts that reached a new step are not counted."""

    infrastructure: int = 50
    hang: int = 20
    unknown: int = 10
    framework: int = 5
    script: int = 2
    preemption: int = 10  # in a row, of attempts that reached no new step

    def of(self, category: str) -> int:
        """The budget of a class; 0 for an unknown class."""
        return int(getattr(self, category, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Budgets per class of failure and day, and the pauses between tries."""

    budgets: Budgets = field(default_factory=Budgets)
    startup_retries: int = 2  # consecutive, for a job that ends before its first step
    useful_s: float = 600.0  # an attempt without steps that lasts this long counts as progress
    max_without_progress: int = 5  # failures in a row with no new step
    backoff_s: float = 10.0
    max_backoff_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One attempt that failed."""

    at_s: float
    reason: str
    category: str
    step: int
    host: str | None = None
    lived_s: float = 0.0
    gained: bool = True  # the attempt reached a step that no failed attempt before had reached
    code: int | None = None  # the command's exit code, where it ended by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Whether to restart, after which pause, and why."""

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
        return f"a bug of the program, a restart would hit it again; {_advice(verdict)}"
    # If it fails at the same step and always on the same host, the host is the suspect; HostBook.strike handles that.
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
    """How many failures there are since the last one that reached a new step, including it."""
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
