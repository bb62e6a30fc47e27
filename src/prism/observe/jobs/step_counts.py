"""The length of a step by counting: every stream sends equally many messages per step, however long the step takes.

If steps grow longer or vary widely, no period repeats, but the counts do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prism.kernel import kernel
from prism.observe import levels
from prism.observe.traffic.medians import take_median
from prism.observe.traffic.period import (
    Floats,
    PackedStarts,
    Rhythm,
    Times,
    find_group_starts,
    find_rhythm,
    pack_starts,
    usual_spacing,
)

_LEAST_STEPS = levels.MIN_EVENTS
_MOST_MARKS = levels.MAX_MESSAGES
_ALIKE = levels.SHARE_SMALL  # of the usual count; at least exactly equal
_REGULAR = levels.SHARE_MAJORITY  # share of the intervals with the usual count that a stream of marks needs
_NEARLY = levels.SHARE_LARGE  # of the most regular marks
_FEW = levels.MIN_STATISTICS  # of a period that a capture holds
_CLEAR = 0.9  # clarity of a rhythm that counting does not contradict
_CLEARER = levels.SHARE_MINOR  # than that of the whole
_HALF_CLEAR = levels.SHARE_LARGE  # clarity of a rhythm of one half, and of one that counting may contradict
_SAME_LENGTH = 1.12  # times: two estimates of one length
_SIMILAR_LENGTH = 1.4  # times: steps differ in length, so two such estimates may both be right
_MOST_LONGER = levels.RATIO_DOUBLE  # times: a fault lengthens a step by at most this
_OTHER_LENGTH = levels.SIZE_DIFFERENCE  # of a step: steps that differ by more are of another length
_MOST_CHANGES = levels.MIN_SAMPLES  # of length: when a fault begins and ends
_MOST_OF = levels.SHARE_LARGE  # of the messages that the groups between rests hold
_MOST = levels.SHARE_HALF  # of the writes to storage
_ODD = levels.SHARE_SMALL  # of the time between rests that they may be off
_OPTIMIZER = levels.SHARE_MINOR  # of a micro-batch: by how much one that ends a step is longer, at most
_MOST_PARTS = levels.SAMPLED_MESSAGES
_LEAST_GAIN = levels.SHARE_HALF  # nats for each part
_LEAST_SCALE = levels.THREE_PER_MILLE  # of the logarithm of the time between parts
_STRAY = levels.SHARE_SMALL  # of the parts: lost records


def _are_same(one: float, other: float) -> bool:
    """Whether two estimates are of one length."""
    return 1 / _SAME_LENGTH < one / other < _SAME_LENGTH


def _are_similar(one: float, other: float) -> bool:
    """Whether two estimates may be of one length, as steps differ."""
    return 1 / _SIMILAR_LENGTH < one / other < _SIMILAR_LENGTH


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStarts:
    """Start times of similar messages of one pair, and the class of their size."""

    times: Times
    klass: int


def choose_period(
    streams: PackedStarts, single: list[StreamStarts], heavy: list[StreamStarts], pauses: Times, slack_ns: int
) -> float | None:
    """The length of a step; `streams` are made of the `single` ones, `pauses` are when the job wrote to storage."""
    period = _find_period(streams, single, heavy, pauses, slack_ns)
    whole = _join_parts(period, single) if period is not None else None
    if period is None or whole is None or _is_between_pauses(whole, period, pauses):
        return period
    return whole


def _join_parts(period_ns: float, single: list[StreamStarts]) -> float | None:
    """The total time of the parts of a step: the last micro-batch is longer, because the optimizer follows it.

    The time from part to part is predicted far better by that of the same part a step before than by the last one. A
    pause after every few steps does that too, but is longer than an optimizer takes and makes no part shorter.
    """
    marked = []
    for stream in single:
        for marks in [stream.times, *find_group_starts(stream.times), stream.times[find_rest_ends(stream.times)]]:
            some = marks[:_MOST_PARTS]
            if len(some) > 2 and _are_same(float(take_median(some[2:] - some[:-2])), 2 * period_ns):
                marked.append(some)
    lags = range(1, 1 + min((len(some) // _LEAST_STEPS for some in marked), default=0))
    if len(lags) < 4:
        return None  # Two parts must repeat twice.
    between = [np.log(np.diff(some).clip(1)) for some in marked]
    # The parts of a step repeat from the first step on; pauses that a fault brings repeat only since it began.
    halves = [half for one in between for half in np.array_split(one, 2)]
    nats = np.array([_code_lags(half, len(lags)) for half in halves]).reshape(len(between), 2, -1)
    gain = np.median(nats[:, :, :1] - nats, axis=0).min(axis=0)
    gain = np.minimum(gain[: len(lags) // 2], gain[1::2])  # What repeats after a step repeats after two.
    if gain.max() < _LEAST_GAIN:
        return None
    parts = 1 + int(np.argmax(gain >= _NEARLY * gain.max()))
    # Two of the differences between neighbours in a step are those of its longest part.
    differ = float(np.median([np.quantile(np.abs(np.diff(one)), 1 - 1 / parts) for one in between]))
    shorter = np.quantile([np.median(one) - np.quantile(one, 0.5 / parts) for one in between], _NEARLY)
    if differ > _OPTIMIZER and shorter < np.log(_SIMILAR_LENGTH):
        return None
    return float(np.median([take_median(some[parts:] - some[:-parts]) for some in marked]))


@kernel
def _code_lags(between: Floats, most: int) -> Floats:
    """By lag up to the most the code length of each value, in nats, if the one so many before predicts it.

    Residuals have a Laplace distribution with a few outliers.
    """
    nats = np.empty(most)
    for lag in range(1, most + 1):
        off = np.abs(between[lag:] - between[:-lag])
        scale = max(take_median(off) / np.log(2.0), _LEAST_SCALE)
        density = (1 - _STRAY) / (2 * scale) * np.exp(-off / scale) + _STRAY / 2 * np.exp(-off)
        nats[lag - 1] = -np.log(density).mean()
    return nats


def _find_period(
    streams: PackedStarts, single: list[StreamStarts], heavy: list[StreamStarts], pauses: Times, slack_ns: int
) -> float | None:
    """The period that repeats in time, unless it is unclear and counting the heavy streams says otherwise."""
    rhythm = find_rhythm(streams, slack_ns)
    grouped, rests = usual_spacing(streams), time_rests(single)
    saved = rests is not None and _is_between_pauses(rests, rests, pauses)
    rests = None if saved else rests
    if rests is not None and grouped is not None and _are_same(rests, grouped) and holds_most(rests, single):
        # Groups between pauses are steps; longer periods are saves, or steps of two lengths.
        return rhythm.period_ns if rhythm is not None and _are_same(rhythm.period_ns, rests) else rests
    nested = _time_nested(single) if rests is not None else None
    if nested is not None and (rhythm is None or rhythm.clarity < _CLEAR):
        return nested  # Nested groups of several classes are steps, however rarely other traffic repeats.
    if nested is not None and rhythm is not None and rhythm.period_ns > _SIMILAR_LENGTH * nested:
        counted = count_steps(heavy)
        if counted is not None and _are_same(counted, nested):
            return nested  # Steps of two lengths repeat only at a common multiple of both.
    if rhythm is not None and grouped is not None and not _are_same(rhythm.period_ns, grouped):
        uneven = _time_uneven(single)
        if uneven and _are_same(grouped, float(np.median(uneven))) and not _is_between_pauses(grouped, grouped, pauses):
            return grouped  # The same short and long distances repeat in every group.
    halves = find_halves(single, slack_ns) if rhythm is not None else None
    if rhythm is not None and halves is not None:
        told = halves.tolerance > _OTHER_LENGTH
        if told and rhythm.period_ns > _SIMILAR_LENGTH * halves.period_ns:
            return halves.period_ns
        if halves.clarity > max(rhythm.clarity + _CLEARER, _CLEAR):
            return halves.period_ns
    if rhythm is not None and rhythm.clarity < (_CLEAR if _is_rare(rhythm.period_ns, single) else _HALF_CLEAR):
        # A few long stretches look alike by chance. Micro-batches also pause and count alike, but in groups.
        agreed = _rest_and_count(single, heavy) if usual_spacing(streams) is None else None
        if agreed is not None and rhythm.period_ns > _SIMILAR_LENGTH * agreed:
            return agreed
    period = rhythm.period_ns if rhythm is not None else None
    if period is not None and grouped is not None and period > _SIMILAR_LENGTH * grouped:
        # Several steps and a checkpoint repeat, too.
        period = grouped if _is_between_pauses(period, grouped, pauses) else period
    if period is not None and rests is not None and period > rests and _is_between_pauses(period, rests, pauses):
        shorter = [one for one in _time_uneven(single) if _SIMILAR_LENGTH * one < period]
        common = [one for one in shorter if sum(_are_same(one, other) for other in shorter) > 0.5 * len(shorter)]
        period, rhythm = min(common, default=None), None
    if saved and period is not None and _is_between_pauses(period, period, pauses):
        period, rhythm = None, None  # Several steps and a checkpoint repeat; how many they are is counted.
    if rests is not None and (period is None or _SIMILAR_LENGTH * period < rests):
        return rests
    if rhythm is not None and (rhythm.clarity >= _CLEAR or _is_grouped(period, streams)):
        return period
    if period is not None and rests is not None and _are_same(period, rests):
        return period  # Some pause as long as the period: what is counted in between are parts, such as micro-batches.
    repeated = [] if period is None or _is_rare(period, single) else _time_uneven(single)
    if period is not None and any(_are_same(period, one) for one in repeated):
        return period  # What is counted are parts: the same short and long distances repeat in every step.
    counted = count_steps(heavy)
    if counted is not None and any(_are_same(counted, one) for one in _rests_by_class(single)):
        return counted  # The pauses of some streams match the counts of others.
    if rests is not None and (counted is None or _SIMILAR_LENGTH * counted < rests):
        return period if period is not None and period < _SIMILAR_LENGTH * rests else rests
    if counted is None:
        return period
    if period is not None and _are_similar(period, counted):
        return period
    return counted


def _time_uneven(single: list[StreamStarts]) -> list[float]:
    """The time after which the distances between messages repeat, of each stream that has several in a step.

    A pause after every few steps makes two changes, from short to long and back; parts of a step make more.
    """
    found = []
    for stream in single:
        times = stream.times[:_MOST_MARKS]
        between = np.log(np.diff(times).clip(1))
        change = np.flatnonzero(np.abs(np.diff(between)) > np.log(_SIMILAR_LENGTH))
        least = int(_MOST_CHANGES * len(between) / max(len(change), 1))  # messages that make so many changes
        repeated = []
        for lag in range(least, len(between) // _MOST_CHANGES):
            own = change[change + lag + 1 < len(between)]
            like = np.abs(between[lag:] - between[:-lag]) <= np.log(_SIMILAR_LENGTH)
            repeated.append(float(np.mean(like[own] & like[own + 1])) if len(own) >= _FEW else 0.0)
        if repeated and max(repeated) > 0:
            lag = least + int(np.argmax(np.array(repeated) >= _CLEAR * max(repeated)))
            found.append(float(take_median(times[lag:] - times[:-lag])))
    return found


def _rest_and_count(single: list[StreamStarts], heavy: list[StreamStarts]) -> float | None:
    """The time between marks that divide all streams evenly, if it is also the time between long pauses."""
    rests, counted = time_rests(single), count_steps(heavy)
    if rests is None or counted is None or not _are_same(counted, rests):
        return None
    return counted


def holds_most(period_ns: float, single: list[StreamStarts]) -> bool:
    """Whether most classes send in each period; a part of a step, such as a layer, leaves others out."""
    begin, end = (int(f(stream.times[i] for stream in single)) for f, i in ((min, 0), (max, -1)))
    most: dict[int, int] = {}
    for stream in single:
        most[stream.klass] = max(most.get(stream.klass, 0), len(stream.times))
    return float(np.median(list(most.values()))) * period_ns >= _MOST * (end - begin)


def _is_rare(period_ns: float, single: list[StreamStarts]) -> bool:
    """Whether a capture holds only a few of a period."""
    spans = [float(stream.times[-1] - stream.times[0]) for stream in single if len(stream.times)]
    return max(spans, default=0.0) < _FEW * period_ns


def find_halves(single: list[StreamStarts], slack_ns: int) -> Rhythm | None:
    """The rhythm of both parts of a capture, where these may differ; of the whole, a common multiple repeats.

    The parts are halves or, where steps change their length inside one of these, a third and the rest.
    """
    ends = [(stream.times[0], stream.times[-1]) for stream in single if len(stream.times)]
    first, span = min(begin for begin, _ in ends), max(end for _, end in ends) - min(begin for begin, _ in ends)
    for share in (span // 2, span // 3, 2 * span // 3):
        found = _find_parts(single, first + share, slack_ns)
        if len(found) == 2:
            break
    else:
        return None
    periods = [rhythm.period_ns for rhythm in found]
    longer = max(periods) / min(periods)
    if longer > _MOST_LONGER:
        return None
    usual = float(np.sqrt(periods[0] * periods[1]))
    return Rhythm(period_ns=usual, clarity=min(r.clarity for r in found), tolerance=longer - 1)


def _find_parts(single: list[StreamStarts], cut: int, slack_ns: int) -> list[Rhythm]:
    """The clear rhythms of what comes before a moment and of what comes after it."""
    found = []
    for before in (True, False):
        parts = [stream.times[(stream.times < cut) == before] for stream in single]
        rhythm = find_rhythm(pack_starts(parts, [stream.klass for stream in single], slack_ns), slack_ns)
        if rhythm is None or rhythm.clarity < _HALF_CLEAR:
            break
        found.append(rhythm)
    return found


def _is_grouped(period_ns: float | None, streams: PackedStarts) -> bool:
    """Whether groups of messages follow each other with a period; slow steps may repeat better than others."""
    grouped = usual_spacing(streams)
    return grouped is not None and period_ns is not None and _are_similar(period_ns, grouped)


def _is_between_pauses(period_ns: float, step_ns: float, pauses: Times) -> bool:
    """Whether a period is that of writing to storage; writes closer than about a step belong to one checkpoint."""
    if len(pauses) < 2:
        return False
    apart = np.diff(pauses)
    first = np.concatenate([pauses[:1], pauses[1:][apart > 0.5 * min(step_ns, float(apart.max()))]])
    longer = np.abs(np.log(np.diff(first) / period_ns))
    # Files that are written at random times are occasionally this far apart.
    return len(longer) > 0 and float(np.mean(longer < np.log(_SAME_LENGTH))) >= _MOST


def time_rests(streams: list[StreamStarts]) -> float | None:
    """The time between the pauses that take most of a stream's time; of the class with the longest pauses.

    Every stream sends in every step, so a step is no shorter. Pauses between steps do not take most of the time.
    """
    return max(_rests_by_class(streams), default=None)


def _rests_by_class(streams: list[StreamStarts]) -> list[float]:
    """The usual time between pauses of every class that has any: of its stream with most messages.

    Lost or torn records leave fewer of a size, with longer pauses in between, which may be alike by chance.
    """
    found: dict[int, tuple[int, float]] = {}
    for stream in streams:
        own = (len(stream.times), time_rests_of(stream.times))
        found[stream.klass] = max(found.get(stream.klass, own), own)
    return [rest for _, rest in found.values() if rest > 0]


def _time_nested(streams: list[StreamStarts]) -> float | None:
    """The time between pauses, if several classes agree on it and one or more send a group of messages in between.

    Layers and micro-batches pause alike, too, but there every class sends once.
    """
    rests = _rests_by_class(streams)
    if len(rests) < 2 or not _are_same(max(rests), min(rests)):
        return None
    grouped = [np.diff(find_rest_ends(stream.times)) for stream in streams if time_rests_of(stream.times) > 0]
    return float(np.median(rests)) if max(float(take_median(sent)) for sent in grouped) > 1 else None


@kernel
def time_rests_of(times: Times) -> float:
    """The time between long pauses of one stream; 0 if their times and message counts are irregular."""
    after = find_rest_ends(times)
    if len(after) < _LEAST_STEPS:
        return 0.0
    between, sent = np.diff(times[after]), np.diff(after)
    usual, num = float(take_median(between)), float(take_median(sent))
    steady = float(take_median(np.abs(between - usual))) <= _ODD * usual
    whole = num > 1 and float(np.mean(np.abs(sent - num) <= _ALIKE * num)) >= _NEARLY
    return usual if steady or whole else 0.0


@kernel
def find_rest_ends(times: Times) -> Times:
    """Which messages of a stream end a pause; half of the time passes in such pauses and longer ones.

    None if groups of equal size between pauses leave many messages out, as with steps of two lengths.
    """
    gaps = np.diff(times)
    if len(gaps) < _LEAST_STEPS:
        return np.zeros(0, np.int64)
    longest = np.sort(gaps)[::-1]
    half = longest[np.searchsorted(np.cumsum(longest), 0.5 * float(longest.sum()))]
    after = 1 + np.flatnonzero(gaps >= 0.5 * half)
    whole = len(after) > 1 and take_median(np.diff(after)) * len(after) >= _MOST_OF * len(times)
    return after if whole else np.zeros(0, np.int64)


def count_steps(streams: list[StreamStarts]) -> float | None:
    """The usual time between marks that divide all streams into equal parts, for the most frequent such marks.

    A stream that sends several times in a step cuts others into parts without messages, one that sends every other
    step leaves marks out: of those that fit, the one with the most marks sends once.
    """
    found: list[tuple[int, float, float]] = []
    for stream in streams:
        others = [s for s in streams if s is not stream]
        found += [
            (len(marks), _cut_evenly(marks, others), float(take_median(np.diff(marks))))
            for marks in [stream.times, *find_group_starts(stream.times)]
            if _LEAST_STEPS <= len(marks) <= _MOST_MARKS
        ]
    best = max((regular for _, regular, _ in found), default=0.0)
    fitting = [one for one in found if one[1] >= max(_REGULAR, _NEARLY * best)]
    return max(fitting)[2] if fitting else None


def _cut_evenly(marks: Times, others: list[StreamStarts]) -> float:
    """The share of intervals that hold as many messages as is usual: of the middle stream of each class, on average.

    None if a few intervals hold most of what a busy stream sends: then marks come in bursts, once in a step.
    """
    shares: dict[int, list[float]] = {}
    for stream in others:
        sent = np.diff(np.searchsorted(stream.times, marks))
        usual = float(take_median(sent))
        if sent.sum() >= len(sent) and usual * len(sent) < _MOST * sent.sum():
            return 0.0
        even = float(np.mean(np.abs(sent - usual) <= _ALIKE * usual)) if usual >= 1 else 0.0
        shares.setdefault(stream.klass, []).append(even)
    return float(np.mean([take_median(np.array(one)) for one in shares.values()])) if shares else 0.0
