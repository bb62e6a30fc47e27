"""What run times have in common, learned while trials end: a Bayesian regression of the logarithm, in closed form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_FIRST_ROOM = 16
_NOISE = 0.03  # standard deviation of the logarithm of a long part's time: two runs of the same part differ this much
_SAMPLE_NOISE = 0.3  # of one sample's time beside another's of the same dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Something that changes a run time: its name, how much of it there is, and how strong it may be."""

    name: str
    amount: float = 1.0
    spread: float = 0.3  # standard deviation before anything is known, of the logarithm


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """A normal distribution."""

    mean: float
    variance: float


class Effects:
    """A normal distribution over all effects, updated with every measurement (conjugate, one rank at a time).

    log(measured / guessed) = sum of amount x effect + noise. Effects are added when they are first seen.
    """

    def __init__(self, known: Mapping[str, Belief] | None = None) -> None:
        self._rows: dict[str, int] = {}
        self._mean: NDArray[np.float64] = np.zeros(_FIRST_ROOM)
        self._covariance: NDArray[np.float64] = np.zeros((_FIRST_ROOM, _FIRST_ROOM))
        self._known = dict(known or {})

    def predict(self, effects: Iterable[Effect]) -> Belief:
        """The logarithm of the factor by which a guess will be wrong; changes nothing."""
        mean = variance = 0.0
        known: list[tuple[int, float]] = []
        for effect in effects:
            row = self._rows.get(effect.name)
            if row is not None:
                known.append((row, effect.amount))
                continue
            belief = self._first(effect)
            mean += effect.amount * belief.mean
            variance += effect.amount**2 * belief.variance
        for row, amount in known:
            mean += amount * float(self._mean[row])
            variance += sum(amount * other * float(self._covariance[row, column]) for column, other in known)
        return Belief(mean=mean, variance=max(0.0, variance))

    def observe(self, effects: Iterable[Effect], log_ratio: float, noise: float) -> None:
        """Take in one measurement whose noise has this standard deviation."""
        effects = list(effects)
        rows = [self._row(effect) for effect in effects]
        amounts = np.array([effect.amount for effect in effects])
        size = len(self._rows)
        gain = self._covariance[:size, rows] @ amounts
        variance = float(amounts @ gain[rows]) + noise**2
        surprise = log_ratio - float(amounts @ self._mean[rows])
        self._mean[:size] += gain * (surprise / variance)
        self._covariance[:size, :size] -= np.outer(gain, gain) / variance

    def beliefs(self, prefix: str | tuple[str, ...]) -> dict[str, Belief]:
        """What is known of the effects whose names begin so, those of earlier runs included."""
        found = {name: belief for name, belief in self._known.items() if name.startswith(prefix)}
        for name, row in self._rows.items():
            if name.startswith(prefix):
                found[name] = Belief(mean=float(self._mean[row]), variance=float(self._covariance[row, row]))
        return found

    def _first(self, effect: Effect) -> Belief:
        return self._known.get(effect.name) or Belief(mean=0.0, variance=effect.spread**2)

    def _row(self, effect: Effect) -> int:
        row = self._rows.get(effect.name)
        if row is not None:
            return row
        row = self._rows[effect.name] = len(self._rows)
        if row == len(self._mean):
            self._mean, self._covariance = np.pad(self._mean, (0, row)), np.pad(self._covariance, (0, row))
        belief = self._first(effect)
        self._mean[row], self._covariance[row, row] = belief.mean, belief.variance
        return row


def part_noise(samples: int) -> float:
    """How far a part's seconds per sample may lie from its dataset's: the fewer samples, the further."""
    return math.sqrt(_NOISE**2 + _SAMPLE_NOISE**2 / samples)


@dataclass(slots=True, kw_only=True)
class Errors:
    """How far guesses of one kind are apart in their error: a scaled inverse chi-squared distribution of the variance.

    A factor that is the same for all of them is no error here: it does not change which dataset takes longer.
    """

    spread: float  # before anything is measured
    weight: float = 2.0  # measurements that this counts for
    total: float = 0.0
    squares: float = 0.0
    count: float = 0.0

    def add(self, log_ratio: float) -> None:
        """Take in how far off one guess was."""
        self.total += log_ratio
        self.squares += log_ratio**2
        self.count += 1

    @property
    def variance(self) -> float:
        """What is expected of the next guess."""
        around_mean = max(0.0, self.squares - self.total**2 / max(1.0, self.count))
        return (self.weight * self.spread**2 + around_mean) / (self.weight + self.count)


@dataclass(slots=True)
class BatchTrials:
    """Which batch sizes ran out of memory: a beta distribution per dataset, model size and halving of the batch."""

    _ended: dict[tuple[str, int, int], list[float]] = field(default_factory=dict)  # [failures, successes]

    def add(self, dataset: str, parameters: int, shrink: int, *, fits: bool, count: float = 1.0) -> None:
        """Take in a trial that fitted, or ran out of memory."""
        self._ended.setdefault((dataset, parameters, shrink), [0.0, 0.0])[fits] += count

    def choose(self, dataset: str, parameters: int) -> int:
        """The fewest halvings that will more likely fit than not.

        What failed with a smaller model, or with a smaller batch, would have failed here; what fitted with a larger
        model, or with a larger batch, would have fitted.
        """
        mine = [(size, shrink, ended) for (name, size, shrink), ended in self._ended.items() if name == dataset]
        chosen = 0
        while True:
            failures = sum(ended[0] for size, shrink, ended in mine if size <= parameters and shrink >= chosen)
            successes = sum(ended[1] for size, shrink, ended in mine if size >= parameters and shrink <= chosen)
            # Before anything is known a batch fits 19 times in 20: users choose what fits.
            if (0.05 + failures) / (1.0 + failures + successes) < 0.5:
                return chosen
            chosen += 1

    def chosen(self) -> dict[tuple[str, int], int]:
        """The halvings to begin with next time, where they are not none."""
        keys = {(name, size) for name, size, _ in self._ended}
        return {key: shrink for key in sorted(keys) if (shrink := self.choose(*key))}
