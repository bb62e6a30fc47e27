"""How long a step is, by counting: from step to step every stream sends as many messages, however long it takes.

Where steps grow longer or differ wildly no period repeats, but the counts do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prism.observe.period import Streams, Times, find_group_starts, find_rhythm

_LEAST_STEPS = 4
_MOST_MARKS = 2000
_ALIKE = 0.1  # of the usual count; at least exactly equal
_REGULAR = 0.6  # share of the intervals with the usual count that a stream of marks needs
_NEARLY = 0.8  # of the most regular marks
_CLEAR = 0.9  # clarity of a rhythm that counting does not contradict
_SAME = (0.7, 1.4)  # times the counted period: steps differ in length, so both may be right


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Start times of like messages of one pair, and the class of their size."""

    times: Times
    klass: int


def choose_period(streams: Streams, heavy: list[Stream], slack_ns: int) -> float | None:
    """The period that repeats in time, unless it is unclear and counting the heavy streams says otherwise."""
    rhythm = find_rhythm(streams, slack_ns)
    if rhythm is not None and rhythm.clarity >= _CLEAR:
        return rhythm.period_ns
    counted = count_steps(heavy)
    if counted is None:
        return rhythm.period_ns if rhythm is not None else None
    if rhythm is not None and _SAME[0] < rhythm.period_ns / counted < _SAME[1]:
        return rhythm.period_ns
    return counted


def count_steps(streams: list[Stream]) -> float | None:
    """The usual time between marks that cut all streams into like parts, the most marks there are.

    A stream that speaks several times in a step cuts others into parts without messages, one that speaks every other
    step leaves marks out: of those that fit, the one with the most marks speaks once.
    """
    found: list[tuple[int, float, float]] = []
    for stream in streams:
        others = [s for s in streams if s is not stream]
        found += [
            (len(marks), _cut_evenly(marks, others), float(np.median(np.diff(marks))))
            for marks in [stream.times, *find_group_starts(stream.times)]
            if _LEAST_STEPS <= len(marks) <= _MOST_MARKS
        ]
    best = max((regular for _, regular, _ in found), default=0.0)
    fitting = [one for one in found if one[1] >= max(_REGULAR, _NEARLY * best)]
    return max(fitting)[2] if fitting else None


def _cut_evenly(marks: Times, others: list[Stream]) -> float:
    """The share of intervals that hold as many messages as is usual: of the middle stream of each class, on average."""
    shares: dict[int, list[float]] = {}
    for stream in others:
        sent = np.diff(np.searchsorted(stream.times, marks))
        usual = float(np.median(sent))
        even = float(np.mean(np.abs(sent - usual) <= _ALIKE * usual)) if usual >= 1 else 0.0
        shares.setdefault(stream.klass, []).append(even)
    return float(np.mean([np.median(one) for one in shares.values()])) if shares else 0.0
