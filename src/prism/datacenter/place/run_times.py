"""How long a job will run, from earlier jobs of its user, cluster and size: quantiles, not means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from prism.datacenter.place.clusters import Job

_LONGEST = math.log(90 * 86_400.0)
_Beliefs = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """The time within which a job should end, with the estimate of every level of similarity at that moment."""

    seconds: float
    beliefs: _Beliefs


@dataclass(slots=True)
class RunTimes:
    """Learns a quantile of run times when jobs end, or when they exceed their expected run time.

    A job that runs longer than expected is counted at that moment, not at its end: if only ended jobs counted, long
    jobs would be missing and the quantile would be too low. Each job moves the quantile in log seconds, up by
    `share` of a step if it exceeded it and else down by the rest, so the share of jobs within it stays at `share`.
    """

    share: float = 0.9
    step: float = (
        0.015  # in log seconds; 0.01 to 0.03 give a coverage of 88 to 89 % on Philly (proving/benchmarks/place.py)
    )
    least: int = 10  # jobs that a user must have ended before the user's own quantile is used
    unknown_s: float = 86_400.0  # assumed until a job has ended
    _level: dict[tuple[str, ...], float] = field(default_factory=dict)
    _count: dict[tuple[str, ...], int] = field(default_factory=dict)

    def expect(self, job: Job) -> Expected:
        """The time within which nine of ten such jobs end."""
        beliefs = tuple(self._level.get(key) for key in _keys(job))
        for key, level in zip(_keys(job), beliefs, strict=True):
            if level is not None and self._count[key] >= self.least:
                return Expected(math.exp(level), beliefs)
        return Expected(self.unknown_s, beliefs)

    def learn(self, job: Job, expected: Expected, seconds: float) -> None:
        """A job has ended after so many seconds, or has run for more than it was expected to."""
        seen = math.log(max(seconds, 1.0))
        for key, believed in zip(_keys(job), expected.beliefs, strict=True):
            count = self._count[key] = self._count.get(key, 0) + 1
            level = self._level.get(key)
            if level is None:
                self._level[key] = seen
                continue
            above = seen > (level if believed is None else believed)
            move = max(self.step, 2.0 / count) * (self.share if above else self.share - 1.0)
            self._level[key] = min(max(level + move, 0.0), _LONGEST)


def learn_run_times(jobs: Sequence[Job], seconds: Sequence[float]) -> RunTimes:
    """Run times from jobs that have ended, in the order of their submission."""
    times = RunTimes()
    for job, length in zip(jobs, seconds, strict=True):
        times.learn(job, times.expect(job), length)
    return times


def _keys(job: Job) -> tuple[tuple[str, ...], ...]:
    """From the most to the least similar to this job."""
    size = str(job.gpus.bit_length())
    return (("user", job.home, job.user, size), ("size", size), ("all",))
