"""Contention: transfers of one job that are slow while another job sends over the same link, and not otherwise."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import polars as pl

from prism.observe.findings.case import Case, Floats, Ints, culprit
from prism.observe.findings.routes import links_of
from prism.observe.findings.transfers import SlowPair
from prism.records.findings import Finding

_SLOWER = 1.15  # times as long while the other sends as when it does not
_FREE = 1.15  # times the pair's own quick transfers: those that nobody disturbs take no longer
_ENOUGH = 5  # transfers with the other, and without
_MOST_LINKS = 40  # that are looked at for one job
_MATTERS = 0.005  # of all its steps that a job must lose


@dataclass(frozen=True)
class Meeting:
    """How the transfers of one job over one link fare with and without another job on it."""

    link: str
    other: Case
    ratio: float
    num_with: int
    extra_s: float
    first_ns: int
    last_ns: int


def find_contention(
    cases: list[Case], slow: dict[str, list[SlowPair]], routes: pl.DataFrame | None = None
) -> dict[str, list[Finding]]:
    """Findings by job; `slow` are the slow pairs of each."""
    suspects = [c for c in cases if slow.get(c.job.id) and c.steps.height >= 3]
    if len(cases) < 2 or not suspects:
        return {}
    paths = _paths_of(routes)
    carried = {c.job.id: _pairs_by_link(c, paths) for c in cases}
    found = {}
    for case in suspects:
        best = _worst_meeting(case, slow[case.job.id], cases, carried)
        if best is not None:
            found[case.job.id] = [_to_finding(case, best)]
    return found


def _paths_of(routes: pl.DataFrame | None) -> dict[int, set[str]]:
    paths: dict[int, set[str]] = defaultdict(set)
    if routes is not None:
        for pair, path in routes.select("pair", "path").iter_rows():
            paths[pair].add(path)
    return paths


def _pairs_by_link(case: Case, paths: dict[int, set[str]]) -> dict[str, set[int]]:
    """The job's pairs on each link: those between switches, and those between a NIC and its switch."""
    found: dict[str, set[int]] = defaultdict(set)
    for pair, src, dst in case.messages.select("pair", "src", "dst").unique().iter_rows():
        links = {link for path in paths.get(pair, ()) for link in links_of(path)}
        if case.switches[src] is not None:
            links.add(f"{case.address(src)}>{case.switches[src]}")
        if case.switches[dst] is not None:
            links.add(f"{case.switches[dst]}>{case.address(dst)}")
        for link in links:
            found[link].add(pair)
    return found


def _worst_meeting(
    case: Case, slow: list[SlowPair], cases: list[Case], carried: dict[str, dict[str, set[int]]]
) -> Meeting | None:
    bad = {p.pair for p in slow}
    own = carried[case.job.id]
    shared = [
        (len(pairs & bad) - 2 * len(pairs - bad), link, other)
        for link, pairs in own.items()
        for other in cases
        if other is not case and pairs & bad and link in carried[other.job.id]
    ]
    shared.sort(key=lambda s: (-s[0], s[1]))
    times = _normal_times(case, bad)
    met = []
    for score, link, other in shared[:_MOST_LINKS]:
        meeting = _meet(case, times, own[link] & bad, link, other, carried[other.job.id][link])
        if meeting is not None:
            met.append((score, meeting))
    return max(met, key=lambda m: (m[0], m[1].ratio))[1] if met else None


def _normal_times(case: Case, pairs: set[int]) -> pl.DataFrame:
    """pair start_ns end_ns normal: what each transfer of the pairs takes when it is quick."""
    took = (pl.col("end_ns") - pl.col("start_ns")).alias("took")
    known = case.messages.filter(pl.col("pair").is_in(list(pairs)) & (pl.col("role") != "rare"))
    known = known.select("pair", "size_class", "start_ns", "end_ns", took).filter(pl.col("took") > 0)
    return known.with_columns(pl.col("took").quantile(0.1, "lower").over("pair", "size_class").alias("normal"))


def _meet(case: Case, times: pl.DataFrame, pairs: set[int], link: str, other: Case, theirs: set[int]) -> Meeting | None:
    own = times.filter(pl.col("pair").is_in(list(pairs)))
    busy = other.messages.filter(pl.col("pair").is_in(list(theirs))).select("start_ns", "end_ns").sort("start_ns")
    if own.height < 2 * _ENOUGH or busy.is_empty():
        return None
    start, end = own["start_ns"].to_numpy(), own["end_ns"].to_numpy()
    took, normal = own["took"].to_numpy(), own["normal"].to_numpy()
    beside = _time_beside(start, end, busy["start_ns"].to_numpy(), busy["end_ns"].to_numpy()) / np.maximum(took, 1)
    slower = took / normal
    with_other, without = beside > 0.3, beside < 0.02
    if min(with_other.sum(), without.sum()) < _ENOUGH:
        return None
    ratio = float(np.median(slower[with_other]) / np.median(slower[without]))
    share = float((slower[with_other] > _SLOWER).mean())
    if ratio < _SLOWER or float(np.median(slower[without])) > _FREE or share < 0.6:
        return None
    # A step waits for the slowest of its transfers on the link, not for the sum of them all.
    extra = own.select("pair", pl.Series("extra", np.where(with_other, took - normal, 0) / 1e9))
    extra_s = float(extra.group_by("pair").agg(pl.col("extra").sum())["extra"].max())  # type: ignore[arg-type]
    if extra_s < _MATTERS * float(case.length_s.sum()):
        return None
    hit = start[with_other & (slower > _SLOWER)]
    return Meeting(link, other, ratio, int(with_other.sum()), extra_s, int(hit.min()), int(hit.max()))


def _time_beside(start: Ints, end: Ints, busy_start: Ints, busy_end: Ints) -> Floats:
    """How long something of the other is under way during each transfer."""
    reach = np.maximum.accumulate(busy_end)
    opens = np.r_[True, busy_start[1:] > reach[:-1]]
    begins = busy_start[opens]
    ends = reach[np.r_[np.flatnonzero(opens)[1:] - 1, len(reach) - 1]]
    total = np.r_[0, np.cumsum(ends - begins)]

    def busy_until(at: Ints) -> Ints:
        i = np.searchsorted(begins, at, side="right")
        last = np.maximum(i - 1, 0)
        inside = np.where(i > 0, np.minimum(at, ends[last]) - begins[last], 0)
        return np.asarray(total[last] + np.maximum(inside, 0))

    return np.asarray(busy_until(end) - busy_until(start), np.float64)


def _to_finding(case: Case, met: Meeting) -> Finding:
    starts = case.steps["start_ns"].to_numpy()
    first, last = (int(np.clip(np.searchsorted(starts, t, side="right") - 1, 0, len(starts) - 1)) for t in
                   (met.first_ns, met.last_ns))  # fmt: skip
    evidence = (
        f"{met.num_with} transfers over {met.link} take {100 * (met.ratio - 1):.0f} % longer while {met.other.job.id} "
        f"sends over it too; tenants on the link: {case.job.id}, {met.other.job.id}"
    )
    return case.finding("contention", culprit("link", met.link), first, last, lost_s=met.extra_s, score=0.9,
                        evidence=evidence)  # fmt: skip
