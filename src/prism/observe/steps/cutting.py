"""Steps: where each one begins and ends, according to the steadiest clock of a job."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.jobs.grouping import NUMBERS_BYTES
from prism.observe.parallelism.message_streams import find_rows
from prism.observe.parallelism.stages import find_forward_ways
from prism.observe.steps.boundaries import Spans, choose_clock, list_clocks
from prism.observe.steps.gradient_overlap import count_before, study_gradients
from prism.observe.steps.marks import count_periods
from prism.observe.steps.spacing import NEARBY, list_nearby
from prism.observe.traffic.period import Times

STEPS = pl.Schema({"index": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64})

_EVERY_STEP, _ONCE = 0.9, 2.5  # share of the steps that send a number, and how often
_MISSING = 0.15  # of a step's messages that may be lost at either end of what was observed
_PAUSE = levels.SHARE_NEGLIGIBLE  # of a step: silence longer than usual by this much is a pause
_UNUSUAL = levels.MIN_STATISTICS  # times the usual deviation
_LIKE = levels.MIN_EVENTS  # steps that show when messages are sent
_SPREAD = levels.SHARE_SMALL  # of a pause: how much longer it may be for one rank than for another
_OUTAGE = levels.SHARE_HALF  # of a step: silence in the middle of a step that is longer than usual by this much
_DELAYED = levels.SHARE_HALF  # of a pause by which it lengthens what it delays
_SAVING = levels.SHARE_HALF  # of a pause in which a job writes to storage
_GONE = levels.RATIO_LONGER  # steps: a pause that is longer is no part of a step


def cut_steps(
    messages: pl.DataFrame,
    streams: pl.DataFrame,
    period_ns: float,
    saves: pl.DataFrame | None = None,
    clock: str | None = None,
) -> tuple[pl.DataFrame, str | None]:
    """Cut one job's messages into steps: where the last synchronisation of the one before has ended.

    `messages` are the job's with stream, start and end; `streams` carry role and kind; `saves` are the job's writes to
    storage. Also returns the name of the clock that was used; if a clock is named, only that one is used.
    """
    steady = streams.filter(pl.col("role") != "rare")
    row = find_rows(steady, messages["stream"])
    start = messages["start_ns"].to_numpy()
    order = np.flatnonzero(row >= 0)
    order = order[np.argsort(start[order], kind="stable")]
    if len(order) < 4:
        return pl.DataFrame(schema=STEPS), None
    start, end, row = start[order], messages["end_ns"].to_numpy()[order], row[order]
    opening = _open_steps(pl.DataFrame({"start_ns": start, "row": row}), steady)
    num_steps = count_periods(start, period_ns)
    gradients = study_gradients(start, end, row, steady, num_steps, period_ns)
    numbers = _find_numbers(messages, streams, num_steps)
    clocks = list_clocks(start, end, row, steady, period_ns, opening, gradients, numbers, clock)
    chosen = choose_clock(clocks, start, opening)
    if chosen is None or chosen.is_erratic:
        return pl.DataFrame(schema=STEPS), None
    sent = Sent(start=start, end=end, src=steady["src"].to_numpy()[row].astype(np.int64), saves=_join_saves(saves))
    spare = count_before(chosen.marks, start, row, steady, gradients.size) if gradients and chosen.gradients else 0
    return _to_frame(chosen.marks, sent, period_ns, spare), chosen.name


def _find_numbers(messages: pl.DataFrame, streams: pl.DataFrame, num_steps: float) -> Spans:
    """The messages of a few bytes that nearly every step sends once or twice."""
    small = streams.filter(pl.col("bytes") < NUMBERS_BYTES)["stream"]
    own = messages.filter(pl.col("stream").is_in(small.implode())).sort("start_ns")
    own = own.filter(pl.len().over("stream").is_between(_EVERY_STEP * num_steps, _ONCE * num_steps))
    return Spans(start=own["start_ns"].to_numpy(), end=own["end_ns"].to_numpy())


def _join_saves(saves: pl.DataFrame | None) -> Times:
    """When a job begins and stops writing to storage, one row each."""
    if saves is None or saves.is_empty():
        return np.zeros((0, 2), np.int64)
    ordered = saves.sort("start_ns")
    start, reach = ordered["start_ns"].to_numpy(), np.maximum.accumulate(ordered["end_ns"].to_numpy())
    fresh = np.flatnonzero(np.concatenate([[True], start[1:] > reach[:-1]]))
    return np.stack([start[fresh], reach[np.append(fresh[1:], len(reach)) - 1]], axis=1)


def _open_steps(sent: pl.DataFrame, streams: pl.DataFrame) -> NDArray[np.bool_]:
    """Which messages may be the first of a step: all except those of a backward pass, if these are known."""
    pipe = streams["role"].to_numpy() == "pp"
    if not pipe.any():
        return np.ones(sent.height, np.bool_)
    src, dst = (streams[c].to_numpy().astype(np.int64) for c in ("src_host", "dst_host"))
    row = sent["row"].to_numpy()
    own = pl.DataFrame({"stream": row, "start_ns": sent["start_ns"], "src": src[row], "dst": dst[row]})
    hosts = np.arange(int(max(src.max(), dst.max())) + 1)
    forward = find_forward_ways(own.filter(pl.Series(pipe[row])), hosts)
    backward = np.array([(int(b), int(a)) in forward for a, b in zip(src, dst, strict=True)])
    return np.asarray(~(backward & pipe)[row])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What a job sent, in the order of starts."""

    start: Times
    end: Times
    src: Times
    saves: Times  # begin and end of what is written to storage, apart and in order

    def begins_saving(self, begin: Times, end: Times) -> NDArray[np.bool_]:
        """Whether the job begins to write to storage in each stretch of time."""
        first = self.saves[:, 0]
        return np.asarray(np.searchsorted(first, end, side="right") > np.searchsorted(first, begin))

    def share_saving(self, begin: Times, end: Times) -> NDArray[np.float64]:
        """The share of each stretch of time in which the job writes to storage."""
        if not len(self.saves):
            return np.zeros(len(begin))
        written = np.cumsum(np.diff(self.saves, axis=1).ravel())
        total = np.stack([np.concatenate([[0], written[:-1]]), written], axis=1).ravel()
        until = [np.interp(t, self.saves.ravel(), total) for t in (begin, end)]
        return np.asarray((until[1] - until[0]) / np.maximum(end - begin, 1))

    def waits_for_storage(self, begin: Times, end: Times) -> NDArray[np.bool_]:
        """Whether the job writes to storage in each interval and until its end: it continues when all is saved."""
        last = end - (_SPREAD * (end - begin)).astype(np.int64)
        return (self.share_saving(begin, end) >= _SAVING) & (self.share_saving(last, end) >= _SAVING)

    def saves_at_once(self, begin: Times, length: Times) -> NDArray[np.bool_]:
        """Whether the job begins to write to storage after a pause of a length, for about as long: it made a copy."""
        soon = begin + (_SPREAD * length).astype(np.int64)
        return self.begins_saving(begin, soon) & (self.share_saving(soon, begin + length) >= _SAVING)


