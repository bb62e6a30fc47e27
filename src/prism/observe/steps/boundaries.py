"""Step clocks: moments that occur in every step, from what a job sends; the steadiest one that ends a step is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.steps.gradient_overlap import Gradients, size_up
from prism.observe.steps.marks import (
    after_changes,
    after_synchronisation,
    end_bursts,
    group_edges,
    is_reduced,
    strike_by_kind,
)
from prism.observe.steps.mending import EXACT, ONE_MARK, SAME_COUNT, leave_parts_out, mend_by_count
from prism.observe.steps.spacing import list_nearby
from prism.observe.traffic.medians import take_median
from prism.observe.traffic.numbering import nearest
from prism.observe.traffic.period import Times

Floats = NDArray[np.float64]

_AS_STEADY = (levels.RATIO_FAR, levels.ONE_PERCENT)  # times the steadiest clock's jitter, and a share of a step
# Of a step by which a clock may jitter more than the steadiest; one that misses steps jitters more.
_STRAYS = levels.THREE_PER_MILLE
_ERRATIC = levels.SHARE_MINOR  # of a step: a clock that jitters more needs most of its steps to send equally much
_QUIET = levels.SHARE_LARGE  # of the longest silence
_PAUSE = levels.SHARE_SMALL  # of a step
_CLOSE = levels.SHARE_SMALL  # of a step
_DELAYED = levels.SHARE_HALF  # of a pause by which it lengthens the steps around it
_MOST_PAUSES = levels.SHARE_LARGE  # of those after another clock
_NEARLY = 0.93  # of the best clock's share of equal steps that another one needs
_TORN = levels.SHARE_LARGE  # of the messages in equal steps, at least, if counts distinguish clocks
_UPDATE = levels.ONE_PERCENT  # of a step: silence that shows where the weights are updated
_CLOSING = ("synchronisation", "dp", "embedding", "numbers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """When messages begin and end, in the order of starts."""

    start: Times
    end: Times


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A moment of every step, and how much the time between them jitters, as a share of the period."""

    name: str
    marks: Times
    jitter: float
    closing: bool  # whether its marks come from what ends a step: gradients
    complete: float  # share of all messages in intervals with the usual number of messages
    gradients: bool = False  # whether its marks are the last gradients, if these are sent early
    reduced: bool = False  # whether its marks are the last gradients, if equal-sized parameters are gathered
    update: float = 0.0  # of a step: silence before it beyond that before other messages of that size, where none rests

    @property
    def is_erratic(self) -> bool:
        """Whether its marks fit neither time nor message counts, so that they show no steps."""
        return self.jitter > _ERRATIC and self.complete < EXACT

    @property
    def spacing_ns(self) -> float:
        """The usual time between two marks."""
        return float(take_median(np.diff(self.marks)))


