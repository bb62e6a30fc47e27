"""How long a job will run, from what jobs of its user, cluster and size ran before: quantiles, not means."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from prism.place.clusters import Job


@dataclass(slots=True)
class _Quantile:
    """A running quantile that follows its stream: each value moves it up by its share or down by the rest."""

    share: float
    value: float = 0.0
    scale: float = 0.0
    count: int = 0

    def add(self, seen: float) -> None:
        self.count += 1
        if self.count == 1:
            self.value, self.scale = seen, max(seen, 1.0)
            return
        self.scale += 0.05 * (abs(seen - self.value) - self.scale)
        step = self.scale * max(0.02, 1.0 / self.count)
        self.value = max(0.0, self.value + step * (self.share if seen > self.value else self.share - 1.0))


@dataclass(slots=True)
class RunTimes:
    """Learns run times as jobs end."""

    share: float = 0.9
    least: int = 10  # jobs that a user must have ended before the user's own quantile is used
    unknown_s: float = 86_400.0  # assumed where nothing has ended yet
    _known: dict[tuple[str, ...], _Quantile] = field(default_factory=lambda: defaultdict(lambda: _Quantile(0.9)))

    def expect_s(self, job: Job) -> float:
        """The time within which such jobs end, nine times in ten."""
        for key in _keys(job):
            found = self._known.get(key)
            if found is not None and found.count >= self.least:
                return found.value
        return self.unknown_s

    def learn(self, job: Job, seconds: float) -> None:
        """A job has ended."""
        for key in _keys(job):
            self._known[key].add(seconds)


def _keys(job: Job) -> tuple[tuple[str, ...], ...]:
    """From the most to the least like this job."""
    size = str(job.gpus.bit_length())
    return (("user", job.home, job.user, size), ("home", job.home, size), ("size", size))