def _to_frame(boundaries: Times, sent: Sent, period_ns: float, spare: int) -> pl.DataFrame:
    """Steps between boundaries, and the first and last one if all messages but the first `spare` were seen.

    A job that starts need not send these.
    """
    if len(boundaries) < 2:
        return pl.DataFrame(schema=STEPS)
    at = np.searchsorted(sent.start, boundaries)
    typical = round(float(np.median(np.diff(at))))
    if len(at) > 2 and at[-1] < len(sent.start) <= at[-2] + typical:
        boundaries, at = boundaries[:-1], at[:-1]  # What is left is what the last step lacks.
    enough = (1 - _MISSING) * typical
    closed, opened = _leave_pauses(boundaries, at, sent, typical, period_ns)
    resumed = _find_resumptions(at, sent, period_ns)
    begin = opened.tolist()
    for i, k in enumerate(resumed.tolist()[1:]):
        until = at[i + 1] if i + 1 < len(at) else len(sent.start)
        # A step that pauses and continues sends as many messages as any; one that is restarted sends more.
        if k > at[i] and until - k >= enough and until - at[i] - typical >= 0.5 * (k - at[i]):
            begin[i] = _find_start(int(k), int(until), opened, at, sent.start, typical)
    first = int(resumed[0])
    end = closed[1:].tolist()
    if at[0] - first >= enough - spare:
        begin = [_find_start(first, int(at[0]), opened, at, sent.start, typical), *begin]
        end = [int(closed[0]), *end]
    seen = len(sent.start) - max(int(at[-1]), int(resumed[-1]))
    if seen >= enough:
        # The next step's first messages would have closed it; others show how long after as many messages they came.
        busy = np.maximum.accumulate(sent.end)
        rest = float(np.median(closed[1:] - busy[np.minimum(at[:-1] + seen, at[1:]) - 1]))
        end.append(int(busy[-1]) + int(max(rest, 0.0)))
    if end and (seen <= 0 or seen >= enough):
        end[-1] += _measure_last_save(boundaries, closed, at, sent, period_ns)
    frame = pl.DataFrame({"start_ns": begin[: len(end)], "end_ns": end}).with_row_index("index")
    return frame.select(pl.col(c).cast(t) for c, t in STEPS.items())


