"""Answers: how long each endpoint takes to send on after something last ended at it, against its own quick steps.

Whoever waits for another answers as quickly as ever once the wait is over; whoever computes slowly answers late, to
everything. So a slow rank is the one whose *quickest* growing answer has grown. Nothing here depends on what a message
is for: places in a step are compared with the same places of other steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from prism.observe.findings.case import Case, Floats, Ints
from prism.observe.medians import quantile_groups
from prism.observe.numbering import number_keys

_MOST_PLACES = 24  # of one voice in a step that are looked at
_LEAST = 0.002  # of a step: shorter answers are delays of the network, not work
_LOW = 0.25  # share of an endpoint's places that need not have grown
_QUICK = 0.3  # of the steps count as undisturbed


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
    shape = len(endpoints), case.steps.height
    out, into, extra = (np.full(shape, np.nan) for _ in range(3))
    gaps = _find_gaps(case, _number_hosts(case) if of_hosts else np.arange(len(case.hosts)))
    step_ns = float(np.median(case.length_s)) * 1e9
    for side, table in (("src", out), ("dst", into)):
        known = _against_past(gaps, side, step_ns)
        at = np.searchsorted(endpoints, known[side].to_numpy()), known["step"].to_numpy()
        table[at] = known["low"].to_numpy()
        if side == "src":
            extra[at] = known["extra"].to_numpy() / 1e9
    return Answers(endpoints, out, into, extra)


def _number_hosts(case: Case) -> Ints:
    """A number by endpoint that those of one host share."""
    return np.unique(np.array(case.hosts, dtype=str), return_inverse=True)[1].astype(np.int64)


def _find_gaps(case: Case, line_of: Ints) -> pl.DataFrame:
    """voice src dst step place num gap_src gap_dst: nanoseconds since anything last ended at either side."""
    known = case.messages.filter((pl.col("step") >= 0) & (pl.col("role") != "rare"))
    known = known.select("voice", "src", "dst", "step", "place", "num", "start_ns", "end_ns")
    start, end = known["start_ns"].to_numpy(), known["end_ns"].to_numpy()
    begin = int(start.min()) if len(start) else 0
    span = int(end.max()) - begin + 1 if len(end) else 1
    ends = [line_of[known[side].to_numpy()] for side in ("src", "dst")]
    # One line of time per endpoint or host, one after the other, so that a single search finds what came before.
    done = np.sort(np.concatenate([e * span + (end - begin) for e in ends]))
    every = np.maximum(1, -(-known["num"].to_numpy() // _MOST_PLACES))
    kept = known["place"].to_numpy() % every == 0
    chosen = known.filter(pl.Series(kept))
    gaps = []
    for e in ends:
        line = e[kept] * span
        at = np.searchsorted(done, line + (start[kept] - begin), side="right") - 1
        before = done[np.maximum(at, 0)]
        gaps.append(np.where((at >= 0) & (before >= line), line + (start[kept] - begin) - before, -1))
    return chosen.with_columns(
        pl.Series("every", every[kept]), pl.Series("gap_src", gaps[0]), pl.Series("gap_dst", gaps[1])
    )


def _against_past(gaps: pl.DataFrame, side: str, step_ns: float) -> pl.DataFrame:
    """endpoint step low extra: the growth that nearly all places share, and nanoseconds beyond quick steps."""
    gap = pl.col(f"gap_{side}")
    known = gaps.filter(gap >= 0)
    place = known["place"].to_numpy()
    number, found = number_keys(known["voice"].to_numpy().astype(np.int64) * (int(place.max(initial=0)) + 1) + place)
    quick = quantile_groups(known[f"gap_{side}"].to_numpy().astype(np.float64), number, len(found), _QUICK)
    seen = np.bincount(number, minlength=len(found))
    compared = (quick >= _LEAST * step_ns) & (seen >= 3)
    known = known.with_columns(pl.Series("quick", quick[number])).filter(pl.Series(compared[number]))
    # What it sends at once to several others is one answer.
    grown = (gap - pl.col("quick")) * pl.col("every")
    extra = known.group_by(side, "step", pl.col("start_ns") - gap).agg(grown.min().alias("grown"))
    extra = extra.group_by(side, "step").agg(pl.col("grown").sum().alias("extra"))
    low = known.group_by(side, "step").agg((gap / pl.col("quick") - 1).quantile(_LOW, "lower").alias("low"))
    return low.join(extra, on=[side, "step"])
