"""Whether two sets of pairs belong to one job: their messages keep a fixed offset in time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.jobs.step_counts import find_rest_ends
from prism.observe.traffic.medians import interpolate_quantile, scatter, take_median
from prism.observe.traffic.numbering import nearest
from prism.observe.traffic.period import Times, find_group_starts
from prism.observe.traffic.table import Traffic

_LISTENED = levels.SAMPLED_STREAMS  # pairs of a cluster
_MOST_EVENTS = levels.MAX_MESSAGES
_MIN_EVENTS = levels.MIN_EVENTS
_NUMBERS = math.log(levels.SMALL_MESSAGE_BYTES)
_LONG_GAP = levels.RATIO_FAR  # times the usual one
_SCATTERED = levels.SHARE_MAJORITY  # of the scatter that two unrelated jobs would have
_OVERLAP = levels.SHARE_MINOR  # of the shorter one's time in which both must be there
_MANY = levels.SAMPLED_SIZES  # messages
_IN_PHASE = levels.SHARE_SMALL  # of the time between messages; unrelated jobs are a quarter off
_TOGETHER = levels.SHARE_NEARLY_ALL  # share of the messages
# Of the time between messages: what unrelated jobs reach by chance once in a hundred times.
_AT_ONCE = levels.THREE_PER_MILLE
_LOCKED = levels.THREE_PER_MILLE  # of a step: the distance of two stages of one job varies less
_APART = levels.SHARE_SMALL  # of a step: channels of one collective and ranks of one stage are closer
_SAME_SIZE = levels.SIZE_DIFFERENCE
_STEADY = levels.SHARE_NEGLIGIBLE  # of the usual number of messages of a stream
_FREE = levels.SHARE_HALF  # times the jitter of the time that one or many messages take
_PARTS = (6, 4, 3)  # of all messages that are many
_LATER = levels.MIN_STATISTICS  # steps
_UNMOVED = levels.SHARE_MINOR  # share of the steps that a fault does not move
# Times what a distance changes from step to step; a random walk strays by the root of the steps.
_WALK = levels.RATIO_LONGER
_MIN_DRIFT = levels.SAMPLED_GROUPS  # steps that show a drift
_FEW_SAMPLES = 10.0  # of a message, below which its times are chance
_ERRORS = levels.SIGMAS_UNLIKELY  # standard errors by which totals of samples may differ
_LEAST_ERROR = levels.SHARE_NEGLIGIBLE  # of a total: checkpoints and the like


def are_same_job(traffic: Traffic, a: NDArray[np.int64], b: NDArray[np.int64]) -> bool:
    """Whether two clusters on common hosts belong to one job; without evidence against it they do."""
    if traffic.tenants is not None and traffic.tenants[a[0]] != traffic.tenants[b[0]]:
        first, second = (np.union1d(*(traffic.pairs[c].to_numpy()[p] for c in ("src", "dst"))) for p in (a, b))
        if len(np.intersect1d(first, second)):
            return False  # Their connections were told apart.
    if _send_as_much(traffic, a, b):
        return True
    marks = mark_both(traffic, *(_choose_streams(traffic, pairs) for pairs in _at_common_host(traffic, a, b)))
    first, second = min(marks, key=_looseness)
    if min(len(first), len(second)) < _MIN_EVENTS:
        return True
    begin, end = max(first[0], second[0]), min(first[-1], second[-1])
    shorter = min(first[-1] - first[0], second[-1] - second[0])
    if end - begin < _OVERLAP * shorter:
        return False  # One stopped before the other began.
    few, many = (first, second) if len(first) <= len(second) else (second, first)
    gap = float(take_median(np.diff(many)))
    few = few[(few >= begin - gap / 2) & (few <= end + gap / 2)]
    if len(few) < _MIN_EVENTS:
        return True
    if gap <= 4 * traffic.resolution_ns:
        return True
    distance = (few - many[nearest(many, few)]).astype(np.float64)
    if interpolate_quantile(np.abs(distance), _TOGETHER) < _AT_ONCE * gap:
        return True  # Unrelated jobs do not begin all of their steps at the same moments.
    offset, distance = _centre(distance, gap)
    if float(take_median(np.abs(distance))) > _SCATTERED * gap / 4:
        return False
    scattered = float(take_median(np.abs(distance))) / gap
    if scattered < _LOCKED and _is_answer(traffic, a, b):
        return True
    if abs(offset) > _APART * gap and not _send_alike(traffic, a, b):
        # Replicas of one model send tensors of one size; only its stages, each with its own collectives, may not.
        return scattered < _LOCKED and _only_exchange(traffic, a) and _only_exchange(traffic, b)
    if len(few) >= _MANY and scattered < _IN_PHASE:
        return True  # So many messages do not coincide by chance; within a step ranks may still differ.
    return not (_runs_free(distance, few) and _drifts(distance))


def _send_as_much(traffic: Traffic, a: NDArray[np.int64], b: NDArray[np.int64]) -> bool:
    """Whether pairs whose messages show a few samples each, so that times are chance, sent the same totals."""
    if not traffic.sample_bytes:
        return False
    load, num = (traffic.pairs[c].to_numpy().astype(np.float64) for c in ("bytes", "num"))
    usual = []
    for pairs in (a, b):
        samples = load[pairs] / traffic.sample_bytes
        if float(np.median(samples / num[pairs])) >= _FEW_SAMPLES:
            return False
        usual.append(float(np.mean(samples)))
    error = np.hypot(*(1 / np.sqrt(mean * len(pairs)) for mean, pairs in zip(usual, (a, b), strict=True)))
    return abs(math.log(usual[0] / usual[1])) <= max(_ERRORS * float(error), _LEAST_ERROR)


def _at_common_host(
    traffic: Traffic, a: NDArray[np.int64], b: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The pairs of each that leave a common host; all if there is none. One host has one clock."""
    host = traffic.endpoints["host_id"].to_numpy().astype(np.int64)
    src = host[traffic.pairs["src"].to_numpy()]
    common = np.intersect1d(src[a], src[b])
    if not len(common):
        return a, b
    return a[src[a] == common[0]], b[src[b] == common[0]]


