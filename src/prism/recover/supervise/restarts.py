"""Whether to restart: depends on progress, and on the failures so far.

Every failure leads to a restart, as under torchrun. A run stops if the same error of the program came back at the same
place after restarts, or if many restarts in a row made no progress.
"""

from __future__ import annotations

from dataclasses import dataclass

from prism.records.causes import UNKNOWN
from prism.records.verdict import Verdict

# Below this confidence a verdict rests on an exit code only: a SIGKILL may come from the OOM killer or an operator.
SURE_ENOUGH = 0.6
_SIGNALS = 128  # exit codes from here on are signals
# Bugs of the program. A missing file or permission is not among them: storage may have been away for a moment.
_BUGS = {"TypeError", "NameError", "ImportError", "KeyError", "SyntaxError", "ArgumentError", "IndexError"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How often a command is restarted, and the pauses between tries."""

    max_restarts: int | None = None  # in all; None: without a limit while there is progress
    max_without_progress: int = 20  # failures in a row
    same_error: int = 3  # so often in a row at the same place, an error of the program is there to stay
    same_code: int = 6  # the same, of an exit code that nothing explains
    useful_s: float = 600.0  # an attempt without steps that lasts this long counts as progress
    backoff_s: float = 1.0  # before the second try without progress; doubled before every further one
    max_backoff_s: float = 600.0

    def pause_s(self, stuck: int) -> float:
        """The pause after so many failures in a row without progress."""
        return 0.0 if stuck <= 1 else min(self.max_backoff_s, self.backoff_s * 2.0 ** min(stuck - 2, 60))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One attempt that failed."""

    at_s: float
    reason: str
    category: str
    step: int
    host: str | None = None
    lived_s: float = 0.0
    gained: bool = True  # there was progress: a step that is new, a checkpoint, or a long life
    code: int | None = None  # the command's exit code, where it ended by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Whether to restart, after which pause, and why."""

    restart: bool
    pause_s: float
    why: str
    bug: str = ""  # why a restart would be of no use, if the program looks wrong


def judge(verdict: Verdict, failures: list[Failure], *, policy: RestartPolicy) -> Judgement:
    """Decide on the newest failure; it is the last of `failures`."""
    newest = failures[-1]
    at = f"at step {newest.step}" if newest.step >= 0 else f"after {newest.lived_s:.0f} s"
    unknown = newest.reason == UNKNOWN and newest.code is not None
    what = f"exit code {newest.code}, cause unknown," if unknown else newest.reason
    name = f"{what} {at}" + (f" on {newest.host}" if newest.host else "")
    if (why := _find_reason_to_stop(verdict, failures, policy)) is not None:
        return Judgement(restart=False, pause_s=0.0, why=f"{name}: {why}")
    bug = f"{name}: a bug of the program, a restart would hit it again; {_advice(verdict)}" if _is_bug(verdict) else ""
    return Judgement(restart=True, pause_s=policy.pause_s(count_stuck(failures)), why=name, bug=bug)


def _is_bug(verdict: Verdict) -> bool:
    return verdict.reason in _BUGS and verdict.confidence >= SURE_ENOUGH


def _find_reason_to_stop(verdict: Verdict, failures: list[Failure], policy: RestartPolicy) -> str | None:
    if policy.max_restarts is not None and len(failures) > policy.max_restarts:
        return f"{len(failures)} failures, {policy.max_restarts} restarts are allowed; {_advice(verdict)}"
    known = verdict.category in ("framework", "script") and verdict.confidence >= SURE_ENOUGH
    by_code = failures[-1].reason == UNKNOWN and 0 < (failures[-1].code or 0) < _SIGNALS
    alike = _count_alike(failures)
    if (known and alike >= policy.same_error) or (by_code and alike >= policy.same_code):
        return f"{alike} times in a row at the same place, a restart does not help; {_advice(verdict)}"
    stuck = count_stuck(failures)
    if stuck > policy.max_without_progress:
        return f"{stuck} failures in a row without progress; {_advice(verdict)}"
    return None


def _count_alike(failures: list[Failure]) -> int:
    """How many failures at the end have one reason and one place, on hosts that are not always the same one."""
    newest, alike = failures[-1], 0
    for failure in reversed(failures):
        alike_here = (failure.reason, failure.step, failure.code) == (newest.reason, newest.step, newest.code)
        if not alike_here or (failure.step < 0 and failure.gained):
            break
        alike += 1
    hosts = {failure.host for failure in failures[len(failures) - alike :]}
    # Always on the same host of several: the host is the suspect, which HostBook.strike handles.
    return 0 if alike and len(hosts) == 1 and newest.host is not None else alike


def count_stuck(failures: list[Failure]) -> int:
    """How many failures there are since the last one with progress, including it."""
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
