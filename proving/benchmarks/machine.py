"""What a benchmark ran on, and how it measures."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def describe_machine() -> str:
    """One line that names the machine: cores, architecture, Python."""
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"


def best_of(times: int, run: Callable[[], Any]) -> float:
    """The shortest of several runs, in seconds: the one least disturbed by others on the machine."""
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def peak_rss_bytes() -> int:
    """The most memory this process has held since it started."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
