"""Grades a test from its measurements: passed, failed, or slow compared with its peers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

PASSED, FAILED, SLOW = 0, 1, 2
FEW_HOSTS = 8  # with so few, a bad host is in many tests, so only the best tests show the usual speed
MIN_PEERS = 3
_MEMORY = 4_096


@dataclass(slots=True, kw_only=True)
class Grader:
    """Compares each test with all like tests so far; nothing is slow before there are three to compare with."""

    slow_ratio: float = 0.75  # share of the peers' speed below which a test is slow
    late_ratio: float = 5.0  # multiple of the peers' latency above which a test is slow
    _bandwidths: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    _latencies: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    def grade(
        self, alive: NDArray[np.bool_], bandwidth: NDArray[np.float64], latency_s: NDArray[np.float64], num_hosts: int
    ) -> NDArray[np.int8]:
        """Outcomes of one round in a fleet of so many hosts."""
        outcomes = np.where(alive, PASSED, FAILED).astype(np.int8)
        self._bandwidths = np.concatenate([self._bandwidths, bandwidth[alive]])[-_MEMORY:]
        self._latencies = np.concatenate([self._latencies, latency_s[alive]])[-_MEMORY:]
        if len(self._bandwidths) < MIN_PEERS:
            return outcomes
        late = latency_s > self.late_ratio * np.quantile(self._latencies, _best_share(num_hosts))
        outcomes[alive & (late | ~self.is_usual(bandwidth, num_hosts))] = SLOW
        return outcomes

    def is_usual(self, bandwidth: NDArray[np.float64], num_hosts: int) -> NDArray[np.bool_]:
        """Which of these are not slow against all tests so far."""
        if len(self._bandwidths) < MIN_PEERS:
            return np.ones(len(bandwidth), dtype=np.bool_)
        return bandwidth >= self.slow_ratio * np.quantile(self._bandwidths, 1.0 - _best_share(num_hosts))


def _best_share(num_hosts: int) -> float:
    """The share of the tests, the best ones, from which the usual speed is taken."""
    return 0.1 if num_hosts <= FEW_HOSTS else 0.5
