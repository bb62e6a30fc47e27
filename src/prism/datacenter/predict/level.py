"""The level of a forecast: how many parts will have an event, and how far off that was before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prism.datacenter.predict.features import Floats
from prism.datacenter.predict.history import DAY_NS, History


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictConfig:
    """The past that training uses, and the minimum of data."""

    horizon_days: float = 90.0
    step_days: float = 30.0  # between the moments used for training
    half_life_days: float = 180.0  # after which a past moment has half the weight
    least_events: int = 30  # parts with an event that training needs; with fewer, only rules are used
    least_parts: int = 50
    judge_events: float = 100.0  # needed to compare the model and the rules, over as many past moments as that takes
    level_events: float = 200.0  # in the last horizon, before the level follows trees too and not only the count
    rule_errors: float = 2.0  # standard errors by which a rule must beat the model on the held-out past to replace it
    rule_events: float = 100.0  # parts with an event at which trees and lasting rules have the same weight
    most_moments: int = 60  # past moments used for training at most, because one wrong date could make thousands
    most_quiet: int = 60_000  # parts without an event that training uses from one past moment
    most_growth: float = 2.0  # largest factor by which the rate of events may grow or shrink within a horizon


def list_moments(known: History, at_ns: int, config: PredictConfig) -> list[int]:
    """Moments whose whole horizon is in the past, latest first."""
    if len(known.event_ns) == 0:
        return []
    step, horizon = round(config.step_days * DAY_NS), round(config.horizon_days * DAY_NS)
    first = int(known.event_ns[0])
    return list(range(at_ns - horizon, first, -step))[: config.most_moments]


def expect_events(known: History, at_ns: int, config: PredictConfig) -> float:
    """How many parts will have an event: as many as in the last horizon, times its recent growth, within bounds."""
    horizon = round(config.horizon_days * DAY_NS)

    last, earlier = (_count(known, at_ns - back * horizon, config) for back in (1, 2))
    growth = (last + 5.0) / (earlier + 5.0)  # five are added to each, so that a handful of events is no trend
    if abs(np.log(growth)) < 2.5 * np.sqrt(1.0 / (last + 5.0) + 1.0 / (earlier + 5.0)):
        return (last + earlier) / 2.0  # no significant change: the level is the mean of both horizons
    return last * float(np.clip(growth, 1.0 / config.most_growth, config.most_growth))


def find_gap(known: History, at_ns: int, config: PredictConfig) -> list[str]:
    """A note if nothing was recorded for far longer than usual, because the level then depends on missing data."""
    recent = known.event_ns[known.event_ns > at_ns - round(2 * config.horizon_days * DAY_NS)]
    if len(recent) < config.least_events:
        return []
    gaps = np.diff(recent, append=at_ns)
    longest = int(gaps.argmax())
    if gaps[longest] < max(10 * DAY_NS, 10.0 * float(np.mean(gaps))):
        return []
    days = (at_ns - int(recent[longest])) / DAY_NS
    return [
        f"no event is recorded for {gaps[longest] / DAY_NS:.0f} days, from {days:.0f} days before the moment on; "
        "if none was collected then, the risks are too low"
    ]


def find_range(
    known: History, at_ns: int, expected: float, config: PredictConfig, num_parts: int
) -> tuple[float, float]:
    """The range that should hold the number of events in 8 of 10 cases, from past errors of such expectations."""
    errors = []
    for moment in list_moments(known, at_ns, config)[:12]:
        came = _count(known, moment, config)
        told = expect_events(known.before(moment), moment, config)
        errors.append(np.log((came + 1.0) / (told + 1.0)))
    # One error by a factor of two and the chance of counts are included, because there are few past errors.
    spread = float(np.sqrt((np.sum(np.square(errors)) + 0.48) / (len(errors) + 1) + 1.0 / max(expected, 1.0)))
    low, high = expected * float(np.exp(-1.28 * spread)), expected * float(np.exp(1.28 * spread))
    return min(low, num_parts), min(high, num_parts)


def check_ranges(known: History, at_ns: int, config: PredictConfig, num_parts: int) -> tuple[int, int]:
    """At how many past moments, a horizon apart, the range from the counts up to then held what came."""
    step = max(1, round(config.horizon_days / config.step_days))
    moments = list_moments(known, at_ns, config)[::step]
    held = of = 0
    for moment in moments:
        past = known.before(moment)
        told = expect_events(past, moment, config)
        if told <= 0:
            continue
        low, high = find_range(past, moment, told, config, num_parts)
        held, of = held + (low <= _count(known, moment, config) <= high), of + 1
    return held, of


def _count(known: History, moment: int, config: PredictConfig) -> int:
    """Parts that were in place at a moment and had an event within the horizon after it."""
    end = moment + round(config.horizon_days * DAY_NS)
    hit = known.event_part[(known.event_ns > moment) & (known.event_ns <= end)]
    there = (known.installed_ns <= moment) & (known.removed_ns > moment)
    return len(np.intersect1d(hit, known.stay_part[there]))


def set_level(score: Floats, expected: float) -> Floats:
    """Shift all log-odds by one number, so that the risks add up to the events expected."""
    odds = np.log(np.clip(score, 1e-9, 1 - 1e-9) / (1 - np.clip(score, 1e-9, 1 - 1e-9)))
    wanted = min(max(expected, 1e-6), len(score) * 0.99)
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _logistic(odds + middle).sum() < wanted else (low, middle)
    return _logistic(odds + (low + high) / 2)


def _logistic(values: Floats) -> Floats:
    result: Floats = 1.0 / (1.0 + np.exp(-values))
    return result
