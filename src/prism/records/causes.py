"""How a run ended and why: one vocabulary for every part that writes or reads it.

An outcome is decided first (from exit codes and schedulers), a cause afterwards. Both are open sets for a reader: a
value that a newer version wrote is kept and shown as unknown.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Outcome = Literal["completed", "failed", "cancelled", "preempted", "timed_out", "lost_node", "unknown"]
OUTCOMES: tuple[str, ...] = get_args(Outcome)
Category = Literal["infrastructure", "framework", "script", "unknown"]
CauseKind = Literal[
    "none", "unknown", "signal", "exit_code", "exception", "resource", "hardware", "network", "storage", "host_lost",
    "time_limit", "preempted", "cancelled", "corruption", "hang", "slow", "loss_spike", "port_in_use", "worker_died",
    "native_crash",
]  # fmt: skip
CAUSE_KINDS: tuple[str, ...] = get_args(CauseKind)
NO_FAILURE, UNKNOWN = "none", "Unknown"
PREEMPTED, TIME_LIMIT, CANCELLED = "Preempted", "TimeLimit", "Cancelled"
HANG, SLOW, CORRUPTION, LOSS_SPIKE = "Hang", "Slow", "SilentCorruption", "LossSpike"
PORT_IN_USE, WORKER_DIED, NATIVE_CRASH = "PortInUse", "WorkerDied", "NativeCrash"

# The 29 failure reasons of the Acme study (NSDI 2024) by the class that it gives them, `Unknown`, and `none`.
_REASONS: Mapping[Category, str] = {
    "infrastructure": (
        "NVLinkError CUDAError NodeFailure ECCError NetworkError ConnectionError S3StorageError NCCLTimeoutError "
        "NCCLRemoteError"
    ),
    "framework": (
        "DataloaderKilled AttributeError OutOfMemoryError RuntimeError AssertionError ValueError ZeroDivisionError "
        "ModelLoadingError DatasetLoadingError"
    ),
    "script": (
        "FileNotFoundError OSError TypeError NameError PermissionError ImportError KeyError SyntaxError "
        "ArgumentError CalledProcessError IndexError"
    ),
    "unknown": f"{UNKNOWN} {NO_FAILURE}",
}
CATEGORY_OF_REASON: Mapping[str, Category] = {
    reason: category for category, reasons in _REASONS.items() for reason in reasons.split()
}
FAILURE_REASONS: tuple[str, ...] = tuple(reason for reason in CATEGORY_OF_REASON if reason != NO_FAILURE)
_KIND_OF_REASON: Mapping[str, CauseKind] = {
    UNKNOWN: "unknown", NO_FAILURE: "none", "NVLinkError": "hardware", "CUDAError": "hardware", "ECCError": "hardware",
    "NodeFailure": "host_lost", "NetworkError": "network", "ConnectionError": "network", "NCCLRemoteError": "network",
    "NCCLTimeoutError": "hang", "S3StorageError": "storage", "DataloaderKilled": "resource",
    "OutOfMemoryError": "resource",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a run ended. `name` tells one cause from another; `text` is what a person reads."""

    name: str
    kind: str = "unknown"  # a CauseKind, or what a newer version wrote
    outcome: str = "failed"  # the Outcome that this cause alone speaks for
    category: str = "unknown"
    text: str = ""

    def to_json(self) -> dict[str, str]:
        """What other commands read of it."""
        return {"name": self.name, "kind": self.kind, "text": self.text or self.name}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Cause:
        """Read what `to_json` wrote, this version's or a newer one's."""
        known = cause_of(str(document.get("name", UNKNOWN)))
        if known.kind != "unknown" or known.name == UNKNOWN:
            return known
        return Cause(name=known.name, kind=str(document.get("kind", "unknown")), outcome="unknown", text=known.name)


