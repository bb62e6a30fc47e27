"""Where attempts run: the interface that local processes and Slurm share, small enough for Kubernetes to follow."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from prism.recover.progress import RunOrders

_KILLS = {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}


def no_hurry() -> bool:
    """No hurry."""
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
    variables: Mapping[str, str] = field(default_factory=dict)  # further ones for the command's environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How an attempt is doing. Over when any host failed or all ended; `first_failed` is the host that did first."""

    running: bool
    codes: dict[str, int | None] = field(default_factory=dict)
    first_failed: str | None = None
    lost: bool = False  # the scheduler says that `first_failed` is down
    ended: bool = False  # a scheduler says that nothing of it is left on any host
    queued: bool = False  # waiting for hosts: its silence means nothing
    hosts: tuple[str, ...] = ()  # where it runs, once a scheduler has said so

    @property
    def code(self) -> int | None:
        """The exit code of the whole: the first failure's, or 0. None: gone without a word."""
        if self.first_failed is not None:
            return self.codes.get(self.first_failed)
        return 0 if self.codes else None


def first_to_fail(codes: Mapping[str, int | None], ended_at: Callable[[str], float]) -> str | None:
    """The host where an attempt's end began: one whose command was ended by a signal, else the first to end.

    A host whose rank only lost its peer can end before the launcher of the killed rank has noticed anything.
    """
    failed = [host for host, code in codes.items() if code != 0]
    return min(failed, key=lambda host: (not is_killed(codes[host]), ended_at(host)), default=None)


def is_killed(code: int | None) -> bool:
    """Whether an exit code tells of a signal that nobody sends to ask for an end, nor a library to itself."""
    number = None if code is None else -code if code < 0 else code - 128
    return number in _KILLS


class Launcher(Protocol):
    """Starts and ends attempts. An attempt is named by its folder, so that a restarted supervisor finds it again."""

    def start(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Start an attempt, ending what is left of an earlier try at the same one; its hosts, as far as known."""

    def look(self, folder: Path) -> Look:
        """See how it is doing."""

    def stop(self, folder: Path, grace_s: float, hurry: Callable[[], bool] = no_hurry) -> None:
        """End every process of it; with grace the ranks are asked first. `hurry` ends the wait. Over: nothing to do."""

    def logs(self, folder: Path) -> list[Path]:
        """Its log files."""

    def pids(self, folder: Path) -> list[int]:
        """Its processes on this machine, for stacks."""

    def cordon(self, host: str, reason: str) -> None:
        """Keep others off a host too, where the scheduler can."""

    def uncordon(self, host: str) -> None:
        """Undo `cordon`."""

    def prefix(self, host: str) -> tuple[str, ...]:
        """What to put before a command to run it on a host; for the host test."""
