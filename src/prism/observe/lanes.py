"""Lanes: what single connections of collectives send, and how the lanes of one host keep time with each other.

All lanes of one collective end at the same moment, whoever comes late; lanes of others end when they please. A lane
begins when the ranks at its two ends have come: ranks that are bound to each other in every layer come together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from prism.observe.jobs import SKEW_NS
from prism.observe.medians import find_median
from prism.observe.traffic import Traffic

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_MOST_EVENTS = 300  # messages that are compared
_MOST_SHIFTS = 6  # differences of clocks that are tried
_FLOOR_NS = 3_000.0
_SAME_END = 0.005  # of a transfer's length: ends of one collective scatter by no more, those of two by 0.01 and more
_CHANCE = 0.75  # median distance of two moments that sampling moves, in units of the usual move
_FRESH = 0.3  # of the longest silences: a message after a shorter one waited for the one before it
_LEAST = 3  # messages that tell anything


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Messages of one size of one connection."""

    src: int
    start: Ints
    end: Ints
    silence: Floats  # of the connection before each message, ns
    length: float  # usual, ns
    noise: float  # by which sampling usually moves a start or an end, ns


def read_lane(traffic: Traffic, voice: int) -> Lane:
    """The messages of a voice, and how long its connection was silent before each."""
    pair, connection = (int(traffic.voices[c][voice]) for c in ("pair", "connection"))
    part = traffic.messages[int(traffic.begin[pair]) : int(traffic.begin[pair + 1])]
    voices = part["voice"].to_numpy()
    start, end, size = (part[c].to_numpy() for c in ("start_ns", "end_ns", "bytes"))
    beside = traffic.voices["connection"].to_numpy()[voices] == connection
    start, end, size, voices = start[beside], end[beside], size[beside], voices[beside]
    busy = np.maximum.accumulate(end)
    silence = np.concatenate([[0.0], (start[1:] - busy[:-1]).astype(np.float64)])
    own = voices == voice
    length = (end - start)[own].astype(np.float64)
    return Lane(
        src=int(traffic.pairs["src"][pair]),
        start=start[own],
        end=end[own],
        silence=silence[own],
        length=float(np.median(length)),
        noise=float(np.median(length * traffic.sample_bytes / np.maximum(size[own], 1))),
    )


def ends_as_one(a: Lane, b: Lane) -> bool:
    """Whether two lanes are of one collective: their ends differ by a constant, that of their clocks."""
    at, spread = match_times(np.sort(a.end[:_MOST_EVENTS]), np.sort(b.end))
    if not len(at):
        return False
    limit = np.hypot(_SAME_END * a.length, _CHANCE * max(a.noise, b.noise)) + _FLOOR_NS
    return bool(spread <= limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bond:
    """How two lanes begin after a silence: how far apart, how unevenly, and how unevenly sampling alone would be."""

    offset_ns: float
    scatter_ns: float
    silence_ns: float
    noise_ns: float


def measure_bond(a: Lane, b: Lane) -> Bond | None:
    """How the second lane begins beside the first; None where too few messages come after a silence."""
    first, second = _fresh(a), _fresh(b)
    at, spread = match_times(a.start[first], b.start[second])
    if not len(at):
        return None
    return Bond(
        offset_ns=float(np.median(b.start[second][at] - a.start[first])),
        scatter_ns=spread,
        silence_ns=float(np.median(a.silence[first])),
        noise_ns=max(a.noise, b.noise),
    )


def _fresh(lane: Lane) -> Ints:
    """Messages that come after a long silence, so that they did not wait for the one before them: one per step."""
    known = np.sort(lane.silence[1:])
    if not len(known):
        return np.zeros(0, np.int64)
    long = _FRESH * known[-min(_LEAST, len(known))]
    return 1 + np.flatnonzero(lane.silence[1:] >= max(float(long), 1.0))[:_MOST_EVENTS]


@numba.njit(cache=True, nogil=True)
def match_times(a: Ints, b: Ints) -> tuple[Ints, float]:
    """For each message of one the one of the other that goes with it, and how far their distances scatter.

    Clocks may differ by more than messages do, so the nearest few differences are tried; empty where messages are few.
    """
    best, least = np.zeros(0, np.int64), np.inf
    if min(len(a), len(b)) < _LEAST:
        return best, least
    middle, shift = a[len(a) // 2], 0
    after = 0
    while after < len(b) and b[after] < middle:
        after += 1
    before = after - 1
    for _ in range(_MOST_SHIFTS + 1):
        at = _nearest(b, a + shift)
        spread = scatter(b[at] - a)
        if spread < least:
            best, least = at, spread
        if before >= 0 and (after == len(b) or middle - b[before] <= b[after] - middle):
            shift = b[before] - middle
            before -= 1
        elif after < len(b):
            shift = b[after] - middle
            after += 1
        if abs(shift) > 2 * SKEW_NS:
            break
    return best, least


@numba.njit(cache=True, nogil=True)
def _nearest(times: Ints, wanted: Ints) -> Ints:
    """Where the time nearest to each wanted one lies; both are in order."""
    at = np.empty(len(wanted), np.int64)
    right = 0
    for k in range(len(wanted)):
        while right < len(times) - 1 and times[right] < wanted[k]:
            right += 1
        left = max(right - 1, 0)
        at[k] = left if abs(wanted[k] - times[left]) <= abs(times[right] - wanted[k]) else right
    return at


@numba.njit(cache=True, nogil=True)
def scatter(distance: Ints) -> float:
    """The usual deviation from the usual distance."""
    return find_median(np.abs(distance - find_median(distance.astype(np.float64))))
