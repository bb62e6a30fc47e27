"""Processes of this machine, as the kernel describes them."""

from __future__ import annotations

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
