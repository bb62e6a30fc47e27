"""How likely each host is bad, given all tests so far.

A test of good hosts fails with a small chance (a flake, or a link between them). Every bad member makes it fail with
chance `fail_rate`, independently. A failure is therefore strong evidence against a host whose partners look good,
and none against one that stood beside a host known to be bad. Solved by a few rounds of mean field: each host's odds
are computed with the others' present odds. Passes weigh the same whoever took part, so they are only counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SWEEPS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureModel:
    """Probabilities before the first test."""

    prior_bad: float = 0.01
    priors: tuple[float, ...] = ()  # per host, if its risk is known
    fail_rate: float = 0.3  # of a bad host, per test; the least that an intermittent fault must show
    flake_rate: float = 0.001  # of good hosts, and of links


def find_beliefs(
    num_passes: NDArray[np.int64], failed: list[tuple[int, ...]], model: FailureModel
) -> NDArray[np.float64]:
    """Probability of being bad, per host; the same failing set counts once, since its failures are not independent."""
    before = np.array([_logit(p) for p in model.priors]) if model.priors else _logit(model.prior_bad)
    quiet = before + num_passes * np.log1p(-model.fail_rate)
    odds = np.asarray(quiet, dtype=np.float64)
    sets = sorted(set(failed))
    if not sets:
        return _sigmoid(odds)
    width = max(map(len, sets))
    members = np.array([s + (-1,) * (width - len(s)) for s in sets])
    present = members >= 0
    for _ in range(_SWEEPS):
        bad = np.where(present, _sigmoid(odds)[members], 0.0)
        passing = 1.0 - model.fail_rate * bad
        others = passing.prod(axis=1, keepdims=True) / passing
        if_bad = 1.0 - (1.0 - model.flake_rate) * (1.0 - model.fail_rate) * others
        if_good = 1.0 - (1.0 - model.flake_rate) * others
        weight = np.log(if_bad / if_good)
        fresh = quiet.copy()
        np.add.at(fresh, members[present], weight[present])
        odds = 0.5 * odds + 0.5 * fresh
    return _sigmoid(odds)


def _logit(p: float) -> float:
    return float(np.log(p / (1.0 - p)))


def _sigmoid(odds: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1.0 / (1.0 + np.exp(-np.clip(odds, -60.0, 60.0)))
