"""Whether two sets of pairs work for one job: what one does, the other does at a fixed distance in time."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe.period import Times, find_group_starts, nearest
from prism.observe.traffic import Traffic

_LISTENED = 24  # pairs of a cluster
_MOST_EVENTS = 2000
_MIN_EVENTS = 5
_SCATTERED = 0.6  # of what two strangers' distances would be
_OVERLAP = 0.3  # of the shorter one's time in which both must be there
_DRIFT = 3.0  # times the jitter of single steps by which clocks of two jobs drift apart


def keep_company(traffic: Traffic, a: NDArray[np.int64], b: NDArray[np.int64]) -> bool:
    """Whether two clusters on common hosts belong to one job; without evidence against it they do."""
    first, second = mark_times(traffic, a), mark_times(traffic, b)
    if min(len(first), len(second)) < _MIN_EVENTS:
        return True
    begin, end = max(first[0], second[0]), min(first[-1], second[-1])
    shorter = min(first[-1] - first[0], second[-1] - second[0])
    if end - begin < _OVERLAP * shorter:
        return False  # One stopped before the other began.
    few, many = (first, second) if len(first) <= len(second) else (second, first)
    gap = float(np.median(np.diff(many)))
    few = few[(few >= begin - gap / 2) & (few <= end + gap / 2)]
    if len(few) < _MIN_EVENTS:
        return True
    if gap <= 4 * traffic.resolution_ns:
        return True
    distance = (few - many[nearest(many, few)]).astype(np.float64)
    distance = _unwrap(distance, gap)
    scatter = float(np.median(np.abs(distance - np.median(distance))))
    if scatter > _SCATTERED * gap / 4:
        return False
    return not _drifts(distance, few, gap)


def _unwrap(distance: NDArray[np.float64], gap: float) -> NDArray[np.float64]:
    """Distances around their centre where they lie around half a gap: there nearest flips from side to side."""
    angle = np.angle(np.mean(np.exp(2j * np.pi * distance / gap))) / (2 * np.pi) * gap
    return (distance - angle + gap / 2) % gap - gap / 2


def _drifts(distance: NDArray[np.float64], few: Times, gap: float) -> bool:
    """Two clocks of one job differ by noise that is new in every step; two jobs drift apart like a random walk."""
    if len(distance) < 8:
        return False
    jumps = np.diff(distance)
    jitter = float(np.median(np.abs(jumps)))
    quarter = max(3, len(distance) // 4)
    ends = abs(float(np.median(distance[-quarter:]) - np.median(distance[:quarter])))
    return ends > max(_DRIFT * 3 * jitter, 0.05 * gap)


def mark_times(traffic: Traffic, pairs: NDArray[np.int64]) -> Times:
    """The times of a cluster's rarest steady messages, those that happen at once counted once."""
    chosen = pairs[np.unique(np.linspace(0, len(pairs) - 1, min(len(pairs), _LISTENED)).astype(np.int64))]
    heard = traffic.messages[traffic.rows_of(chosen)]
    counted = heard.group_by("voice").agg(pl.len().alias("num"), pl.col("bytes").mean())
    usual = float(counted["num"].median() or 0)  # type: ignore[arg-type]
    steady = counted.filter(pl.col("num") >= max(_MIN_EVENTS, 0.1 * usual))
    if steady.is_empty():
        steady = counted
    voice = steady.sort("num", "voice")["voice"][0]
    times = np.unique(heard.filter(pl.col("voice") == voice)["start_ns"].to_numpy()[:_MOST_EVENTS])
    groups = find_group_starts(times)
    return groups[-1] if groups else times
