"""Answers: how long each endpoint takes to send on after something last ended at it, against its own quick steps.

Whoever waits for another answers as quickly as ever once the wait is over; whoever computes slowly answers late, to
everything. So a slow rank is the one whose *quickest* growing answer has grown. Nothing here depends on what a message
is for: places in a step are compared with the same places of other steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
import polars as pl

from prism.observe.findings.case import Case, Floats, Ints
from prism.observe.medians import quantile_groups
from prism.observe.numbering import group_by_number

_MOST_PLACES = 24  # of one voice in a step that are looked at
_LEAST = 0.002  # of a step: shorter answers are delays of the network, not work
_LOW = 0.25  # share of an endpoint's places that need not have grown
_QUICK = 0.3  # of the steps count as undisturbed


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """What came before some messages: the gap is since anything last ended at one side of each, -1 for nothing."""

    place: Ints  # a number that one place in a step of one voice has in all steps
    every: Ints  # how many places of its step it stands for
    step: Ints
    start: Ints
    src: Ints
    dst: Ints
    gap_src: Ints
    gap_dst: Ints


@dataclass(frozen=True)
class Answers:
    """By endpoint and step, nan where not seen: how much longer answers take than in quick steps, as a share."""

    endpoints: Ints
    out: Floats  # before what it sends
    into: Floats  # before what it is sent
    extra_s: Floats  # of all that it sends, seconds


def measure_answers(case: Case, *, of_hosts: bool = False) -> Answers:
    """The answers of every endpoint of a case, step by step; `of_hosts` counts from what ended anywhere on its host."""
    endpoints = np.asarray(case.job.endpoints, np.int64)
    gaps = _find_gaps(case, _number_hosts(case) if of_hosts else np.arange(len(case.hosts)))
    step_ns = float(np.median(case.length_s)) * 1e9
    tables = []
    for side, gap in ((gaps.src, gaps.gap_src), (gaps.dst, gaps.gap_dst)):
        cell = np.searchsorted(endpoints, side) * case.steps.height + gaps.step
        low, extra = _against_past(gaps, gap, cell, len(endpoints) * case.steps.height, step_ns)
        tables += [one.reshape(len(endpoints), case.steps.height) for one in (low, extra)]
    return Answers(endpoints, out=tables[0], into=tables[2], extra_s=tables[1] / 1e9)


def _number_hosts(case: Case) -> Ints:
    """A number by endpoint that those of one host share."""
    return np.unique(np.array(case.hosts, dtype=str), return_inverse=True)[1].astype(np.int64)


def _find_gaps(case: Case, line_of: Ints) -> Gaps:
    """The gaps before messages of all voices, a few of each in a step; endpoints of one line share their time."""
    known = case.messages.filter((pl.col("step") >= 0) & (pl.col("role") != "rare"))
    voice, src, dst, step, place, num, start, end = (
        known[c].to_numpy().astype(np.int64, copy=False)
        for c in ("voice", "src", "dst", "step", "place", "num", "start_ns", "end_ns")
    )
    begin = int(start.min()) if len(start) else 0
    span = int(end.max(initial=begin)) - begin + 1
    # One line of time per endpoint or host, one after the other, so that a single search finds what came before.
    done = np.sort(np.concatenate([line_of[e] * span + (end - begin) for e in (src, dst)]))
    every = np.maximum(1, -(-num // _MOST_PLACES))
    kept = np.flatnonzero(place % every == 0)
    first_place = _number_first_places(voice, place)
    since = start[kept] - begin
    return Gaps(
        place=first_place[voice[kept]] + place[kept],
        every=every[kept],
        step=step[kept],
        start=start[kept],
        src=src[kept],
        dst=dst[kept],
        gap_src=_look_back(done, line_of[src[kept]] * span, since),
        gap_dst=_look_back(done, line_of[dst[kept]] * span, since),
    )


def _number_first_places(voice: Ints, place: Ints) -> Ints:
    """By voice the number of its first place, where the places of all voices are numbered one after the other."""
    most = np.zeros(int(voice.max(initial=-1)) + 2, np.int64)
    np.maximum.at(most, voice + 1, place + 1)
    return np.cumsum(most)[:-1]


@numba.njit(cache=True, nogil=True)
def _look_back(done: Ints, line: Ints, since: Ints) -> Ints:
    """How long before each moment of a line something on it was done, -1 for nothing; `done` are all lines in order.

    Messages come pair by pair and in order, so that the search goes on where the last one ended.
    """
    gap = np.empty(len(line), np.int64)
    low = 0  # all that is done before it is no later than what is asked for
    for i in range(len(line)):
        wanted = line[i] + since[i]
        if low and done[low - 1] > wanted:
            low = 0
        reach = 1
        while low + reach <= len(done) and done[low + reach - 1] <= wanted:
            low += reach
            reach *= 2
        while reach:
            if low + reach <= len(done) and done[low + reach - 1] <= wanted:
                low += reach
            reach //= 2
        gap[i] = wanted - done[low - 1] if low and done[low - 1] >= line[i] else -1
    return gap


def _against_past(gaps: Gaps, gap: Ints, cell: Ints, num_cells: int, step_ns: float) -> tuple[Floats, Floats]:
    """By cell (endpoint and step), nan where unseen: growth that nearly all places share, ns beyond quick steps."""
    known = np.flatnonzero(gap >= 0)
    place, num_places = gaps.place[known], int(gaps.place.max(initial=-1)) + 1
    quick = quantile_groups(gap[known].astype(np.float64), place, num_places, _QUICK)
    compared = (quick >= _LEAST * step_ns) & (np.bincount(place, minlength=num_places) >= 3)
    chosen = compared[place]
    known, place, quick = known[chosen], place[chosen], quick[place[chosen]]
    low = quantile_groups(gap[known] / quick - 1, cell[known], num_cells, _LOW)
    grown = (gap[known] - quick) * gaps.every[known]
    return low, _sum_answers(cell[known], num_cells, gaps.start[known] - gap[known], grown)


@numba.njit(cache=True, nogil=True)
def _sum_answers(cell: Ints, num_cells: int, origin: Ints, grown: Floats) -> Floats:
    """By cell the sum of what answers have grown by: all that is sent after one moment is one, of its least growth."""
    order, begin = group_by_number(cell, num_cells)
    total = np.full(num_cells, np.nan)
    for c in range(num_cells):
        rows = order[begin[c] : begin[c + 1]]
        if not len(rows):
            continue
        rows = rows[np.argsort(origin[rows])]
        total[c] = 0.0
        least = grown[rows[0]]
        for k in range(1, len(rows)):
            if origin[rows[k]] != origin[rows[k - 1]]:
                total[c] += least
                least = grown[rows[k]]
            least = min(least, grown[rows[k]])
        total[c] += least
    return total