_BEYOND_REASONS = (
    Cause(name=PREEMPTED, kind="preempted", outcome="preempted", category="infrastructure",
          text="the scheduler took the resources back"),
    Cause(name=TIME_LIMIT, kind="time_limit", outcome="timed_out", text="the job reached its time limit"),
    Cause(name=CANCELLED, kind="cancelled", outcome="cancelled", text="somebody cancelled the job"),
    Cause(name="Stopped", kind="cancelled", outcome="cancelled", text="stopped on request"),
    Cause(name=HANG, kind="hang", category="hang", text="no rank made progress any more"),
    Cause(name=SLOW, kind="slow", text="steps took too long"),
    Cause(name=CORRUPTION, kind="corruption", category="infrastructure", text="a device computed wrong values"),
    Cause(name=LOSS_SPIKE, kind="loss_spike", text="the loss diverged"),
    Cause(name=PORT_IN_USE, kind="port_in_use", text="a port was in use by another process"),
    Cause(name=NATIVE_CRASH, kind="native_crash", text="native code crashed: a library, or the memory of its host"),
    Cause(name=WORKER_DIED, kind="worker_died", text="a worker process died, and nothing says of what"),
)  # fmt: skip
_TEXT_OF_SIGNAL = {
    "SIGKILL": "killed by SIGKILL: the kernel's memory killer or a person",
    "SIGTERM": "asked to end by SIGTERM: a scheduler, a launcher or a person",
    "SIGINT": "interrupted by SIGINT: Ctrl-C or a launcher",
    "SIGHUP": "ended by SIGHUP: its terminal or its session was closed",
    "SIGXCPU": "ended by SIGXCPU: it used up its limit of CPU time",
    "SIGXFSZ": "ended by SIGXFSZ: a file grew beyond its limit",
}
_ASKS_TO_END = frozenset({"SIGTERM", "SIGINT", "SIGHUP"})
CRASH_SIGNALS = frozenset({"SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"})
_SIGNAL_NAME = re.compile(r"SIG[A-Z0-9]{2,10}|signal \d{1,3}")
_EXIT_NAME = re.compile(r"exit code -?\d{1,10}")
_CAUSES: Mapping[str, Cause] = {
    **{
        reason: Cause(
            name=reason,
            kind=_KIND_OF_REASON.get(reason, "exception"),
            outcome={UNKNOWN: "unknown", NO_FAILURE: "completed", "NodeFailure": "lost_node"}.get(reason, "failed"),
            category=category,
        )
        for reason, category in CATEGORY_OF_REASON.items()
    },
    **{cause.name: cause for cause in _BEYOND_REASONS},
}


def cause_of(name: str) -> Cause:
    """The cause of that name; one that this version does not know keeps its name and is of unknown kind."""
    if name in _CAUSES:
        return _CAUSES[name]
    if _SIGNAL_NAME.fullmatch(name):
        crashed = f"crashed by {name}: native code failed" if name in CRASH_SIGNALS else f"ended by {name}"
        outcome = "cancelled" if name in _ASKS_TO_END else "failed"
        return Cause(name=name, kind="signal", outcome=outcome, text=_TEXT_OF_SIGNAL.get(name, crashed))
    if _EXIT_NAME.fullmatch(name):
        return Cause(name=name, kind="exit_code", text=f"ended with {name}")
    return Cause(name=name, outcome="unknown", text=f"{name} (unknown to this version)")


def signal_name(number: int) -> str:
    """The name of a signal: SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_in_code(code: int | None) -> int | None:
    """The signal that an exit code stands for, as a launcher (-9) or a shell (137) writes it."""
    if code is None:
        return None
    if code < 0:
        return -code
    return code - 128 if 128 < code <= 128 + 64 else None


def cause_of_code(code: int) -> Cause:
    """What an exit code alone says."""
    number = signal_in_code(code)
    if number is not None:
        return cause_of(signal_name(number))
    return cause_of(NO_FAILURE if code == 0 else f"exit code {code}")


_OF_STATE: Mapping[str, Outcome] = {
    "completed": "completed", "complete": "completed", "succeeded": "completed", "done": "completed",
    "failed": "failed", "error": "failed", "out_of_memory": "failed", "oomkilled": "failed", "boot_fail": "failed",
    "backofflimitexceeded": "failed", "containercannotrun": "failed",
    "timeout": "timed_out", "deadline": "timed_out", "deadlineexceeded": "timed_out",
    "cancelled": "cancelled", "canceled": "cancelled", "stopped": "cancelled", "revoked": "cancelled",
    "preempted": "preempted", "preempting": "preempted", "evicted": "preempted", "requeued": "preempted",
    "node_fail": "lost_node", "nodelost": "lost_node", "nodeshutdown": "lost_node",
}  # fmt: skip


def outcome_of_state(state: str) -> Outcome:
    """What a job's state means, as Slurm, Kubernetes or Ray write it: `CANCELLED by 1000` is cancelled."""
    words = state.replace("+", " ").split()
    return _OF_STATE.get(words[0].lower(), "unknown") if words else "unknown"
