"""Steps: where each one begins, from the marks of a rhythm and the quiet that every step passes through."""

from __future__ import annotations

import bisect

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe.rhythm import Times

STEPS = pl.Schema({"index": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64})

_BINS = 400  # of one step
_QUIET = 0.25  # a bin is quiet where fewer than this share of the steps send
_MIN_QUIET_BINS = 2
_PAUSE = 0.1  # of a step: silence longer than usual by this much is a pause


def find_steps(messages: pl.DataFrame, voices: pl.DataFrame, marks: Times, period_ns: float) -> pl.DataFrame:
    """Cut one job's messages into steps; each begins where the last synchronisation of the one before has ended.

    `messages` are the job's with pair, size_class, start and end; `voices` carry role and kind.
    """
    known = messages.join(voices.select("pair", "size_class", "role", "kind", "per_step"), on=["pair", "size_class"])
    known = known.filter(pl.col("role") != "rare").sort("start_ns")
    starts, ends = known["start_ns"].to_numpy(), known["end_ns"].to_numpy()
    marks = complete_marks(marks, period_ns, starts)
    if len(marks) < 2 or not len(starts):
        return pl.DataFrame(schema=STEPS)
    edges = np.concatenate([[marks[0] - int(period_ns)], marks, [marks[-1] + int(period_ns)]])
    micro = known["role"].to_numpy() == "pp"
    closing = known["kind"].is_in(["dp", "embedding"]).to_numpy()
    if micro.any() and closing.any():
        boundaries = _after_synchronisation(starts, ends, micro, closing, edges)
    else:
        boundaries = _after_quiet(starts, ends, edges, period_ns)
    return _to_frame(boundaries, starts, ends, period_ns)


def _after_synchronisation(
    starts: Times, ends: Times, micro: NDArray[np.bool_], closing: NDArray[np.bool_], edges: Times
) -> Times:
    """Where pipeline traffic pauses and gradients pass: the end of the last of these messages."""
    micro_starts, micro_ends = starts[micro], np.maximum.accumulate(ends[micro])
    gap_begin, gap_end = micro_ends[:-1], micro_starts[1:]
    real = gap_end > gap_begin
    gap_begin, gap_end = gap_begin[real], gap_end[real]
    far = edges[1] - edges[0]
    gap_begin = np.concatenate([[micro_starts[0] - far], gap_begin, [micro_ends[-1]]])
    gap_end = np.concatenate([[micro_starts[0]], gap_end, [micro_ends[-1] + far]])
    sync_ends = ends[closing]
    # A message that passes within a pause of the pipeline; one longer than the pause began during the pipeline's work.
    gap = np.searchsorted(gap_begin, sync_ends, side="left") - 1
    inside = (gap >= 0) & (sync_ends <= gap_end[np.clip(gap, 0, None)])
    gap, sync_ends = gap[inside], sync_ends[inside]
    if not len(gap):
        return edges[1:-1]
    count = np.bincount(gap, minlength=len(gap_begin))
    last = np.full(len(gap_begin), -(2**62))
    np.maximum.at(last, gap, sync_ends)
    used = np.nonzero(count)[0]
    # Late stages may synchronise while early ones still work; the longest pause nearby is the end of the step.
    period = float(np.median(np.diff(edges)))
    return _apart(last[used], gap_end[used] - gap_begin[used], 0.5 * period)


def _apart(times: Times, weights: Times, distance: float) -> Times:
    """The heaviest times, in order, no two closer than `distance`."""
    kept: list[int] = []
    for i in np.argsort(-weights, kind="stable"):
        time = int(times[i])
        at = bisect.bisect(kept, time)
        if (at == 0 or time - kept[at - 1] > distance) and (at == len(kept) or kept[at] - time > distance):
            kept.insert(at, time)
    return np.array(kept, np.int64)


def _after_quiet(starts: Times, ends: Times, edges: Times, period_ns: float) -> Times:
    """Where every step is quiet longest: the end of the last message before it; the marks where no step is quiet."""
    quiet_begin, quiet_end = find_quiet(starts, ends, edges)
    if quiet_end <= quiet_begin:
        return edges[1:-1]
    middle = edges[:-1] + ((quiet_begin + quiet_end) / 2 * np.diff(edges)).astype(np.int64)
    before = np.searchsorted(starts, middle) - 1
    boundaries = np.maximum.accumulate(ends)[before[before >= 0]]
    boundaries = np.unique(np.minimum(boundaries, middle[before >= 0]))
    kept: Times = boundaries[np.concatenate([[True], np.diff(boundaries) > 0.4 * period_ns])]
    return kept


