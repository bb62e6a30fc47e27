"""Processes of an attempt, found by the mark in their environment, whatever session or parent they have."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prism.recover.progress import ATTEMPT_KEY, ROLE, WRITER
from prism.recover.supervise.launchers.node import find_ranks, send

_PROC = Path("/proc")
_POLL_S = 0.1
_COMMIT_S = 30.0  # for a writer whose rank is gone to commit what was staged


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process that cannot be mistaken for a later one of the same number."""

    pid: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        found = read_stat(self.pid)
        return found is not None and found[1] == self.start_ticks and found[0] != "Z"


def read_stat(pid: int) -> tuple[str, int] | None:
    """State letter and start time of a process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[19])


def find_marked(key: str) -> list[int]:
    """Live processes that carry an attempt's mark; never this one."""
    mark = f"{ATTEMPT_KEY}={key}".encode()
    found = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        stat = read_stat(int(entry.name))
        if mark in variables and stat is not None and stat[0] != "Z":
            found.append(int(entry.name))
    return sorted(found)


def end_marked(key: str, grace_s: float, hurry: Callable[[], bool] = lambda: False) -> int:
    """End all marked processes; how many there were.

    With grace the ranks alone are asked, since a data loader or writer that goes first takes the save with it; the
    others end with their ranks. Without grace writers may still commit what is staged. Then SIGKILL until none is left.
    """
    first = find_marked(key)
    if first and grace_s > 0:
        send(find_ranks(first), signal.SIGTERM)
        _wait(lambda: bool(find_marked(key)), grace_s, hurry)
    elif first:
        writers = [pid for pid in first if is_writer(pid)]
        send([pid for pid in first if pid not in writers], signal.SIGKILL)
        _wait(lambda: any(read_stat(pid) for pid in writers), _COMMIT_S if writers else 0.0, hurry)
    while left := find_marked(key):
        send(left, signal.SIGKILL)
        time.sleep(_POLL_S)
    return len(first)


def is_writer(pid: int) -> bool:
    """Whether a process says of itself that it writes checkpoints."""
    try:
        return f"{ROLE}={WRITER}".encode() in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _wait(busy: Callable[[], bool], limit_s: float, hurry: Callable[[], bool]) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and not hurry() and busy():
        time.sleep(_POLL_S)