def _centre(distance: NDArray[np.float64], gap: float) -> tuple[float, NDArray[np.float64]]:
    """The usual distance and the remainder; near half a gap, the nearest message changes sides."""
    offset = float(np.angle(np.mean(np.exp(2j * np.pi * distance / gap)))) / (2 * np.pi) * gap
    return offset, (distance - offset + gap / 2) % gap - gap / 2


def _is_answer(traffic: Traffic, a: NDArray[np.int64], b: NDArray[np.int64]) -> bool:
    """Whether one goes from a host to another and the other returns equally many messages and bytes.

    A message uses the rail of its receiver, so return traffic in a pipeline may use other NICs. Nothing
    else in training goes one way only between two hosts.
    """
    host = traffic.endpoints["host_id"].to_numpy().astype(np.int64)
    sides = [
        {*zip(*(host[traffic.pairs[c].to_numpy()[p]].tolist() for c in ("src", "dst")), strict=True)} for p in (a, b)
    ]
    if len(sides[0]) != 1 or sides[1] != {way[::-1] for way in sides[0]}:
        return False
    sent = [[float(traffic.pairs[c].to_numpy()[p].mean()) for c in ("num", "bytes")] for p in (a, b)]
    return all(min(x) > levels.SHARE_LARGE * max(x) for x in zip(*sent, strict=True))


def _send_alike(traffic: Traffic, a: NDArray[np.int64], b: NDArray[np.int64]) -> bool:
    """Whether two clusters send any messages of one size."""
    sizes = [_choose_streams(traffic, pairs).size for pairs in (a, b)]
    return bool((np.abs(sizes[0][:, None] - sizes[1][None, :]) < _SAME_SIZE).any())


def _only_exchange(traffic: Traffic, pairs: NDArray[np.int64]) -> bool:
    """Whether what goes one way between two endpoints goes the other way at the same time, as collectives do."""
    src, dst = (traffic.pairs[c].to_numpy() for c in ("src", "dst"))
    back = pairs[(src[pairs] == dst[pairs[0]]) & (dst[pairs] == src[pairs[0]])]
    if not len(back):
        return False
    start, end = (traffic.messages[c].to_numpy() for c in ("start_ns", "end_ns"))
    own, other = (slice(int(traffic.begin[p]), int(traffic.begin[p + 1])) for p in (pairs[0], back[0]))
    distance = np.abs(start[other][nearest(start[other], start[own])] - start[own])
    return bool(np.mean(distance <= np.maximum(end[own] - start[own], 0)) > _TOGETHER)


