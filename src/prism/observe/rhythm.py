"""The rhythm of messages: how long a step is, and one mark per step, from when messages start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]

_MAX_PER_STEP = 1024  # messages of one kind per step that are tried
_MIN_STEPS = 3
_LONG = 6000  # messages of one stream that are enough to hear its rhythm
_GROUP_GAP = 6.0  # times the usual gap: this ends a step, not a pause between steps
_SMALL_GROUP = 8  # so few messages between longer gaps are always a step
_STEADY = 0.15  # relative spread of the time between like messages of consecutive steps
_SAME_PERIOD = 0.03  # relative difference below which two voices speak of the same period
_MIN_SUPPORT = 0.15  # share of the voices that a period needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What one stream of like messages says: `per_step` of them pass in `period_ns`, with relative `spread`."""

    per_step: int
    period_ns: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """A period and the times at which its steps pass one fixed point."""

    period_ns: float
    marks: Times
    support: float  # share of the streams that agree


def find_beat(starts: Times, *, patient: bool) -> Beat | None:
    """The number of messages after which the stream repeats itself, and the time that takes.

    A patient listener forgives one gap in eight: it hears steps through pauses, but not the pause that ends a step of
    many messages. A strict one forgives none.
    """
    starts = np.unique(starts)  # Channels of one transfer start at once.
    n = len(starts)
    if n < _MIN_STEPS + 1:
        return None
    if n > _LONG:
        starts = starts[:_LONG]
        n = _LONG
    lag, spread = _steady_lag(starts, min(_MAX_PER_STEP, n // _MIN_STEPS), _STEADY, 0.125 if patient else 0.0)
    if lag == 0:
        return None
    grouped = _hear_groups(starts) if lag == 1 and patient else None
    return grouped or Beat(per_step=lag, period_ns=float(np.median(starts[lag:] - starts[:-lag])), spread=spread)


def _hear_groups(starts: Times) -> Beat | None:
    """Like messages that come in groups of equal number: the group is the step, not the message.

    Many short gaps and one far longer are the buckets of a step; steps with a pause after every tenth are not.
    """
    gaps = np.diff(starts).astype(np.float64)
    usual = float(np.median(gaps))
    at = np.nonzero(gaps > 1.5 * usual)[0]
    if len(at) < _MIN_STEPS or usual <= 0:
        return None
    sizes = np.diff(at)
    size = round(float(np.median(sizes)))
    if np.mean(np.abs(sizes - size) <= max(1, 0.05 * size)) < 0.7:
        return None
    ratio = float(np.median(gaps[at])) / usual
    if ratio < _GROUP_GAP and not (size <= _SMALL_GROUP and ratio >= 1.5):
        return None
    lengths = np.diff(starts[at])
    period = float(np.median(lengths))
    return Beat(per_step=size, period_ns=period, spread=float(np.median(np.abs(lengths - period)) / period))


@numba.njit(cache=True)
def _steady_lag(starts: Times, most: int, steady: float, forgiven: float) -> tuple[int, float]:
    """The first lag at which the gaps, but for the largest ones, are steady; 0 where there is none."""
    n = len(starts)
    for lag in range(1, most + 1):
        count = n - lag
        gaps = np.empty(count)
        for i in range(count):
            gaps[i] = starts[i + lag] - starts[i]
        mean = gaps.mean()
        if mean <= 0:
            continue
        gaps = np.minimum(gaps, 3.0 * mean)
        if forgiven > 0.0:
            # Most lags fail at once; only what is nearly steady is worth sorting.
            if gaps.std() / mean > 4.0 * steady + 0.5:
                continue
            gaps = np.sort(gaps)[: max(2, count - int(forgiven * count))]
        spread = gaps.std() / gaps.mean()
        if spread <= steady:
            return lag, spread
    return 0, np.inf


def agree_on_period(beats: Sequence[Beat], weights: Sequence[float]) -> tuple[float, float] | None:
    """The longest period that enough of the streams share, and their share.

    Streams within a step (micro-batches) may mistake a part for the whole; none mistakes the whole for a part.
    """
    if not beats:
        return None
    periods = np.array([b.period_ns for b in beats])
    weight = np.asarray(weights, dtype=np.float64)
    weight = weight / weight.sum()
    order = np.argsort(periods)[::-1]
    for i in order:
        near = np.abs(periods - periods[i]) <= _SAME_PERIOD * periods[i]
        support = float(weight[near].sum())
        if support >= _MIN_SUPPORT:
            return float(np.median(periods[near])), support
    return None


def mark_steps(starts: Times, beat: Beat, period_ns: float) -> Times:
    """One time per step from a stream: its only message, or the first one after the longest silence."""
    per_step = max(1, round(beat.per_step * period_ns / beat.period_ns))
    if per_step == 1:
        return starts
    gaps = np.diff(starts)
    expected = max(1, round((starts[-1] - starts[0]) / period_ns))
    if expected < len(gaps):
        threshold = np.partition(gaps, len(gaps) - expected)[len(gaps) - expected]
        firsts = np.concatenate([[0], np.nonzero(gaps >= threshold)[0] + 1])
        spans = np.diff(starts[firsts])
        if len(spans) and np.median(np.abs(spans - period_ns)) < 0.2 * period_ns:
            chosen: Times = starts[firsts]
            return chosen
    return starts[::per_step]
