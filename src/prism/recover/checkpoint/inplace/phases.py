"""Measures where the time of a restart goes: moments that every member passes, with its CPU time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MOMENTS = ("noticed", "left", "called", "connected")


class Phases:
    """The moments of one member: it notices a loss, leaves the old world, is called into a new one, is connected."""

    def __init__(self) -> None:
        self._passed: dict[str, tuple[float, float]] = {}

    def pass_by(self, moment: str) -> None:
        """Note when this was, and the CPU seconds of this process."""
        self._passed[moment] = (time.time(), time.process_time())

    def report(self) -> dict[str, Any]:
        """The moments to post; they are cleared for the next restart."""
        passed, self._passed = self._passed, {}
        cpu_s = passed[MOMENTS[-1]][1] - next(iter(passed.values()))[1]
        return {"times": {name: when_s for name, (when_s, _) in passed.items()}, "cpu_s": cpu_s}


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """All members' moments of one restart."""

    lost_s: float  # when the launcher saw the loss
    latest: dict[str, float]  # seconds from there until the last member had passed each moment
    cpu_s: float

    def __str__(self) -> str:
        passed = ", ".join(f"{name} {self.latest[name]:.2f} s" for name in MOMENTS if name in self.latest)
        return f"{passed} after the loss was seen (the slowest rank's); the ranks used {self.cpu_s:.2f} s of CPU for it"


def sum_up(reports: Sequence[dict[str, Any]], lost_s: float) -> Restart:
    """The slowest member of each moment."""
    latest: dict[str, float] = {}
    for report in reports:
        for name, when_s in report["times"].items():
            latest[name] = max(latest.get(name, 0.0), when_s - lost_s)
    return Restart(lost_s=lost_s, latest=latest, cpu_s=sum(report["cpu_s"] for report in reports))