def _runs_free(distance: NDArray[np.float64], few: Times) -> bool:
    """Whether the distance varies as much as the steps themselves: then the two clocks are independent.

    Ranks of one job may be independent within a step, but not for long: over many messages the distance does not grow,
    while the time that these take varies ever more.
    """
    if len(distance) < _MIN_EVENTS:
        return False
    own = few.astype(np.float64)
    for later in {1, *(len(few) // part for part in _PARTS)} - {0}:
        passed = own[later:] - own[:-later]
        jitter = float(scatter(passed))
        if float(take_median(np.abs(distance[later:] - distance[:-later]))) <= _FREE * jitter:
            return False
    return True


def _drifts(distance: NDArray[np.float64]) -> bool:
    """Whether two clocks drift apart like a random walk, as two jobs do; in one job noise is new in every step.

    A fault that holds up one of them shifts the distance and back again, in some of the steps only.
    """
    if len(distance) < _MIN_DRIFT:
        return False
    later = min(_LATER, len(distance) // 3)
    near, far = (float(np.quantile(np.abs(distance[by:] - distance[:-by]), _UNMOVED)) for by in (1, later))
    return far > _WALK * near


@dataclass(frozen=True, slots=True)
class StreamSet:
    """Streams, the rarest first: how many messages each has, and the logarithm of their size."""

    stream: NDArray[np.int64]
    num: NDArray[np.int64]
    size: NDArray[np.float64]

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> StreamSet:
        """Some of them."""
        return StreamSet(self.stream[rows], self.num[rows], self.size[rows])


def _choose_streams(traffic: Traffic, pairs: NDArray[np.int64]) -> StreamSet:
    """The steady streams of a few pairs."""
    some = pairs[np.unique(np.linspace(0, len(pairs) - 1, min(len(pairs), _LISTENED)).astype(np.int64))]
    stream = traffic.streams_of(some)
    load, num = traffic.stream_load[stream], traffic.stream_num[stream]
    chosen = StreamSet(stream, num, np.log(np.maximum(load / num, 1.0)))
    large = chosen.size > _NUMBERS
    chosen = chosen.take(large) if large.any() else chosen
    steady = chosen.num >= max(_MIN_EVENTS, _STEADY * float(take_median(chosen.num)))
    chosen = chosen.take(steady) if steady.any() else chosen
    return chosen.take(np.lexsort((chosen.stream, chosen.num)))


def mark_both(traffic: Traffic, a: StreamSet, b: StreamSet) -> list[tuple[Times, Times]]:
    """The times of the rarest messages of one size that both send as often, or of the rarest of each.

    If messages come in groups, the first of each group, once per step; there may be several such choices.
    Hops of one collective begin when their senders arrive but end together, so their ends may be better marks.
    """
    near = np.abs(a.size[:, None] - b.size[None, :]) < _SAME_SIZE
    ratio = a.num[:, None] / b.num[None, :]
    ours, theirs = np.nonzero(near & (ratio > 0.8) & (ratio < 1.25))
    i, k = (int(ours[0]), int(theirs[0])) if len(ours) else (0, 0)
    rows = [traffic.rows_of_stream(int(v))[:_MOST_EVENTS] for v in (a.stream[i], b.stream[k])]
    both: list[tuple[Times, Times]] = []
    for column in ("start_ns", "end_ns"):
        moments = traffic.messages[column].to_numpy()
        single = [np.unique(moments[own]) for own in rows]
        for split in (find_group_starts, _after_long_gaps, _after_rests):
            found = [split(times) for times in single]
            if all(found) and 0.8 < len(found[0][-1]) / len(found[1][-1]) < 1.25:
                both.append((found[0][-1], found[1][-1]))
        if not both or column == "end_ns":
            both.append((single[0], single[1]))
    return both


def _looseness(marks: tuple[Times, Times]) -> float:
    """How far the distance of two sets of marks scatters, as a share of the time between marks."""
    few, many = sorted(marks, key=len)
    if len(few) < 2:
        return np.inf
    gap = float(take_median(np.diff(many)))
    _, distance = _centre((few - many[nearest(many, few)]).astype(np.float64), gap)
    return float(take_median(np.abs(distance))) / gap


def _after_long_gaps(times: Times) -> list[Times]:
    """The messages that follow a silence far longer than usual, where there are enough of them."""
    gaps = np.diff(times)
    wide = np.flatnonzero(gaps > _LONG_GAP * take_median(gaps)) if len(gaps) else np.zeros(0, np.int64)
    return [times[wide + 1]] if len(wide) >= _MIN_EVENTS else []


def _after_rests(times: Times) -> list[Times]:
    """The messages after the pauses that take most of the time, if there are enough of them."""
    after = find_rest_ends(times)
    return [times[after]] if len(after) >= _MIN_EVENTS else []
