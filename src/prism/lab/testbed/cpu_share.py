"""Limits the share of a core for a host's processes through cgroups. Needs root."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 20_000  # short, so that a limited process is evenly slow
_FIRST = -15  # niceness
_numbers = count()


def why_no_cpu_limits() -> str | None:
    """Why processes cannot be slowed here, or None."""
    return None if _has_v1() or _has_v2() else "needs the cpu controller of cgroups, writable"


@contextmanager
def limit_cpu(pids: Iterable[int], share: float) -> Iterator[None]:
    """Give these processes together `share` of one core, until the block ends."""
    parent = _ROOT / "cpu" if _has_v1() else _ROOT
    group = parent / f"prism-{os.getpid()}-{next(_numbers)}"
    group.mkdir()
    quota = max(1000, int(share * _PERIOD_US))
    pids = list(pids)
    try:
        if _has_v1():
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
        _move(pids, group)
        yield
    finally:
        _move(pids, parent)
        group.rmdir()


def run_first(pid: int) -> None:
    """Give a process that leads its own session priority over other work of this machine, as if it had its own host."""
    try:
        os.setpriority(os.PRIO_PROCESS, pid, _FIRST)
        Path(f"/proc/{pid}/autogroup").write_text(str(_FIRST))  # With autogroups, the niceness of the session counts.
    except OSError:
        return  # It has ended, or sessions are not scheduled as such here.


def _move(pids: Iterable[int], group: Path) -> None:
    for pid in pids:
        try:
            (group / "cgroup.procs").write_text(str(pid))
        except ProcessLookupError:  # it has ended
            continue


def _has_v1() -> bool:
    return os.access(_ROOT / "cpu" / "cpu.cfs_quota_us", os.W_OK)


def _has_v2() -> bool:
    controllers = _ROOT / "cgroup.subtree_control"
    return os.access(controllers, os.W_OK) and "cpu" in controllers.read_text().split()