def _measure_last_save(boundaries: Times, closed: Times, at: Times, sent: Sent, period_ns: float) -> int:
    """How long a save after all messages holds the job up: as long as earlier ones did.

    If none was seen before, it does so if it lasts longer than the usual time until the next message.
    """
    inside = at < len(sent.start)
    saved = sent.begins_saving(boundaries[inside], sent.start[at[inside]])
    follows = sent.saves[:, 0] >= int(sent.end.max())
    if saved.any():
        return int(np.median((closed - boundaries)[inside][saved])) if follows.any() else 0
    usual = float(np.median(sent.start[at[inside]] - boundaries[inside]))
    lasting = np.diff(sent.saves[follows & (sent.saves[:, 1] > int(sent.end.max()) + usual)], axis=1)
    return int(lasting.sum()) if lasting.sum() <= _GONE * period_ns else 0


def _find_resumptions(at: Times, sent: Sent, period_ns: float) -> Times:
    """The message that the last long silence before each boundary, and before the end, ends with; 0 for none.

    After a silence in the middle of a step that is longer than any usual one, a job may have restarted its step.
    """
    gaps = np.concatenate([[0], sent.start[1:] - np.maximum.accumulate(sent.end)[:-1]])
    longest = np.maximum.reduceat(gaps, at[at < len(gaps)])
    long = np.flatnonzero(gaps > float(np.median(longest)) + _OUTAGE * period_ns)
    resumed = np.zeros(len(at) + 1, np.int64)
    resumed[np.searchsorted(at, long, side="right")] = long
    return resumed