def list_clocks(
    start: Times, end: Times, row: Times, streams: pl.DataFrame, period_ns: float, opening: NDArray[np.bool_],
    gradients: Gradients | None, numbers: Spans, only: str | None = None,
) -> list[Clock]:  # fmt: skip
    """All clocks of a job, or `only` the one of a name; `row` is the stream of each message, as a row of `streams`.

    `numbers` are small messages that every step sends, such as the norm of the gradients.
    """
    asked = only or ""
    micro = (streams["role"].to_numpy() == "pp")[row]
    closing = streams["kind"].is_in(["dp", "embedding"]).to_numpy()[row]
    found: list[tuple[str, Times]] = []
    if micro.any() and closing.any() and "synchronisation".startswith(asked):
        found.append(("synchronisation", after_synchronisation(start, end, micro, closing, period_ns)))
    for kind in ("dp", "embedding", "pp", "cp", "ep", "tp"):
        of_kind = streams["kind"].to_numpy() == kind
        if not of_kind.any():
            continue
        own = of_kind[row]
        if own.any():
            found += strike_by_kind(start[own], end[own], row[own], streams["bytes"].to_numpy(), period_ns, kind, asked)
            if kind in ("dp", "pp") and f"change points of {kind}".startswith(asked):
                found.append((f"change points of {kind}", after_changes(start[own], end[own], period_ns)))
    if len(numbers.start) and "numbers ".startswith(asked[:8]):
        found += [(f"numbers {name}", marks) for name, marks in group_edges(numbers.start, numbers.end, period_ns)]
    if micro.any() and not opening.all() and (only is None or only.startswith("backward ")):
        # If a backward pass has the pipeline to itself, its end is the end of a step.
        found += [(f"backward {name}", m) for name, m in group_edges(start[~opening], end[~opening], period_ns)]
    found = [(name, marks) for name, marks in found if only is None or name == only]
    last: list[str] = []
    if gradients is not None and gradients.gathered and gradients.early:
        # The update follows the last gradients, and parameters follow the update.
        last = [f"dp {gradients.size} {name} end" for name in ("apart", "longest")]
        of_dp = (streams["kind"].to_numpy() == "dp")[row]
        found = [(n, end_bursts(m, start[of_dp], end[of_dp], period_ns) if n in last else m) for n, m in found]
    trimmed = [(name, leave_parts_out(mend_by_count(marks, start, period_ns), start)) for name, marks in found]
    silence = np.concatenate([[0], start[1:] - np.maximum.accumulate(end)[:-1]]).clip(0)
    judged = [_judge(name, marks, period_ns, start, silence) for name, marks in trimmed if len(marks) >= 2]
    clocks = [c for c in judged if c is not None]
    # Where steps of a part of the capture are far longer, the time that passes is that of more steps than there are.
    clocks = [c for c in clocks if abs(c.spacing_ns / period_ns - 1) <= ONE_MARK] or clocks
    # Layers that are gathered throughout a step leave no long pause: if there is one, all of kind dp are gradients.
    rests = any(name == "dp None apart end" for name, _ in found)
    last = [] if rests and gradients is not None and gradients.mixed else last
    clocks = [replace(c, gradients=c.name in last, reduced=is_reduced(c.name) and not rests) for c in clocks]
    if rests or micro.any() or not any(c.gradients or c.reduced for c in clocks):
        return clocks
    klass = size_up(streams["bytes"].to_numpy())[row]
    first = [c for c in clocks if c.name.endswith("start") and gradients and c.name.startswith(f"dp {gradients.size} ")]
    times = {c.name: _time_update(c, start, silence, klass) for c in first}
    return [replace(c, update=times.get(c.name, 0.0)) for c in clocks]


def _time_update(clock: Clock, start: Times, silence: Times, klass: Times) -> float:
    """How much longer the silence before a mark usually is than before other messages of that size in a step.

    All layers that are gathered or reduced wait for compute; the first ones of a step also wait for the update.
    """
    at = np.searchsorted(start, clock.marks, side="left")
    if len(at) < 2 or at[-1] >= len(start):
        return 0.0
    like = np.where(klass == np.bincount(klass[at]).argmax(), silence, 0)
    like[at] = 0
    others = np.maximum.reduceat(like, at)[:-1]
    return float(take_median(silence[at[:-1]] - others)) / clock.spacing_ns


def choose_clock(clocks: list[Clock], start: Times, opening: NDArray[np.bool_]) -> Clock | None:
    """The steadiest of the clocks with a mark in every step: marks at varying moments of a step add jitter.

    Of those about as steady it is one of gradients, with the longest silence after it: where a step ends. `opening`
    says which messages may be the first of a step.
    """
    if not clocks:
        return None
    fullest = max(c.complete for c in clocks)
    # If hardly any two steps have equally many messages, exporters split transfers, and counts show nothing.
    full = [c for c in clocks if c.complete >= _NEARLY * fullest] if fullest >= _TORN else clocks
    full = [c for c in full if _opens(c, start, opening)] or full
    full = _without_numbers(full)
    steadiest = min(c.jitter for c in full)
    steady = [c for c in full if c.jitter <= _AS_STEADY[0] * steadiest + _AS_STEADY[1]]
    closing = _before_pauses([c for c in steady if c.closing] or steady, start)
    update = max(c.update for c in closing)
    if update > _UPDATE:
        # Other layers wait for compute: the one call that waits for the update is the first of a step.
        return min((c for c in closing if c.update >= _QUIET * update), key=lambda c: c.jitter)
    last = [c for c in closing if c.gradients and c.jitter <= steadiest + _STRAYS]
    if last:
        return min(last, key=lambda c: c.jitter)
    closing = [c for c in closing if c.reduced] or closing
    silence = [_silence_after(c, start) for c in closing]
    quiet = [c for c, s in zip(closing, silence, strict=True) if s >= _QUIET * max(silence)]
    return min(quiet, key=lambda c: c.jitter)


def _without_numbers(clocks: list[Clock]) -> list[Clock]:
    """The clocks of tensors, if any of them is about as steady: numbers are summed before a step ends, or after.

    A mark far from them is in the middle of a step: numbers that every step sums, such as the norm, follow a whole one.
    """
    numbers = [c for c in clocks if c.name.startswith("numbers")]
    tensors = [c for c in clocks if not c.name.startswith("numbers")]
    tensors = [c for c in tensors if any(_are_close(c, number) for number in numbers)] if numbers else tensors
    steadiest = min(c.jitter for c in clocks)
    if any(c.jitter <= steadiest + _STRAYS for c in tensors):
        return tensors
    return numbers if any(c.jitter <= steadiest + _STRAYS for c in numbers) else clocks


