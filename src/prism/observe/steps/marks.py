"""Marks: moments at which the traffic of a job shows that a step ends or begins, once per period."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.steps.gradient_overlap import BURSTS_APART, CLEAR_GAP, size_up
from prism.observe.steps.spacing import keep_apart
from prism.observe.traffic.change_points import find_changes
from prism.observe.traffic.period import Times

Floats = NDArray[np.float64]

_APART = 0.4  # of a period: marks that are closer belong to one step
_MOST_CLOCKS = levels.SAMPLED_GROUPS
_EVERY_STEP = levels.SHARE_LARGE  # of the steps
_FAR_MORE = levels.RATIO_LONGER  # times as many messages
_MOST_GAPS = levels.MAX_RECORDS  # that change-point detection examines


def count_periods(start: Times, period_ns: float) -> float:
    """How many periods are filled with messages: pauses do not count."""
    some = start[:: max(1, len(start) // 200_000)]
    return float(np.minimum(np.diff(some), period_ns).sum() / period_ns)


def strike_by_kind(
    start: Times, end: Times, row: Times, size: Floats, period_ns: float, kind: str, asked: str
) -> list[tuple[str, Times]]:
    """A clock for every size of messages, and one for all: the end of the last of a group, the start of the first.

    `size` is that of each stream, `row` the stream of each message; where the name of a clock is asked for, others may
    be left out.
    """
    if asked and not asked.startswith(f"{kind} "):
        return []
    found = [(f"{kind} None {name}", marks) for name, marks in group_edges(start, end, period_ns)]
    sizes, num = size_up(size), np.bincount(row, minlength=len(size))
    whole = {k: sizes == k for k in np.unique(sizes[num > 0]).tolist()}
    parts = _part_by_number(whole, num, _EVERY_STEP * count_periods(start, period_ns))
    classes = {str(k): own for k, own in whole.items()} | parts
    some = sorted(((int(num[own].sum()), name) for name, own in classes.items()), key=lambda one: one[0])
    for _, name in some[:_MOST_CLOCKS]:
        if asked and not asked.startswith(f"{kind} {name} "):
            continue
        own = classes[name][row]
        found += [(f"{kind} {name} {edge}", marks) for edge, marks in group_edges(start[own], end[own], period_ns)]
    return found


def is_reduced(clock: str) -> bool:
    """Whether a clock is struck by the last gradients of a step, where parameters of their size are gathered."""
    return clock.startswith("dp ") and clock.endswith("-reduced apart end")


def _part_by_number(whole: dict[int, NDArray[np.bool_]], num: Times, least: float) -> dict[str, NDArray[np.bool_]]:
    """The streams of one size that send far fewer messages than others do, and these others.

    Parameters are gathered twice in a step, gradients of the same size are reduced once, in the backward pass. Streams
    with fewer than the `least` messages do not send in every step.
    """
    parts: dict[str, NDArray[np.bool_]] = {}
    for size, of_size in whole.items():
        own = of_size & (num >= least)
        fewer = own & (_FAR_MORE * num <= num[own].max(initial=0))
        if fewer.any():
            parts |= {f"{size}-reduced": fewer, f"{size}-gathered": own & ~fewer}
    return parts


def group_edges(start: Times, end: Times, period_ns: float) -> list[tuple[str, Times]]:
    """Last ends and first starts of the groups that messages form: one per step where gaps are clear."""
    reach = np.maximum.accumulate(end)
    gaps = start[1:] - reach[:-1]
    expected = max(1, round(count_periods(start, period_ns)))
    if len(gaps) < 2:
        return []
    found = []
    limits = [("apart", CLEAR_GAP * period_ns)]
    if expected < len(gaps):
        limits.append(("longest", float(np.partition(gaps, len(gaps) - expected)[len(gaps) - expected])))
    for name, limit in limits:
        cut = np.flatnonzero(gaps >= max(limit, 1.0))
        cut = cut[keep_apart(reach[cut], gaps[cut], _APART * period_ns)]
        if len(cut) >= 2:
            last = np.append(cut, len(reach) - 1)
            # Where times are rounded, a message may end when it starts: it still comes before the mark.
            found.append((f"{name} end", np.maximum(reach[last], start[last] + 1)))
            found.append((f"{name} start", np.append(start[:1], start[cut + 1])))
    return found


def end_bursts(marks: Times, start: Times, end: Times, period_ns: float) -> Times:
    """Where the burst ends that each mark is in: smaller gradients, of experts or over copies, follow the largest.

    Bursts of several steps may be merged; then they show nothing.
    """
    reach = np.maximum.accumulate(end)
    cut = np.flatnonzero(start[1:] - reach[:-1] > BURSTS_APART * period_ns)
    ends = reach[np.append(cut, len(reach) - 1)]
    moved = ends[np.minimum(np.searchsorted(ends, marks), len(ends) - 1)]
    return moved if len(np.unique(moved)) == len(marks) else marks


def after_changes(start: Times, end: Times, period_ns: float) -> Times:
    """Where Bayesian online change-point detection finds the time between messages change, once per period."""
    if len(start) > _MOST_GAPS:
        return np.zeros(0, np.int64)
    gaps = np.diff(start).astype(np.float64)
    at = np.flatnonzero(find_changes(np.log1p(gaps), np.array([0, len(gaps)])))
    if len(at) < 2:
        return np.zeros(0, np.int64)
    reach = np.maximum.accumulate(end)
    return reach[at][keep_apart(reach[at], gaps[at].astype(np.int64), _APART * period_ns)]


def after_synchronisation(
    start: Times, end: Times, micro: NDArray[np.bool_], closing: NDArray[np.bool_], period_ns: float
) -> Times:
    """Where pipeline traffic pauses and gradients pass: the end of the last of these messages."""
    micro_start, micro_end = start[micro], np.maximum.accumulate(end[micro])
    gap_begin, gap_end = micro_end[:-1], micro_start[1:]
    real = gap_end > gap_begin
    far = int(period_ns)
    gap_begin = np.concatenate([[micro_start[0] - far], gap_begin[real], [micro_end[-1]]])
    gap_end = np.concatenate([[micro_start[0]], gap_end[real], [micro_end[-1] + far]])
    sync_end = end[closing]
    # A message that passes within a pause of the pipeline; one longer than the pause began during the pipeline's work.
    gap = np.searchsorted(gap_begin, sync_end, side="left") - 1
    inside = (gap >= 0) & (sync_end <= gap_end[np.clip(gap, 0, None)])
    gap, sync_end = gap[inside], sync_end[inside]
    if not len(gap):
        return np.zeros(0, np.int64)
    last = np.full(len(gap_begin), -(2**62))
    np.maximum.at(last, gap, sync_end)
    used = np.flatnonzero(last > -(2**62))
    # Late stages may synchronise while early ones still work; the longest pause nearby is the end of the step.
    return last[used][keep_apart(last[used], (gap_end - gap_begin)[used], 0.5 * period_ns)]