def _leave_pauses(boundaries: Times, at: Times, sent: Sent, typical: int, period_ns: float) -> tuple[Times, Times]:
    """When each step closes and the next one opens.

    A pause (an evaluation, a checkpoint) belongs to the step it follows, not to the one that it delays. It holds up
    whatever comes first. Slow compute delays the first message of many steps; a pause is occasional, or comes with what
    is saved. One that is longer than a step belongs to none, since the job did something else, unless it ends when all
    is saved: then the step waits for storage; or the job begins to save when it ends: then it has copied its weights.
    """
    inside = np.flatnonzero(at < len(sent.start))
    leads = (sent.start[at[inside]] - boundaries[inside]).clip(0)
    nearby = list_nearby(leads)
    lead = np.median(nearby, axis=1)
    unsteady = np.median(np.abs(nearby - lead[:, None]), axis=1)
    unsteady = np.maximum(unsteady, np.median(unsteady))  # A few equal values by chance do not make others unusual.
    until = sent.start[at[inside]]
    written = sent.share_saving(boundaries[inside], until) * (until - boundaries[inside])
    # Logs and other files take less time to write.
    saves = sent.begins_saving(boundaries[inside], until) & (written >= _SAVING * (leads - lead))
    late = (saves | (leads - lead > _PAUSE * period_ns)) & (leads - lead > _UNUSUAL * unsteady)
    alone = ~np.concatenate([[False], late[:-1]]) & ~np.concatenate([late[1:], [False]])
    lengthens = np.where(saves, *(_lengthens(leads - lead, boundaries, width)[inside] for width in (NEARBY, 1)))
    chosen = np.flatnonzero(late & lengthens & (saves | alone))
    paused, length = inside[chosen], (leads - lead)[chosen]
    closed, opened = boundaries.copy(), boundaries.copy()
    opened[paused] += length.astype(np.int64)
    held = sent.waits_for_storage(boundaries[paused], opened[paused])
    held |= sent.saves_at_once(opened[paused], length.astype(np.int64))
    gone = length > _GONE * period_ns
    alike = gone & saves[chosen]
    if alike.any():
        held[alike] = held[alike].mean() >= _SAVING  # A job saves in one way; other files may be written at any time.
    gone &= ~held
    spread = np.minimum(_spread_of_pauses(boundaries, at, sent, typical, paused), _SPREAD * length)
    closed[paused] = np.where(gone, boundaries[paused], opened[paused] + spread.astype(np.int64))
    return closed, opened


def _lengthens(excess: NDArray[np.float64], boundaries: Times, nearby: int) -> NDArray[np.bool_]:
    """Whether what arrives late after a boundary delays the next one, too: otherwise only the first message was lost.

    The step is then longer than the shortest of those `nearby` on either side.
    """
    length = np.diff(boundaries)
    found = np.ones(len(boundaries), np.bool_)
    if len(length):
        known = np.pad(length, nearby, constant_values=2**62)
        around = np.lib.stride_tricks.sliding_window_view(known, 2 * nearby + 1)
        beside = np.delete(around, nearby, axis=1).min(axis=1)
        most = excess[: len(length)]
        found[: len(most)] = (length - beside)[: len(most)] >= _DELAYED * most
    return found


def _spread_of_pauses(boundaries: Times, at: Times, sent: Sent, typical: int, paused: Times) -> Times:
    """How much longer the last sender pauses than the first: each resumes on its own, and is seen when it sends."""
    steps = np.flatnonzero(at + typical <= len(sent.start))
    if not len(paused) or not len(steps):
        return np.zeros(len(paused), np.int64)
    first = np.full((len(at), int(sent.src.max()) + 1), np.nan)
    for i in steps.tolist():
        who, where = np.unique(sent.src[at[i] : at[i] + typical], return_index=True)
        first[i, who] = sent.start[at[i] + where] - boundaries[i]
    first = first[:, ~np.isnan(first[steps]).any(axis=0)]
    if not first.shape[1]:
        return np.zeros(len(paused), np.int64)
    spread = np.ptp(first - np.nanmedian(first, axis=0), axis=1)
    return np.asarray(np.nan_to_num(spread[paused] - np.nanmedian(spread)).clip(0), np.int64)


def _find_start(first: int, until: int, opened: Times, at: Times, starts: Times, typical: int) -> int:
    """When the step of the messages `first` to `until` began: by how long after it each of the early ones comes.

    Usual is what it is in the steps nearby. What is missing or too many is so at the beginning.
    """
    more = until - first - typical
    like = np.flatnonzero(at + typical <= len(starts))
    like = like[np.argsort(np.abs(at[like] - first), kind="stable")][:_LIKE]
    like = like[at[like] != first]
    early = np.arange(max(0, -more), max(1 - more, typical // 2))
    if not len(like):
        return int(starts[first])
    usual = np.median(starts[at[like][:, None] + early] - opened[like][:, None], axis=0)
    return int(starts[first]) + int(np.median(starts[first + early + more] - starts[first] - usual))
