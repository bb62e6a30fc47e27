"""Small messages as step marks: a norm or a loss is summed once in every optimizer step, in a message of a few bytes.

Layers of one size make traffic that repeats far more often than steps do, and tenants that share a link make steps of
many lengths. In both cases the traffic between two such messages is the same from step to step. Other small messages
follow their own timer, such as the heartbeats of a rendezvous: they occur at any time in a step and mark nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prism.observe import levels
from prism.observe.jobs.step_counts import StreamStarts
from prism.observe.traffic.medians import take_median
from prism.observe.traffic.period import Floats, Times


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallMessageConfig:
    """When small messages mark steps."""

    least_marks: int = levels.MIN_EVENTS
    # Share of the intervals in which every stream sends exactly as many messages as is usual.
    even: float = levels.SHARE_LARGE
    same_gap: float = levels.SHARE_SMALL  # of the logarithm of the time between two messages
    # Share of the time between messages that may differ more, where a part of a step repeats.
    repeats: float = levels.SHARE_NEGLIGIBLE
    lost: float = levels.SHARE_SMALL  # share of the records that may be missing
    pooled: int = levels.SAMPLED_SIZES  # messages of one size between two marks that show a step in spite of that


def time_small_messages(
    small: list[StreamStarts], heavy: list[StreamStarts], config: SmallMessageConfig | None = None
) -> float | None:
    """The usual time between small messages that divide all heavy streams into equal parts; None if none do.

    A loss may be summed only every few steps: if parts of the traffic in between repeat, such a part is a step.
    """
    config = config or SmallMessageConfig()
    small = [stream for stream in small if _keeps_step(_begin_bursts(stream.times), heavy)]
    found = []
    for stream in small:
        marks = _begin_bursts(stream.times)
        if len(marks) >= config.least_marks and _cut_alike(marks, heavy, config):
            found.append(marks)
    if not found or not heavy:
        return _time_with_losses(small, heavy, config)
    marks = max(found, key=len)
    length = float(take_median(np.diff(marks)))
    most = max(heavy, key=lambda stream: len(stream.times)).times
    count = int(take_median(np.diff(np.searchsorted(most, marks))))
    return length / _count_repeats(most, count, length, config)


def _time_with_losses(small: list[StreamStarts], heavy: list[StreamStarts], config: SmallMessageConfig) -> float | None:
    """The same with lost records: the records of other ranks show what one rank's record does not.

    All small messages together mark every step, and all heavy streams of one size together send as many messages in
    each as lost records allow.
    """
    if not small or not heavy:
        return None
    marks = _begin_bursts(np.sort(np.concatenate([stream.times for stream in small])))
    if len(marks) < config.least_marks:
        return None
    shares = []
    for klass in {stream.klass for stream in heavy}:
        pooled = np.sort(np.concatenate([stream.times for stream in heavy if stream.klass == klass]))
        sent = np.diff(np.searchsorted(pooled, marks)).astype(np.float64)
        usual = float(take_median(sent))
        if usual >= config.pooled:
            shares.append(float(np.mean(np.abs(sent - usual) <= levels.SIGMAS_UNLIKELY * np.sqrt(config.lost * usual))))
    return float(take_median(np.diff(marks))) if min(shares, default=0.0) >= config.even else None


def _begin_bursts(times: Times) -> Times:
    """The first message of each burst, where some follow each other at once; evaluations pause for many steps."""
    gaps = np.diff(times)
    if not len(gaps):
        return times
    between = float(take_median(gaps[gaps > levels.THREE_PER_MILLE * gaps.max()]))
    return np.concatenate([times[:1], times[1:][gaps > levels.SHARE_SMALL * between]])


def _keeps_step(marks: Times, heavy: list[StreamStarts]) -> bool:
    """Whether small messages occur at about the same time between heavy ones, unlike those of a timer.

    The middle half of random times covers about half of the time between heavy messages.
    """
    around = np.sort(np.concatenate([stream.times for stream in heavy])) if heavy else marks[:0]
    after = np.searchsorted(around, marks)
    inside = (after > 0) & (after < len(around))
    if not inside.any():
        return True
    own, after = marks[inside], after[inside]
    moment = (own - around[after - 1]) / np.maximum(around[after] - around[after - 1], 1)
    by_chance = 0.5 * (1 - levels.SIGMAS_UNLIKELY / np.sqrt(len(own)))
    # A fault that begins shifts all that comes later, so before it and after it they may be at two moments.
    cuts = [len(moment) * k // 8 for k in range(1, 8) if len(moment) >= 4 * levels.MIN_STATISTICS]
    once = min((max(_spread(moment[:cut]), _spread(moment[cut:])) for cut in cuts), default=1.0)
    return bool(_spread(moment) <= max(by_chance, levels.ONE_PERCENT) or once <= levels.SHARE_SMALL)


def _spread(moment: Floats) -> float:
    """The width of the middle half."""
    early, late = np.quantile(moment, [0.25, 0.75])
    return float(late - early)


def _cut_alike(marks: Times, heavy: list[StreamStarts], config: SmallMessageConfig) -> bool:
    """Whether most intervals hold the same number of messages of every class of heavy streams, at least one."""
    shares: dict[int, list[float]] = {}
    for stream in heavy:
        sent = np.diff(np.searchsorted(stream.times, marks))
        usual = int(take_median(sent))
        shares.setdefault(stream.klass, []).append(float(np.mean(sent == usual)) if usual else 0.0)
    return all(float(take_median(np.array(own))) >= config.even for own in shares.values())


def _count_repeats(times: Times, count: int, length: float, config: SmallMessageConfig) -> int:
    """How many equal parts the messages between two marks consist of, by the time from each to the next.

    A pause counts as much as the time between two marks.
    """
    gaps: Floats = np.log(np.clip(np.diff(times), 1, length))
    for parts in range(count, 1, -1):
        lag = count // parts
        if (
            count % parts == 0
            and _share_unlike(gaps, lag, config) <= _share_unlike(gaps, count, config) + config.repeats
        ):
            return parts
    return 1


def _share_unlike(gaps: Floats, lag: int, config: SmallMessageConfig) -> float:
    """The share of the time between messages whose distance is different some messages later."""
    if lag >= len(gaps):
        return 1.0
    unlike = np.abs(gaps[lag:] - gaps[:-lag]) > config.same_gap
    took = np.exp(np.maximum(gaps[lag:], gaps[:-lag]))
    return float((took * unlike).sum() / took.sum())
