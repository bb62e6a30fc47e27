"""How long a step is, by counting: from step to step every stream sends as many messages, however long it takes.

Where steps grow longer or differ wildly no period repeats, but the counts do.
"""

from __future__ import annotations

import numpy as np

from prism.observe.period import Streams, Times, find_group_starts, find_rhythm

_LEAST_STEPS = 4
_MOST_MARKS = 2000
_ALIKE = 0.1  # of the usual count; at least exactly equal
_REGULAR = 0.6  # share of the intervals with the usual count that a stream of marks needs
_CLEAR = 0.9  # clarity of a rhythm that counting does not contradict
_SAME = (0.7, 1.4)  # times the counted period: steps differ in length, so both may be right


def choose_period(streams: Streams, heavy: list[Times], slack_ns: int) -> float | None:
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


def count_steps(streams: list[Times]) -> float | None:
    """The usual time between marks that cut all streams into like parts, the most marks there are.

    A stream that speaks several times in a step cuts others into parts without messages, one that speaks every other
    step leaves marks out: of those that fit, the one with the most marks speaks once.
    """
    heard = [times for times in streams if len(times) >= _LEAST_STEPS]
    best: tuple[int, float, float] | None = None
    for i, stream in enumerate(heard):
        for marks in [stream, *find_group_starts(stream)]:
            if not _LEAST_STEPS <= len(marks) <= _MOST_MARKS:
                continue
            regular = _cut_evenly(marks, [times for k, times in enumerate(heard) if k != i])
            if regular >= _REGULAR and (best is None or (len(marks), regular) > best[:2]):
                best = (len(marks), regular, float(np.median(np.diff(marks))))
    return None if best is None else best[2]


def _cut_evenly(marks: Times, others: list[Times]) -> float:
    """The share of intervals that hold as many messages as is usual, for the middle one of all streams."""
    shares = []
    for times in others:
        sent = np.diff(np.searchsorted(times, marks))
        usual = float(np.median(sent))
        shares.append(float(np.mean(np.abs(sent - usual) <= _ALIKE * usual)) if usual >= 1 else 0.0)
    return float(np.median(shares)) if shares else 0.0
