"""The interface of launchers: local processes, ssh, Slurm and Kubernetes implement it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from prism.recover.progress import RunOrders

_KILLS = {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}


def no_hurry() -> bool:
    """Never ends the wait early: the default of `hurry`."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """One attempt to start."""

    command: tuple[str, ...]
    orders: RunOrders
    folder: Path  # for this attempt's logs
    hosts: tuple[str, ...]  # empty: the launcher chooses
    num_hosts: int
    excluded: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)  # added to the command's environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The status of an attempt. It is over when any host failed or all ended; `first_failed` failed first."""

    running: bool
    codes: dict[str, int | None] = field(default_factory=dict)
    first_failed: str | None = None
    lost: bool = False  # the scheduler says that `first_failed` is down
    ended: bool = False  # a scheduler says that no process is left on any host
    queued: bool = False  # waiting for hosts: its silence means nothing
    hosts: tuple[str, ...] = ()  # where it runs, if a scheduler has reported it

    @property
    def code(self) -> int | None:
        """The exit code of the attempt: that of the first failure, or 0. None: the processes are gone without one."""
        if self.first_failed is not None:
            return self.codes.get(self.first_failed)
        return 0 if self.codes else None


def first_to_fail(codes: Mapping[str, int | None], ended_at: Callable[[str], float]) -> str | None:
    """The host that failed first: one whose command was ended by a signal, else the first to end.

    A host whose rank only lost its peer can end before the launcher of the killed rank has noticed anything.
    """
    failed = [host for host, code in codes.items() if code != 0]
    return min(failed, key=lambda host: (not is_killed(codes[host]), ended_at(host)), default=None)


def is_killed(code: int | None) -> bool:
    """Whether an exit code reports a kill or a crash: not a request to end, and not an abort by a library."""
    number = None if code is None else -code if code < 0 else code - 128
    return number in _KILLS


class Launcher(Protocol):
    """Starts and ends attempts. An attempt is named by its folder, so that a restarted supervisor finds it again."""

    def start(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Start an attempt; first end the processes of an earlier start of it. Returns its hosts, as far as known."""

    def look(self, folder: Path) -> Look:
        """The attempt's status now."""

    def stop(self, folder: Path, grace_s: float, hurry: Callable[[], bool] = no_hurry) -> None:
        """End its processes; with grace, after asking its ranks. `hurry` ends the wait. Does nothing if it is over."""

    def logs(self, folder: Path) -> list[Path]:
        """Its log files."""

    def pids(self, folder: Path) -> list[int]:
        """Its processes on this machine, for stacks."""

    def cordon(self, host: str, reason: str) -> None:
        """Tell the scheduler, if it has a way, to place no other job on a host."""

    def uncordon(self, host: str) -> None:
        """Undo `cordon`."""

    def prefix(self, host: str) -> tuple[str, ...]:
        """The words before a command that run it on a host; used by the host test."""
