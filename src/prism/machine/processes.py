"""Processes of this machine, as the kernel describes them.

What is sent to other hosts as a file of its own (`supervise/launchers/node.py`, `evidence/fusion/collector.py`) reads
`/proc` itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def read_stat(pid: int) -> list[str]:
    """What the kernel says of a process, from its state and its parent on; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def mark_process(pid: int) -> str | None:
    """`PID-START`, which no later process of the same number has; None where it is gone, or a zombie."""
    fields = read_stat(pid)
    return f"{pid}-{fields[19]}" if fields and fields[0] != "Z" else None


def is_running(mark: str) -> bool:
    """Whether the process of a mark still runs."""
    pid = mark.partition("-")[0]
    return pid.isdecimal() and mark == mark_process(int(pid))


def list_pids() -> Iterator[int]:
    """The processes that can be seen."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - pathlib is slower here


def read_cpu_s(pid: int) -> float:
    """Processor time of a process; 0 where it has ended."""
    fields = read_stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0
