"""Answers: how long each endpoint takes to send on after something last ended at it, against its own quick steps.

Whoever waits for another answers as quickly as ever once the wait is over; whoever computes slowly answers late, to
everything. So a slow rank is the one whose *quickest* growing answer has grown. Nothing here depends on what a message
is for: places in a step are compared with the same places of other steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numba
import numpy as np
import polars as pl

from prism.observe import levels
from prism.observe.findings.case import Case, Floats, Ints
from prism.observe.traffic.medians import quantile_groups
from prism.observe.traffic.numbering import group_by_number

_MOST_PLACES = levels.LISTED  # of one stream in a step that are looked at
_LEAST = 0.002  # of a step: shorter answers are delays of the network, not work
_LOW = 0.25  # share of an endpoint's places that need not have grown
_QUICK = levels.SOME  # of the steps count as undisturbed


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """When some messages began, and when anything was done at either end of them.

    Endpoints or hosts have lines of time, one after the other, so that a single search finds what came before.
    """

    place: Ints  # a number that one place in a step of one stream has in all steps
    every: Ints  # how many places of its step it stands for
    step: Ints
    since: Ints  # from the begin of a line to that of the message
    src: Ints
    dst: Ints
    line: Ints  # by endpoint
    done: Ints  # ends of messages on all lines, in order


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How long answers take that can be compared with quick steps: those before what endpoints send, or are sent."""

    cell: Ints  # endpoint and step
    origin: Ints  # what it answers
    gap: Ints
    quick: Floats
    every: Ints


@dataclass(frozen=True)
class Answers:
    """By endpoint and step, nan where not seen: how much longer answers take than in quick steps, as a share."""

    endpoints: Ints
    num_steps: int
    step_ns: float
    moments: Moments

    @cached_property
    def out(self) -> Floats:
        """Before what it sends."""
        return self._find_low(self._sent)

    @cached_property
    def into(self) -> Floats:
        """Before what it is sent."""
        return self._find_low(self._compare(self.moments.dst))

    @cached_property
    def extra_s(self) -> Floats:
        """Of all that it sends, seconds."""
        grown = (self._sent.gap - self._sent.quick) * self._sent.every
        extra: Floats = _sum_answers(self._sent.cell, self._num_cells, self._sent.origin, grown)
        return extra.reshape(len(self.endpoints), self.num_steps) / 1e9

    @property
    def _num_cells(self) -> int:
        return len(self.endpoints) * self.num_steps

    @cached_property
    def _sent(self) -> Growth:
        return self._compare(self.moments.src)

    def _compare(self, side: Ints) -> Growth:
        cell = np.searchsorted(self.endpoints, side) * self.num_steps + self.moments.step
        return _compare_with_past(self.moments, side, cell, _LEAST * self.step_ns)

    def _find_low(self, growth: Growth) -> Floats:
        """The growth that nearly all places share."""
        low: Floats = quantile_groups(growth.gap / growth.quick - 1, growth.cell, self._num_cells, _LOW)
        return low.reshape(len(self.endpoints), self.num_steps)


def measure_answers(case: Case, *, of_hosts: bool = False) -> Answers:
    """The answers of every endpoint of a case, step by step; `of_hosts` counts from what ended anywhere on its host."""
    return Answers(
        endpoints=np.asarray(case.job.endpoints, np.int64),
        num_steps=case.steps.height,
        step_ns=float(np.median(case.length_s)) * 1e9,
        moments=_list_moments(case, _number_hosts(case) if of_hosts else np.arange(len(case.hosts))),
    )


def _number_hosts(case: Case) -> Ints:
    """A number by endpoint that those of one host share."""
    return np.unique(np.array(case.hosts, dtype=str), return_inverse=True)[1].astype(np.int64)


def _list_moments(case: Case, line_of: Ints) -> Moments:
    """The moments of all streams, a few of each in a step; endpoints of one line share their time."""
    columns = ("stream", "src", "dst", "step", "place", "num", "start_ns", "end_ns")
    steady = (pl.col("step") >= 0) & (pl.col("role") != "rare")
    known = case.messages.lazy().filter(steady).select(columns).collect()
    stream, src, dst, step, place, num, start, end = (known[c].to_numpy().astype(np.int64, copy=False) for c in columns)
    begin = int(start.min()) if len(start) else 0
    span = int(end.max(initial=begin)) - begin + 1
    line = line_of * span
    every = np.maximum(1, -(-num // _MOST_PLACES))
    kept = np.flatnonzero(place % every == 0)
    return Moments(
        place=_number_first_places(stream, place)[stream[kept]] + place[kept],
        every=every[kept],
        step=step[kept],
        since=start[kept] - begin,
        src=src[kept],
        dst=dst[kept],
        line=line,
        done=np.sort(np.concatenate([line[side] + (end - begin) for side in (src, dst)])),
    )


def _number_first_places(stream: Ints, place: Ints) -> Ints:
    """By stream the number of its first place, where the places of all streams are numbered one after the other."""
    most = np.zeros(int(stream.max(initial=-1)) + 2, np.int64)
    np.maximum.at(most, stream + 1, place + 1)
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


def _compare_with_past(moments: Moments, side: Ints, cell: Ints, least_ns: float) -> Growth:
    """Gaps since anything was done at one side, where quick steps have some at the same place too."""
    gap = _look_back(moments.done, moments.line[side], moments.since)
    known = np.flatnonzero(gap >= 0)
    place, num_places = moments.place[known], int(moments.place.max(initial=-1)) + 1
    quick = quantile_groups(gap[known].astype(np.float64), place, num_places, _QUICK)
    compared = (quick >= least_ns) & (np.bincount(place, minlength=num_places) >= 3)
    chosen = compared[place]
    known, quick = known[chosen], quick[place[chosen]]
    return Growth(
        cell=cell[known],
        origin=moments.since[known] - gap[known],
        gap=gap[known],
        quick=quick,
        every=moments.every[known],
    )


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
