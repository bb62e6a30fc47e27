"""Processes of an attempt, found by the mark in their environment, whatever session or parent they have."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from prism.recover.progress import ATTEMPT_KEY

_PROC = Path("/proc")
_POLL_S = 0.1


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


def end_marked(key: str, grace_s: float) -> int:
    """End all marked processes: SIGTERM and patience, then SIGKILL until none is left. How many there were."""
    first = find_marked(key)
    if first and grace_s > 0:
        _signal(first, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while find_marked(key) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    while left := find_marked(key):
        _signal(left, signal.SIGKILL)
        time.sleep(_POLL_S)
    return len(first)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
