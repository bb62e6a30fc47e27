"""The repeating unit of a program's iterations: 1 where all are alike, K where every K-th does more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialStep:
    """An iteration that is not like most: its place in the unit and its time."""

    index: int
    ms: float
    source: str  # the first call that a plain iteration does not make; empty where it makes fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """Iterations by kind."""

    unit: int | None  # None where no unit was seen twice
    plain_ms: float
    mean_ms: float  # over whole units, or over all iterations where there is no unit
    special: tuple[SpecialStep, ...]

    @property
    def loop_ms(self) -> float | None:
        """The whole repeating unit: an outer round of local steps, or a phase of generation and training."""
        return None if self.unit is None else self.unit * self.mean_ms


def find_unit(signs: Sequence[Hashable]) -> int | None:
    """The smallest K after which iterations repeat, seen at least twice; None where there is no such K."""
    for unit in range(1, len(signs) // 2 + 1):
        if all(signs[i] == signs[i + unit] for i in range(len(signs) - unit)):
            return unit
    return 1 if len(signs) == 1 else None


def summarize(signs: Sequence[Hashable], times_ms: Sequence[float], sources: Sequence[str]) -> StepSummary:
    """The plain step, the special ones, and the mean over the unit."""
    unit = find_unit(signs)
    plain_sign, _ = Counter(signs).most_common(1)[0]
    plain = sorted(ms for sign, ms in zip(signs, times_ms, strict=True) if sign == plain_sign)
    whole = len(times_ms) // unit * unit if unit else len(times_ms)
    kept = times_ms[len(times_ms) - whole :]
    cycle = unit or len(signs)
    special = []
    for index in range(cycle):
        if signs[index] != plain_sign:
            alike = [times_ms[i] for i in range(index, len(signs), cycle)]
            special.append(SpecialStep(index=index, ms=sum(alike) / len(alike), source=sources[index]))
    return StepSummary(
        unit=unit, plain_ms=plain[len(plain) // 2], mean_ms=sum(kept) / len(kept), special=tuple(special)
    )
