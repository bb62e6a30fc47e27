"""A clock that never goes back. It counts the seconds of a run and continues when the supervisor is restarted."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockMark:
    """Where the clock stood when the state was written."""

    run_s: float
    boot_id: str
    boot_s: float
    wall_s: float


class RunClock:
    """Counts from the machine's uptime, so a jump of the wall clock does not change it."""

    def __init__(self, mark: ClockMark | None = None) -> None:
        self._start_run_s = 0.0 if mark is None else mark.run_s + _gone_since(mark)
        self._start_boot_s = _uptime_s()

    def now_s(self) -> float:
        """Seconds of this run."""
        return self._start_run_s + (_uptime_s() - self._start_boot_s)

    def mark(self) -> ClockMark:
        """The present reading, to be saved with the state."""
        return ClockMark(run_s=self.now_s(), boot_id=_boot_id(), boot_s=_uptime_s(), wall_s=time.time())


def _gone_since(mark: ClockMark) -> float:
    if mark.boot_id == _boot_id():
        return max(0.0, _uptime_s() - mark.boot_s)
    # After a reboot, or on another machine, only the wall clock is left, and it may have been set back.
    return max(0.0, time.time() - mark.wall_s)


def _uptime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
