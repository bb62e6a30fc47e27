"""Connections: what each connection of a collective sends, and how the connections of one host are synchronized.

All connections of one collective end at the same moment, whichever rank is late; other connections end at other times.
A transfer begins when its sender arrives, so ranks that wait for each other in every layer begin together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from prism.kernel import kernel
from prism.observe import levels
from prism.observe.jobs.grouping import SKEW_NS
from prism.observe.traffic.medians import find_median, interpolate_quantile, take_median
from prism.observe.traffic.numbering import nearest
from prism.observe.traffic.table import Traffic

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

BOUND_SCATTER = 3e-4
"""Of the time that ranks work apart: from one message of a pipeline to the next 2e-5 to 7e-5 were measured between
ranks in lockstep, 2e-3 to 3e-2 between replicas."""
_MOST_EVENTS = levels.SAMPLED_MESSAGES  # beginnings that are compared
_MOST_ENDS = levels.MAX_MESSAGES
_MOST_SHIFTS = levels.SAMPLED_GROUPS  # differences of clocks that are tried
_MOST_SKEW = levels.MIN_SAMPLES  # times the usual skew of two clocks
_SAME_SHIFT_NS = levels.CLOCK_TOLERANCE_NS  # apart: messages that go side by side lead to the same
_FLOOR_NS = 3_000.0
_AS_SHARP = levels.RATIO_FAR  # times the scatter along a ring
_SAME_END = 0.005  # of a transfer's length: ends of one collective scatter by no more, those of two by 0.01 and more
# Median distance of two moments that sampling moves, in units of the usual move: Laplace's law.
_CHANCE = levels.SHARE_LARGE
_SURE = levels.SIGMAS_UNLIKELY  # deviations by which an estimate of it may be off
_OFTEN = levels.RATIO_LONGER  # times the usual move: what still is chance where two collectives would differ by more
_OTHER_END = 0.012  # of a transfer's length
_UNDELAYED = levels.SHARE_SMALL  # of the messages
_FRESH = levels.SHARE_MINOR  # of the longest silences: a message after a shorter one waited for the one before it
_BLURRED = levels.RATIO_FAR  # times the least move
_ENOUGH = levels.MIN_STATISTICS  # messages
# Share of the messages of synchronized ranks; the rest waits for other things.
_AT_ONCE = levels.SHARE_MINOR
_PEAK = levels.SHARE_HALF  # of those in a window eight times as wide, of which chance puts one eighth there
_LEAST = levels.MIN_SAMPLES  # messages needed for an estimate


@dataclass(frozen=True, kw_only=True)
class Connection:
    """Messages of one size of one connection."""

    src: int
    start: Ints
    end: Ints
    silence: Floats  # of the connection before each message, ns
    shortest: float  # that a message takes without waiting, ns
    moved: Floats  # by how much sampling usually moves a start or an end of each message, ns
    load: float = 0.0  # bytes that it carries in messages of any size

    @cached_property
    def noise(self) -> float:
        """By how much sampling usually moves a start or an end, ns."""
        return _median_or_zero(self.moved)

    @cached_property
    def fresh_noise(self) -> float:
        """By how much sampling usually moves a start that comes after a silence, ns."""
        return _median_or_zero(self.moved[self._after_silence])

    @cached_property
    def ends(self) -> Ints:
        """When messages end, in order."""
        return np.sort(self.end, kind="stable")

    @cached_property
    def fresh(self) -> Ints:
        """Starts of messages after a long silence, which did not wait for the one before: one per step."""
        return self.start[self._after_silence]

    @cached_property
    def usual_silence(self) -> float:
        """How long it usually is silent before such a message, ns."""
        return _median_or_zero(self.silence[self._after_silence])

    @cached_property
    def usual_interval(self) -> float:
        """How long it usually is from one message to the next, ns."""
        return _median_or_zero(np.diff(np.sort(self.start, kind="stable")).astype(np.float64))

    @cached_property
    def _after_silence(self) -> Ints:
        fresh: Ints = _list_fresh(self.silence, self.moved)
        return fresh


def _median_or_zero(values: Floats) -> float:
    """The median; 0 where there are no values, as where no message comes after a silence."""
    return float(find_median(values.copy())) if len(values) else 0.0


def read_connection(traffic: Traffic, stream: int, load: float = 0.0) -> Connection:
    """The messages of a stream, and how long its connection was silent before each; `load` is all that this carries."""
    own, columns = traffic.rows_of_stream(stream), traffic.columns
    pair = int(columns["pair"][own[0]])
    rows, silence = _list_silences(
        columns["stream"], traffic.connection_of, stream, traffic.begin[pair : pair + 2], *_times(columns)
    )
    shortest, moved = _measure_connection(rows, *_times(columns), columns["bytes"], traffic.sample_bytes)
    return Connection(
        src=int(traffic.source_of[pair]),
        start=columns["start_ns"][rows],
        end=columns["end_ns"][rows],
        silence=silence,
        shortest=shortest,
        moved=moved,
        load=load,
    )


def _times(columns: dict[str, Ints]) -> tuple[Ints, Ints]:
    return columns["start_ns"], columns["end_ns"]


@kernel
def _list_silences(
    streams: Ints, connections: Ints, stream: int, span: Ints, start: Ints, end: Ints
) -> tuple[Ints, Floats]:
    """The rows of a stream, and how long its connection was silent before each; `span` are the rows of its pair."""
    rows, silence = np.empty(span[1] - span[0], np.int64), np.empty(span[1] - span[0])
    count, busy, first = 0, 0, True
    for i in range(span[0], span[1]):
        if connections[streams[i]] != connections[stream]:
            continue
        if streams[i] == stream:
            rows[count], silence[count] = i, 0.0 if first else float(start[i] - busy)
            count += 1
        busy, first = end[i] if first else max(busy, end[i]), False
    return rows[:count].copy(), silence[:count].copy()


@kernel
def _measure_connection(rows: Ints, start: Ints, end: Ints, size: Ints, sample_bytes: float) -> tuple[float, Floats]:
    """How long an undelayed message takes, and by how much sampling usually moves a start or an end of each."""
    length = (end[rows] - start[rows]).astype(np.float64)
    timed = length[length > 0]
    usual = find_median(timed.copy()) if len(timed) else 0.0  # A message with one sampled packet has no length.
    moved = np.empty(len(rows))
    for k in range(len(rows)):
        moved[k] = (length[k] or usual) * sample_bytes / max(size[rows[k]], 1)
    return interpolate_quantile(length, _UNDELAYED), moved


@kernel
def _list_fresh(silence: Floats, moved: Floats) -> Ints:
    """Which messages come after about as long a silence as the longest ones; of these, where some are enough, those
    that sampling moves least: what waits for its receiver is long, and its first packets may be missed for long.
    """
    known = np.sort(silence[1:])
    if not len(known):
        return np.zeros(0, np.int64)
    long = max(_FRESH * known[-min(_LEAST, len(known))], 1.0)
    fresh = 1 + np.flatnonzero(silence[1:] >= long)
    if not len(fresh):
        return fresh
    sharp = fresh[moved[fresh] <= _BLURRED * moved[fresh].min()]
    return (sharp if len(sharp) >= _ENOUGH else fresh)[:_MOST_EVENTS]


def ends_as_one(a: Connection, b: Connection, sharp_ns: float = np.inf) -> bool:
    """Whether two connections are of one collective: their ends differ by a constant, that of their clocks.

    `sharp_ns` is how far the ends of hops scatter that surely are of one collective.
    """
    noise, length = max(a.noise, b.noise), min(a.shortest, b.shortest)
    num = min(len(a.end), len(b.end), _MOST_ENDS)
    chance = _CHANCE * (1 + _SURE / math.sqrt(max(num, 1))) * noise
    # Channels of a collective that one host launches begin and end a little apart, however sharp each ring is.
    same = min(_SAME_END * length, max(_AS_SHARP * sharp_ns, levels.CLOCK_TOLERANCE_NS))
    limit = max(math.hypot(same, chance), min(_OFTEN * noise, _OTHER_END * length)) + _FLOOR_NS
    return part_ends(a, b, limit) <= limit


def part_ends(a: Connection, b: Connection, enough_ns: float = _FLOOR_NS) -> float:
    """How far the distances of two connections' ends scatter, or a value that is small enough; endless for a few.

    Every message of the shorter series is matched: sampling may have merged two sizes in the other one.
    """
    few, many = (a, b) if len(a.end) <= len(b.end) else (b, a)
    return float(match_times(few.ends[:_MOST_ENDS], many.ends, enough_ns)[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Bond:
    """How two connections begin after a silence: their distance, its scatter, and the scatter that sampling makes."""

    offset_ns: float
    scatter_ns: float
    silence_ns: float
    noise_ns: float
    num: int


def measure_bond(a: Connection, b: Connection) -> Bond | None:
    """How the second connection begins relative to the first; None if too few messages follow a silence."""
    offset, spread, _ = _compare_starts(a.fresh, b.fresh, 0.0)
    if spread == np.inf:
        return None
    noise = max(a.fresh_noise, b.fresh_noise)
    return Bond(offset_ns=offset, scatter_ns=spread, silence_ns=a.usual_silence, noise_ns=noise, num=len(a.fresh))


def keep_step(bond: Bond) -> bool:
    """Whether two connections begin at the same moment, apart from the effect of sampling."""
    chance = _CHANCE * (1 + _SURE / np.sqrt(max(bond.num, 1))) * bond.noise_ns
    return bool(bond.scatter_ns <= chance + _FLOOR_NS)


def begin_as_one(a: Connection, b: Connection) -> bool:
    """Whether the first messages of many steps leave both connections at one moment, as those of lockstep ranks do.

    By chance some are close to each other, but then equally many are a little further apart.
    """
    if a is b:
        return True
    return bool(_compare_starts(a.fresh, b.fresh, max(_FLOOR_NS, 2 * a.fresh_noise, 2 * b.fresh_noise))[2])


@kernel
def _compare_starts(a: Ints, b: Ints, near: float) -> tuple[float, float, bool]:
    """The usual distance of matching starts, how far it scatters, and whether more lie `near` it than by chance.

    The scatter is infinite where there are too few.
    """
    at, spread = match_times(a, b, _FLOOR_NS)
    if not len(at):
        return 0.0, np.inf, False
    distance = (b[at] - a).astype(np.float64)
    offset = find_median(distance.copy())
    at_once, around = 0, 0
    for one in distance:
        at_once += abs(one - offset) <= near
        around += abs(one - offset) <= 8 * near
    others = max(len(distance) - 1, 1)  # One of them lies at the median in any case.
    shares = (at_once - 1) / others, (around - 1) / others
    return offset, spread, shares[0] >= _AT_ONCE and shares[0] >= _PEAK * shares[1]


@kernel
def match_times(a: Ints, b: Ints, enough_ns: float) -> tuple[Ints, float]:
    """For each message of one connection the matching one of the other, and how far their distances scatter.

    Clocks may differ by more than messages do, so the nearest few differences are tried until one scatters little
    enough; empty where messages are few.
    """
    if min(len(a), len(b)) < _LEAST:
        return np.zeros(0, np.int64), np.inf
    best, least = _match_shifted(a, b, 0, np.zeros(0, np.int64), np.inf)
    for part in (2, 3, 1):  # The record of the matching message may be lost.
        best, least = _match_around(a, b, a[part * len(a) // 4], best, least, enough_ns)
    return best, least


@kernel
def _match_around(a: Ints, b: Ints, middle: int, best: Ints, least: float, enough_ns: float) -> tuple[Ints, float]:
    """The best match with one message of the first kind put onto one of the other near it; what was best so far."""
    after = np.searchsorted(b, middle)
    before, shift = after - 1, 0
    for _ in range(_MOST_SHIFTS):
        if least <= enough_ns:
            break
        if before >= 0 and (after == len(b) or middle - b[before] <= b[after] - middle):
            shift = b[before] - middle
            while before >= 0 and middle + shift - b[before] <= _SAME_SHIFT_NS:
                before -= 1
        elif after < len(b):
            shift = b[after] - middle
            while after < len(b) and b[after] - middle - shift <= _SAME_SHIFT_NS:
                after += 1
        if abs(shift) > _MOST_SKEW * SKEW_NS:
            break
        best, least = _match_shifted(a, b, shift, best, least)
    return best, least


@kernel
def _match_shifted(a: Ints, b: Ints, shift: int, best: Ints, least: float) -> tuple[Ints, float]:
    """The better of a match and that of what is nearest once one clock is put right by a shift."""
    at = nearest(b, a + shift)
    distance = (b[at] - a).astype(np.float64)
    away = np.abs(distance - take_median(distance))
    if (away < least).sum() < len(away) // 2:  # To count takes less time than to find a median.
        return best, least
    spread = find_median(away)
    return (at, spread) if spread < least else (best, least)
