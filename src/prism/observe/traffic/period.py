"""The period of messages: the time after which everything that a set of endpoints sends is sent again.

For each stream of similar messages and every possible period, this counts how often a message is followed by another
one exactly a period later, beyond chance. A part of a step repeats some of the streams, a step all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from prism.kernel import kernel
from prism.observe import levels
from prism.observe.traffic.medians import take_median
from prism.observe.traffic.numbering import nearest

Times = NDArray[np.int64]
Floats = NDArray[np.float64]

# Of a period: how far steps may differ; the wider ones only where nothing else fits.
_TOLERANCES = (levels.ONE_PERCENT, levels.SHARE_NEGLIGIBLE, levels.SHARE_SMALL)
_SURE = levels.SHARE_LARGE  # clarity that outweighs what groups of messages say
_CLEAR = levels.SHARE_HALF  # score at which a narrower tolerance is enough
_NEAR_BEST = levels.SHARE_MAJORITY  # of the best score: a pause after every third step leaves two in three
_WHOLE = levels.SHARE_LARGE  # share of the streams that must repeat
# Difference between the share of steps before a pause and that of messages not repeated.
_PAUSE_MATCH = levels.SHARE_SMALL
_GROUP_WEIGHT = levels.SHARE_MAJORITY  # of a stream of group starts beside one of messages
_COMPLETE = levels.SHARE_MAJORITY  # of a stream's own best score that it needs at the period
_MOST_EVENTS = levels.MAX_MESSAGES  # of one stream
_MIN_REPEATS = levels.RATIO_DOUBLE
_JUMP = levels.RATIO_LONGER  # times the next shorter gap: longer ones set groups of messages apart
_EQUAL = levels.SHARE_HALF  # share of the groups with as many messages as is usual; a pause of the job cuts some in two
_LONG_GAP = levels.RATIO_DOUBLE  # times the usual gap
_LEVELS = levels.MIN_EVENTS  # of messages and groups of them
_AGREE = levels.SHARE_MAJORITY  # share of the streams whose groups are as far apart as is usual
_MIN_GROUPS = levels.MIN_EVENTS  # fewer long gaps may be pauses between steps


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedStarts:
    """Start times of similar messages: stream i is times[begin[i]:begin[i + 1]], of the size class klass[i]."""

    times: Times
    begin: NDArray[np.int64]
    klass: NDArray[np.int64]
    importance: Floats  # of each class
    number: Floats  # of messages or groups in a stream of each class, at most
    spacing: Floats  # usual time between the smallest groups of each stream that has any


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """A period, how clearly it shows (0 to 1), and how far steps differ from it."""

    period_ns: float
    clarity: float
    tolerance: float = field(default=_TOLERANCES[0])


def pack_starts(parts: list[Times], klass: list[int], slack_ns: int) -> PackedStarts:
    """PackedStarts from start times in order; messages that start together count once.

    Like messages that come in groups of equal number, such as micro-batches, gradient buckets or layers, add a stream
    of the first of each group.
    """
    kept: list[Times] = []
    kinds: list[int] = []
    spacing: list[float] = []
    for times, kind in zip(parts, klass, strict=True):
        some = times[:_MOST_EVENTS]
        apart = np.concatenate([[True], np.diff(some) > slack_ns]) if len(some) else np.zeros(0, np.bool_)
        single = some[apart]
        groups = find_group_starts(single)
        if groups:
            spacing.append(float(take_median(np.diff(groups[-1]))))
        for level, stream in enumerate([single, *groups]):
            kept.append(stream)
            kinds.append(_LEVELS * kind + level)
    begin = np.concatenate([[0], np.cumsum([len(k) for k in kept])]).astype(np.int64)
    found, number = np.unique(np.array(kinds, np.int64), return_inverse=True)
    joined = np.concatenate(kept) if kept else np.zeros(0, np.int64)
    return PackedStarts(
        times=joined.astype(np.int64),
        begin=begin,
        klass=number.astype(np.int64),
        importance=np.where(found % _LEVELS == 0, 1.0, _GROUP_WEIGHT),
        number=np.array([max(len(k) for k, c in zip(kept, number, strict=True) if c == i) for i in range(len(found))]),
        spacing=np.array(spacing),
    )


def find_group_starts(times: Times) -> list[Times]:
    """The first message of each group, where longer gaps set groups of about equal number apart; groups may nest."""
    if len(times) < 2 * _MIN_GROUPS:
        return []
    gaps = np.diff(times).astype(np.float64)
    return sorted((times[1:][gaps >= least] for least in _list_long_gaps(gaps)), key=len)


@kernel
def _list_long_gaps(gaps: Floats) -> Floats:
    """The lengths of gaps from which on they set groups of about equal number apart, the clearest first."""
    ordered = np.sort(gaps)[::-1]
    most = len(ordered) // 2
    jumps = ordered[: most - 1] / np.maximum(ordered[1:most], 1.0)
    jumps[: _MIN_GROUPS - 2] = 0.0
    usual = take_median(gaps)
    found, num = np.empty(_LEVELS - 1), 0
    for at in np.argsort(-jumps, kind="mergesort")[: _LEVELS - 1]:
        if jumps[at] < _JUMP or ordered[at] < _LONG_GAP * usual:
            continue
        sizes = np.diff(np.flatnonzero(gaps >= ordered[at]))
        size = take_median(sizes)
        if size >= 2 and np.mean(np.abs(sizes - size) <= max(1.0, 0.1 * size)) >= _EQUAL:
            found[num] = ordered[at]
            num += 1
    return found[:num]


def find_rhythm(streams: PackedStarts, slack_ns: int) -> Rhythm | None:
    """The shortest period after which every stream repeats itself; `slack_ns` is how far clocks and times are off."""
    lengths = np.diff(streams.begin)
    if not len(lengths) or lengths.max() < 3:
        return None
    shortest, longest = _range_of(streams, slack_ns)
    if longest <= shortest:
        return None
    best: Rhythm | None = None
    for tolerance in _TOLERANCES:
        grid = _grid(shortest, longest, 0.7 * tolerance)
        score, weight = score_periods(streams, grid, tolerance, float(slack_ns))
        found = _choose(grid, score, weight, streams, tolerance)
        if found is None:
            continue
        if best is None or found.clarity > best.clarity + 0.15:
            best = found
        if best.clarity >= _CLEAR:
            break
    grouped = usual_spacing(streams)
    if grouped is not None and (best is None or _is_doubtful(best, grouped)):
        return Rhythm(period_ns=grouped, clarity=0.5, tolerance=_TOLERANCES[-1])
    if best is None:
        return None
    period = refine_period(streams, best.period_ns, best.tolerance, slack_ns)
    return Rhythm(period_ns=period, clarity=best.clarity, tolerance=best.tolerance)


def usual_spacing(streams: PackedStarts) -> float | None:
    """The time between groups of messages that the streams agree on; it holds where steps grow longer and longer."""
    if len(streams.spacing) < 2:
        return None
    usual = float(take_median(streams.spacing))
    return usual if np.mean(np.abs(streams.spacing / usual - 1) < 0.08) >= _AGREE else None


def _is_doubtful(found: Rhythm, grouped: float) -> bool:
    return found.clarity < _SURE and not 0.3 * grouped < found.period_ns < 1.5 * grouped


def _range_of(streams: PackedStarts, slack_ns: int) -> tuple[float, float]:
    first = streams.times[streams.begin[:-1][np.diff(streams.begin) > 0]].min()
    span = float(streams.times.max() - first)
    shortest = max(20.0 * slack_ns, span / 20_000, 100_000.0)
    return shortest, span / _MIN_REPEATS


def _grid(shortest: float, longest: float, ratio: float) -> Floats:
    grid: Floats = np.exp(np.arange(np.log(shortest), np.log(longest), ratio))
    return grid


def score_periods(streams: PackedStarts, periods: Floats, tolerance: float, slack_ns: float) -> tuple[Floats, Floats]:
    """For every period and size class: the share of messages repeated beyond chance, and how much that can say.

    `periods` are in order, the shortest first.
    """
    num_classes = int(streams.klass.max(initial=-1)) + 1
    score, weight = np.zeros((num_classes, len(periods))), np.zeros((num_classes, len(periods)))
    for i, klass in enumerate(streams.klass.tolist()):
        times = streams.times[streams.begin[i] : streams.begin[i + 1]]
        if len(times) >= 3:
            own = (times - times[0]).astype(np.float64)
            _score_stream(own, np.sort(np.diff(own)), periods, tolerance, slack_ns, score[klass], weight[klass])
    return score.T, weight.T


@kernel
def _score_stream(
    times: Floats, gaps: Floats, periods: Floats, tolerance: float, slack: float, score: Floats, weight: Floats
) -> None:
    """Add what one stream says; `gaps` are those between its times, the shortest first."""
    narrow, covered = 0, 0.0  # gaps that are within reach from both sides, and their sum
    after = np.arange(len(times))  # for each message the first that a period later may have; it moves on
    for p in range(len(periods)):
        reach = tolerance * periods[p] + slack
        if times[-1] < 1.4 * periods[p]:
            break
        while narrow < len(gaps) and gaps[narrow] < 2.0 * reach:
            covered += gaps[narrow]
            narrow += 1
        chance = min(1.0, (covered + (len(gaps) - narrow) * 2.0 * reach) / times[-1])
        if chance > 0.6:
            continue
        least, most = periods[p] - reach, periods[p] + reach
        asked, met = 0, 0
        for i in range(len(times)):
            if times[i] + least > times[-1]:
                break
            asked += 1
            j = after[i]
            while times[j] < times[i] + least:
                j += 1
            after[i] = j
            met += times[j] <= times[i] + most
        if asked >= 2:
            score[p] += met / asked - chance
            weight[p] += 1.0 - chance


def _choose(grid: Floats, score: Floats, weight: Floats, streams: PackedStarts, tolerance: float) -> Rhythm | None:
    """The shortest period that repeats nearly all classes about as well as any does."""
    importance = streams.importance
    clarity_of = np.where(weight > 0, score / np.where(weight > 0, weight, 1.0), 0.0)
    sure = np.minimum(weight, 1.0) * importance
    total = sure.sum(axis=1)
    enough = total >= 0.3 * max(float(total.max()), 1e-9)
    overall = np.where(enough, (clarity_of * sure).sum(axis=1) / np.where(total > 0, total, 1.0), 0.0)
    if not len(overall) or overall.max() < 0.2:
        return None
    own_best = clarity_of.max(axis=0)
    repeats = clarity_of >= _COMPLETE * own_best
    excused = _between_pauses(clarity_of, repeats, streams)
    counts = importance * (own_best >= 0.3) * (weight > 0) * ~excused
    complete = (counts * repeats).sum(axis=1) >= _WHOLE * counts.sum(axis=1)
    asked = sure * ~excused
    known = asked.sum(axis=1)
    among = (clarity_of * asked).sum(axis=1) / np.where(known > 0, known, 1.0)
    fit = (among >= _NEAR_BEST * overall.max()) & complete & enough
    if not fit.any():
        fit = overall >= 0.95 * overall.max()
    first = int(np.argmax(fit))
    # Climb to the top of the peak that the first fitting period lies on.
    while first + 1 < len(grid) and among[first + 1] > among[first]:
        first += 1
    return Rhythm(period_ns=float(grid[first]), clarity=float(among[first]), tolerance=tolerance)


def _between_pauses(clarity_of: Floats, repeats: NDArray[np.bool_], streams: PackedStarts) -> NDArray[np.bool_]:
    """Groups of steps between pauses: they do not repeat, and there are as many of them as steps that have no next one.

    Only where smaller groups do repeat: else what looks like steps and pauses may be parts of a step and steps.
    """
    grouped = streams.importance < 1.0
    smaller = np.where(repeats & grouped, streams.number, np.inf).min(axis=1)
    missed = 1.0 - (clarity_of * repeats).sum(axis=1) / np.maximum(repeats.sum(axis=1), 1)
    share = streams.number[None, :] / smaller[:, None]
    fits = (np.abs(share - missed[:, None]) <= _PAUSE_MATCH) & (share > 0) & (share <= 0.5)
    excused: NDArray[np.bool_] = grouped & ~repeats & fits
    return excused


def refine_period(streams: PackedStarts, period: float, tolerance: float, slack_ns: int) -> float:
    """The median distance of messages that are a period apart."""
    reach = tolerance * period + slack_ns
    distances = []
    for c in range(len(streams.begin) - 1):
        times = streams.times[streams.begin[c] : streams.begin[c + 1]]
        if len(times) < 2:
            continue
        at = nearest(times, times + int(period))
        distance = (times[at] - times).astype(np.float64)
        distances.append(distance[np.abs(distance - period) <= reach])
    joined = np.concatenate(distances) if distances else np.zeros(0)
    return float(take_median(joined)) if len(joined) else period
