"""Repair of boundaries that are missing, misplaced or cut a step in two: every step sends equally many messages."""

from __future__ import annotations

import numpy as np

from prism.kernel import kernel
from prism.observe import levels
from prism.observe.traffic.medians import scatter, take_median
from prism.observe.traffic.period import Times

ONE_MARK = levels.SHARE_MINOR  # of a step: marks that are closer are one
SAME_COUNT = levels.SHARE_SMALL  # of the messages of a step
EXACT = levels.SHARE_MAJORITY  # share of the steps that send exactly as many messages
_MISSING = levels.SHARE_SMALL  # of a step's messages that may be lost at either end of what was observed
_NEAR = levels.ONE_PERCENT  # of the messages of a step


def mend_by_count(marks: Times, start: Times, period_ns: float) -> Times:
    """The repaired marks; or unchanged if they are a period apart and no two steps have equally many messages.

    Transfers that are torn or merged make steps of many numbers of messages.
    """
    mended = mend_marks(marks, start)
    off = [abs(float(take_median(np.diff(some))) / period_ns - 1) if len(some) > 1 else 0.0 for some in (mended, marks)]
    sent = np.diff(np.searchsorted(start, marks))
    usual = float(take_median(sent))
    alike = np.mean(np.abs(sent - usual) <= SAME_COUNT * usual) if len(sent) else 1.0
    return marks if off[1] <= ONE_MARK and (off[0] > ONE_MARK or alike < levels.SHARE_HALF) else mended


def mend_marks(marks: Times, start: Times) -> Times:
    """Marks without those that cut a step in two, and with missing ones: every step sends equally many messages."""
    if len(marks) < 4:
        return marks
    at = np.searchsorted(start, marks)
    usual = float(take_median(np.diff(at)))
    if usual < 2:
        return marks
    kept = _list_whole(at, usual, marks, float(take_median(np.diff(marks))))
    marks, at = marks[kept], at[kept]
    added = [at[:0]]
    for i in np.flatnonzero(np.diff(at) > (2 - 2 * SAME_COUNT) * usual).tolist():
        missing = round((at[i + 1] - at[i]) / usual) - 1
        added.append(at[i] + np.arange(1, missing + 1) * (at[i + 1] - at[i]) // (missing + 1))
    marks = np.sort(np.concatenate([marks, _mark_before(np.concatenate(added), marks, at, start)]))
    mended: Times = _space_out(_settle(marks, start), start)
    return mended


@kernel
def _space_out(marks: Times, start: Times) -> Times:
    """Marks without duplicates, and with one in the middle of an interval as long as two steps.

    Only where it sends as much as two: records that an exporter cuts move marks by a whole step.
    """
    usual = take_median(np.diff(marks)) if len(marks) > 2 else 0.0
    apart = np.ones(len(marks), np.bool_)
    apart[1:] = np.diff(marks) > ONE_MARK * usual
    marks = marks[apart]
    length, sent = np.diff(marks), np.diff(np.searchsorted(start, marks))
    double = (np.abs(length - 2 * usual) < ONE_MARK * usual) & (sent > 1.5 * take_median(sent))
    middle = marks[:-1][double] + length[double] // 2
    return np.sort(np.concatenate((marks, middle)))


@kernel
def _list_whole(at: Times, usual: float, marks: Times, spacing: float) -> Times:
    """Which marks to keep so that none cuts a step in two; `at` are the first messages after them.

    What has few messages but is as long as a step is one: an exporter may have merged or lost some.
    """
    kept = np.zeros(len(at), np.int64)
    num, last = 1, 0
    for i in range(1, len(at)):
        sent = at[i] - at[last]
        onward = float(at[i + 1] - at[last]) if i + 1 < len(at) else np.inf
        # Whichever of two marks comes nearer to a whole step is the right one.
        whole = sent >= (1 - 2 * SAME_COUNT) * usual or abs(marks[i] - marks[last] - spacing) < SAME_COUNT * spacing
        if not whole and abs(onward - usual) < abs(sent - usual):
            continue
        kept[num] = last = i
        num += 1
    return kept[:num]


@kernel
def _settle(marks: Times, start: Times) -> Times:
    """The marks; a misplaced one moves to where it is due, if the others are equally many messages apart."""
    at = np.searchsorted(start, marks)
    sent = np.diff(at)
    usual = int(take_median(sent))
    if usual < 2 or np.mean(sent == usual) < EXACT:
        return marks
    near = np.abs(sent - usual)[np.abs(sent - usual) <= _NEAR * usual]
    slack = int(near.max())
    due = _find_due(at, usual, slack, start)
    moved = due != at
    if due[-1] + usual + slack < len(start):
        due, moved = np.append(due, _widest(start, due[-1] + usual, slack)), np.append(moved, True)
    wanted, moved = due[moved], moved[: len(marks)]
    return np.sort(np.concatenate((marks[~moved], _mark_before(wanted, marks[~moved], at[~moved], start))))


@kernel
def _find_due(at: Times, usual: int, slack: int, start: Times) -> Times:
    """The first messages after marks; for a misplaced mark, the message a usual step after the one before."""
    due = at.copy()
    for i in range(len(at) - 1):
        wanted = due[i] + usual
        if abs(at[i + 1] - wanted) <= _NEAR * usual:
            continue
        # Several marks in a row may be misplaced; the next correct one is a whole number of steps away.
        whole = i + 2 >= len(at)
        for k in range(i + 2, len(at)):
            if abs(at[k] - due[i] - (k - i) * usual) <= slack:
                whole = True
                break
        # What is left over at the very end is not a step.
        if wanted < len(start) and (whole or (i + 3 == len(at) and at[i + 2] - wanted < usual)):
            due[i + 1] = _widest(start, wanted, slack)
    return due


@kernel
def _widest(start: Times, wanted: int, slack: int) -> int:
    """Of the possible messages, the one after the longest gap."""
    first, last = max(1, wanted - slack), min(len(start) - 1, wanted + slack)
    return first + int(np.argmax(np.diff(start[first - 1 : last + 1])))


@kernel
def _mark_before(wanted: Times, marks: Times, at: Times, start: Times) -> Times:
    """Marks before the messages `wanted`: as long after the message before it as others are, or before their own.

    Whichever is steadier: the end of a transfer keeps its distance from where it started, however long silence lasts.
    """
    known = (at > 0) & (at < len(start))
    if not known.any():
        return start[wanted]
    after = marks[known] - start[at[known] - 1]
    before = start[at[known]] - marks[known]
    if scatter(after) < scatter(before):
        return np.asarray(start[wanted - 1] + int(take_median(after)))
    return np.asarray(start[wanted] - int(take_median(before)))


def leave_parts_out(marks: Times, start: Times) -> Times:
    """The marks without a first or last one that leaves only a part of a step between it and its neighbour."""
    sent = np.diff(np.searchsorted(start, marks))
    if len(sent) < 3:
        return marks
    whole = sent >= min((1 - _MISSING) * float(take_median(sent)), float(sent[1:-1].min()))
    first = 0 if whole[0] else 1
    last = len(marks) if whole[-1] else len(marks) - 1
    return marks[first:last]