def complete_marks(marks: Times, period_ns: float, starts: Times) -> Times:
    """Marks in order, without doubles, with those added that a lost record left out."""
    marks = np.unique(marks)
    keep = np.concatenate([[True], np.diff(marks) > 0.4 * period_ns])
    marks = marks[keep]
    typical = len(starts) / max(1, len(marks))
    added: list[int] = []
    for a, b in zip(marks[:-1].tolist(), marks[1:].tolist(), strict=True):
        missing = round((b - a) / period_ns) - 1
        if missing < 1:
            continue
        # In a pause nothing is sent; where a mark was lost the step's other messages are there.
        sent = np.searchsorted(starts, b) - np.searchsorted(starts, a)
        if sent > 0.7 * typical * (missing + 1):
            added.extend(int(a + (b - a) * i / (missing + 1)) for i in range(1, missing + 1))
    return np.sort(np.concatenate([marks, np.array(added, np.int64)]))


def find_quiet(starts: Times, ends: Times, edges: Times) -> tuple[float, float]:
    """The longest part of a step, as fractions from its mark, in which most steps send nothing; it may pass 1."""
    step = np.clip(np.searchsorted(edges, starts, side="right") - 1, 0, len(edges) - 2)
    lengths = np.diff(edges).astype(np.float64)
    begin = (starts - edges[step]) / lengths[step] * _BINS
    until = np.minimum((ends - edges[step]) / lengths[step] * _BINS, 2 * _BINS - 1)
    inside = (begin >= 0) & (begin < _BINS)
    row, first, last = step[inside], begin[inside].astype(np.int64), until[inside].astype(np.int64)
    change = np.zeros((len(edges) - 1, 2 * _BINS + 1), np.int32)
    np.add.at(change, (row, first), 1)
    np.add.at(change, (row, last + 1), -1)
    busy = np.cumsum(change, axis=1) > 0
    covered = busy[:, :_BINS].copy()
    covered[1:] |= busy[:-1, _BINS : 2 * _BINS]  # what a step sends past its end falls into the next
    share = covered[1:-1].mean(axis=0) if len(covered) > 2 else covered.mean(axis=0)
    return _longest_quiet(share < _QUIET)


def _longest_quiet(quiet: NDArray[np.bool_]) -> tuple[float, float]:
    if quiet.all() or not quiet.any():
        return 0.0, 0.0
    twice = np.concatenate([quiet, quiet]).astype(np.int8)
    turns = np.diff(np.concatenate([[0], twice, [0]]))
    begins, finishes = np.nonzero(turns == 1)[0], np.nonzero(turns == -1)[0]
    lengths = finishes - begins
    i = int(np.argmax(lengths))
    if lengths[i] < _MIN_QUIET_BINS:
        return 0.0, 0.0
    begin = begins[i] % _BINS
    return begin / _BINS, (begin + lengths[i]) / _BINS


def _to_frame(boundaries: Times, starts: Times, ends: Times, period_ns: float) -> pl.DataFrame:
    """Steps between boundaries, and the first and last one where all their messages were seen."""
    if len(boundaries) < 2:
        return pl.DataFrame(schema=STEPS)
    at = np.searchsorted(starts, boundaries)
    typical = float(np.median(np.diff(at)))
    # From a boundary to the next message: what passes unseen at the start of a step.
    leads = (starts[at[:-1]] - boundaries[:-1]).clip(0)
    lead = float(np.median(leads))
    # A pause (an evaluation, a checkpoint, a restart) belongs to the step it follows, not to the one that it delays.
    paused = np.nonzero(leads > lead + _PAUSE * period_ns)[0]
    boundaries = boundaries.copy()
    boundaries[paused] = starts[at[paused]] - int(lead)
    begin, end = boundaries[:-1].tolist(), boundaries[1:].tolist()
    if at[0] >= 0.9 * typical:
        begin, end = [int(starts[0]) - int(lead), *begin], [int(boundaries[0]), *end]
    if len(starts) - at[-1] >= 0.9 * typical:
        # The next step's first messages would have closed it; others show how long after as many messages they came.
        seen = len(starts) - at[-1]
        busy = np.maximum.accumulate(ends)
        rest = float(np.median(boundaries[1:] - busy[np.minimum(at[:-1] + seen, at[1:]) - 1]))
        begin, end = [*begin, int(boundaries[-1])], [*end, int(ends.max()) + int(max(rest, 0.0))]
    frame = pl.DataFrame({"start_ns": begin, "end_ns": end}).with_row_index("index")
    return frame.select(pl.col(c).cast(t) for c, t in STEPS.items())
