"""A simulated fleet with known faults: what tests would show, for benchmarks and for tests of the search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from prism.recover.isolate.grading import Grader
from prism.recover.isolate.search import Round

FaultKind = Literal["permanent", "intermittent", "link", "slow"]
INTERMITTENT_RATE = 0.3
_SLOWDOWN = 0.6  # a slow host's share of its peers' bandwidth
_NOISE = 0.05  # of a measured bandwidth, log-normal
_FLAKES = 1e-4  # a test of good hosts fails for no reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Who is bad, and how."""

    fail_rate: NDArray[np.float64]
    speed: NDArray[np.float64]
    links: frozenset[tuple[int, int]]


def draw_faults(kind: FaultKind, num_hosts: int, num_faults: int, random: np.random.Generator) -> Faults:
    """Faults of one kind; a link fault hits a link of the job's ring, which is why the job failed."""
    rate, speed = np.zeros(num_hosts), np.ones(num_hosts)
    links: frozenset[tuple[int, int]] = frozenset()
    chosen = random.choice(num_hosts, num_faults, replace=False)
    if kind == "permanent":
        rate[chosen] = 1.0
    elif kind == "intermittent":
        rate[chosen] = INTERMITTENT_RATE
    elif kind == "slow":
        speed[chosen] = _SLOWDOWN
    else:
        ends = [(int(a), int((a + 1) % num_hosts)) for a in chosen]
        links = frozenset((min(pair), max(pair)) for pair in ends)
    return Faults(fail_rate=rate, speed=speed, links=links)


class Fleet:
    """Runs rounds of tests against the faults."""

    def __init__(self, faults: Faults, random: np.random.Generator) -> None:
        self.faults = faults
        self._random = random
        self._grader = Grader()

    def run(self, tests: Round) -> NDArray[np.int8]:
        """Outcomes of one round."""
        present = tests >= 0
        survive = np.where(present, 1.0 - self.faults.fail_rate[tests], 1.0).prod(axis=1) * (1.0 - _FLAKES)
        alive = self._random.random(len(tests)) < survive
        alive &= ~self._crosses_bad_link(tests)
        speed = np.where(present, self.faults.speed[tests], np.inf).min(axis=1)
        bandwidth = speed * np.exp(self._random.normal(0.0, _NOISE, len(tests)))
        latency = np.exp(self._random.normal(0.0, _NOISE, len(tests)))
        return self._grader.grade(alive, bandwidth, latency, len(self.faults.speed))

    def _crosses_bad_link(self, tests: Round) -> NDArray[np.bool_]:
        """An all-gather runs along a ring of its members, in the order given."""
        hit = np.zeros(len(tests), dtype=np.bool_)
        for first, second in self.faults.links:
            has_both = (tests == first).any(axis=1) & (tests == second).any(axis=1)
            for row in np.flatnonzero(has_both):
                members = [h for h in tests[row].tolist() if h >= 0]
                gap = abs(members.index(first) - members.index(second))
                hit[row] |= gap in (1, len(members) - 1)
        return hit