def _are_close(clock: Clock, other: Clock) -> bool:
    """Whether the marks of two clocks are usually at about the same moment of a step."""
    apart = np.abs(other.marks[nearest(other.marks, clock.marks)] - clock.marks)
    return float(take_median(apart)) <= _CLOSE * clock.spacing_ns


def _before_pauses(clocks: list[Clock], start: Times) -> list[Clock]:
    """The clocks after which the job occasionally pauses, if any: an evaluation or a checkpoint ends a step."""
    gaps = np.diff(start, append=start[-1])
    pauses = [_count_pauses(c, start, gaps) for c in clocks]
    most = max(pauses)
    return [c for c, n in zip(clocks, pauses, strict=True) if n >= _MOST_PAUSES * most] if most >= 2 else clocks


def _count_pauses(clock: Clock, start: Times, gaps: Times) -> int:
    """After how many marks, but not their neighbours, silence is longer than usual and than any in a step.

    A pause lengthens the two steps around its mark equally. A misplaced mark is followed by another silence of its
    step and makes one of the two short.
    """
    at = np.searchsorted(start, clock.marks, side="left")
    inside = at < len(start)
    lead = start[at[inside]] - clock.marks[inside]
    longest = np.maximum.reduceat(gaps, at[inside]) if inside.any() else lead
    excess, pause = lead - take_median(lead), (_PAUSE + clock.jitter) * clock.spacing_ns
    length = np.diff(clock.marks)
    longer = np.pad(length - np.median(list_nearby(length), axis=1), 1)
    least, both = (f(longer[:-1], longer[1:])[inside] for f in (np.minimum, np.add))
    late = (excess > pause) & (lead > take_median(longest)) & (least > -pause) & (both > _DELAYED * excess)
    beside = np.concatenate([[False], late[:-1]]) | np.concatenate([late[1:], [False]])
    return int(np.sum(late & ~beside))


def _opens(clock: Clock, start: Times, opening: NDArray[np.bool_]) -> bool:
    """Whether what comes after a mark may be the first message of a step."""
    at = np.searchsorted(start, clock.marks, side="left")
    return bool(np.mean(opening[at[at < len(start)]]) > 0.5) if len(at) and at[0] < len(start) else True


def _silence_after(clock: Clock, start: Times) -> float:
    """The usual time from a mark to the next message of any kind, sooner or later."""
    at = np.searchsorted(start, clock.marks, side="left")
    inside = at < len(start)
    return float(take_median(start[at[inside]] - clock.marks[inside])) if inside.any() else 0.0


def _judge(name: str, marks: Times, period_ns: float, start: Times, silence: Times) -> Clock | None:
    """How steadily marks follow each other, without pauses; `silence` is the silence before each message."""
    spans = np.diff(marks).astype(np.float64)
    usual = float(take_median(spans))
    if abs(usual / period_ns - 1) > 0.6:
        return None
    spans -= _measure_pauses(np.searchsorted(start, marks), silence)
    # What jitters is the mark, not the step: a late mark makes one step long and the next one short.
    turns = np.abs(np.diff(spans)) if len(spans) > 1 else np.abs(spans - period_ns)
    jitter = float(take_median(turns) + 0.25 * np.mean(np.minimum(turns, 0.1 * usual))) / usual
    complete = _share_like(np.diff(np.searchsorted(start, marks), prepend=0, append=len(start)))
    return Clock(name=name, marks=marks, jitter=jitter, closing=name.startswith(_CLOSING), complete=complete)


def _share_like(sent: Times) -> float:
    """The share of messages in intervals with the usual count: steps differ in length, but not in that.

    What was observed begins and ends in the middle of a step, so less than one at either end says nothing.
    """
    usual = take_median(sent[1:-1])
    like = np.abs(sent - usual) <= SAME_COUNT * usual
    inside = like | (sent > usual)
    inside[1:-1] = True
    return float(sent[like].sum() / max(sent[inside].sum(), 1))


def _measure_pauses(at: Times, silence: Times) -> Floats:
    """How much longer than usual the longest silence is between each two marks."""
    ends = np.minimum(at, len(silence) - 1)
    longest = np.maximum.reduceat(silence, ends)[:-1] if len(ends) > 1 else np.zeros(0, np.int64)
    return np.asarray((longest - take_median(longest)).clip(0), np.float64) if len(longest) else np.zeros(0)
