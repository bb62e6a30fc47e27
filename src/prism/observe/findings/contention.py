"""Contention: transfers of one job that are slow only while another job sends over the same link."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from prism.observe import levels
from prism.observe.findings.case import Case, Floats, Ints, culprit
from prism.observe.findings.routes import links_of
from prism.observe.findings.scoring import score_delays
from prism.observe.findings.transfers import Transfers, find_last
from prism.observe.findings.verdicts import Proposal
from prism.observe.findings.windows import Window, find_window
from prism.records.findings import Alternative, Culprit

_SLOWER = 1.3  # times as long while the other sends as when it does not
_FREE = 1.6  # times the pair's own quickest transfers: undisturbed ones take no longer
_ENOUGH = levels.MIN_EVENTS  # transfers with the other, and without
_MOSTLY = 0.7  # share of transfers during the other's that are slow, once the two meet
_TOLD_APART = levels.SHARE_HALF  # by how much this share is larger than that of the others
_HELD_UP = 0.08  # longer than before, as a share, in three steps: such pairs are examined
_MOST_LINKS = 40  # that are examined for one job
_MATTERS = levels.WORTH_TELLING  # of all its steps that a job must lose
_SURE = 0.9  # highest confidence of contention: a third tenant may share the link unseen
_OTHERS = ">*<"  # stands for all other switches


@dataclass(frozen=True)
class Meeting:
    """Durations of one job's transfers over one link, with and without another job on it."""

    link: str
    other: Case
    ratio: float
    apart: float  # share of slow transfers during the other's, less that of the remaining ones
    num_with: int
    depends: float  # nats by which it depends on the other's sending whether a transfer is slow
    extra_s: float
    first_ns: int
    last_ns: int
    same: tuple[str, ...] = ()  # other links at which the same transfers meet


def find_contention(
    cases: Sequence[Case], measured: dict[str, Transfers | None], routes: pl.DataFrame | None = None
) -> dict[str, list[Proposal]]:
    """Findings by job; `measured` are the transfers of each."""
    if len(cases) < 2:
        return {}
    held = {case.job.id: _find_held_up(measured[case.job.id]) for case in cases}
    if not any(held.values()):
        return {}
    paths = _paths_of(routes)
    carried = {c.job.id: _pairs_by_link(c, paths) for c in cases}
    found = {}
    for case in cases:
        transfers = measured[case.job.id]
        if transfers is None or not held[case.job.id]:
            continue
        best = _worst_meeting(case, transfers, held[case.job.id], cases, carried, routes)
        if best is not None:
            pairs = carried[case.job.id][best.link]
            found[case.job.id] = [_propose(case, best, transfers, pairs)]
    return found


def _find_held_up(transfers: Transfers | None) -> dict[int, list[int]]:
    """Rows that take longer in some steps than in others, and in which."""
    if transfers is None:
        return {}
    high = np.nan_to_num(transfers.against_past, nan=0.0) > _HELD_UP
    rows = np.flatnonzero(high.sum(axis=1) >= 3)
    return {int(row): np.flatnonzero(high[row]).tolist() for row in rows}


def _paths_of(routes: pl.DataFrame | None) -> dict[int, set[str]]:
    if routes is None:
        return {}
    return {pair: set(paths) for pair, paths in routes.group_by("pair").agg(pl.col("path").unique()).iter_rows()}


def _pairs_by_link(case: Case, paths: dict[int, set[str]]) -> dict[str, set[int]]:
    """The job's pairs on each link: between switches, between a NIC and its switch, and out of a switch or into it.

    If flows name no path, all traffic from a switch to others is assumed to share its uplinks.
    """
    found: dict[str, set[int]] = defaultdict(set)
    ends = case.messages.select("pair", "src", "dst")
    first = np.flatnonzero(np.diff(ends["pair"].to_numpy().astype(np.int64), prepend=-1))  # They come pair by pair.
    for pair, src, dst in ends[first].iter_rows():
        links = {link for path in paths.get(pair, ()) for link in links_of(path)}
        if (
            not links
            and None not in (case.switches[src], case.switches[dst])
            and case.switches[src] != case.switches[dst]
        ):
            links |= {f"{case.switches[src]}{_OTHERS}", f"{_OTHERS}{case.switches[dst]}"}
        if case.switches[src] is not None:
            links.add(f"{case.address(src)}>{case.switches[src]}")
        if case.switches[dst] is not None:
            links.add(f"{case.switches[dst]}>{case.address(dst)}")
        for link in links:
            found[link].add(pair)
    return found


def _worst_meeting(
    case: Case,
    transfers: Transfers,
    slow_steps: dict[int, list[int]],
    cases: Sequence[Case],
    carried: dict[str, dict[str, set[int]]],
    routes: pl.DataFrame | None,
) -> Meeting | None:
    own, pair = carried[case.job.id], transfers.rows["pair"].to_numpy()
    held = set(pair[list(slow_steps)].tolist())
    shared = [
        (link, other)
        for link, pairs in own.items()
        if pairs & held
        for other in cases
        if other is not case and link in carried[other.job.id]
    ]
    if not shared:
        return None
    last = set(pair[list(find_last(transfers, slow_steps))].tolist())  # They hold up the others.
    shared.sort(key=lambda s: (-len(own[s[0]] & last), s[0].startswith(_OTHERS), s[0]))
    times = _normal_times(transfers, held)
    met = []
    for link, other in shared[:_MOST_LINKS]:
        meeting = _meet(case, times, own[link] & held, link, other, carried[other.job.id][link])
        if meeting is not None:
            came = _came(case, routes, own[link] & held, meeting)
            met.append((round(meeting.apart, 1), came, len(own[link] & last), round(meeting.ratio, 1), meeting))
    if not met:
        return None
    best = max(met, key=lambda m: m[:4])
    same = {m[4].link.replace(_OTHERS, "") for m in met if m[:4] == best[:4]} - {best[4].link.replace(_OTHERS, "")}
    # Choosing among the links and tenants has a cost.
    return replace(best[4], same=tuple(sorted(same)), depends=best[4].depends - math.log(len(shared)))


def _came(case: Case, routes: pl.DataFrame | None, pairs: set[int], meeting: Meeting) -> bool:
    """Whether a pair moved to the link about when the two met there, because it was rehashed."""
    if routes is None:
        return False
    step = int(np.median(case.length_s) * 1e9)
    own = routes.filter(pl.col("pair").is_in(list(pairs)))
    over = pl.format(">{}>", "path").str.contains(f">{meeting.link}>", literal=True)
    near = (pl.col("first_ns") - meeting.first_ns).abs() < step
    came = own.filter(over & near)["pair"].implode()
    return own.filter(pl.col("pair").is_in(came) & (pl.col("first_ns") < meeting.first_ns - step)).height > 0


def _normal_times(transfers: Transfers, pairs: set[int]) -> pl.DataFrame:
    """pair begin_ns end_ns slower: how many times as long each transfer of the pairs takes as when it is quick."""
    known = transfers.paces.filter(pl.col("pair").is_in(list(pairs)) & (pl.col("end_ns") > pl.col("begin_ns")))
    slower = pl.col("pace") / pl.col("pace").quantile(0.1, "lower").over("stream")
    return known.select("pair", "begin_ns", "end_ns", slower.alias("slower"))


def _meet(case: Case, times: pl.DataFrame, pairs: set[int], link: str, other: Case, theirs: set[int]) -> Meeting | None:
    own = times.filter(pl.col("pair").is_in(list(pairs))).sort("begin_ns")
    busy = other.messages.filter(pl.col("pair").is_in(list(theirs))).select("start_ns", "end_ns").sort("start_ns")
    if own.height < 2 * _ENOUGH or busy.is_empty():
        return None
    start, end, slower = (own[c].to_numpy() for c in ("begin_ns", "end_ns", "slower"))
    took = end - start
    beside = _time_beside(start, end, busy["start_ns"].to_numpy(), busy["end_ns"].to_numpy()) / took
    with_other, without = beside > 0.3, beside < 0.02
    if without.sum() < _ENOUGH or np.median(slower[without]) > _FREE:
        return None
    slower = slower / np.median(slower[without])
    # The two may have met without effect before, when one of them took another path.
    stretch = find_window(np.where(with_other, slower > _SLOWER, np.nan), 0.5)
    if stretch is None:
        return None
    inside = slice(stretch.first, stretch.last + 1)
    beside_it, apart_from_it = slower[inside][with_other[inside]], slower[inside][without[inside]]
    if len(apart_from_it) < _ENOUGH:
        apart_from_it = slower[without]
    if min(len(beside_it), len(apart_from_it)) < _ENOUGH:
        return None
    shares = [float((s > _SLOWER).mean()) for s in (beside_it, apart_from_it)]
    ratio = float(np.median(beside_it) / np.median(apart_from_it))
    if ratio < _SLOWER or shares[0] < _MOSTLY or shares[0] - shares[1] < _TOLD_APART:
        return None
    # A step waits for the slowest of its transfers on the link, not for the sum of them all.
    hit = np.zeros(len(slower), np.bool_)
    hit[inside] = with_other[inside]
    extra = own.select("pair", pl.Series("extra", np.where(hit, took * (1 - 1 / slower), 0).clip(0) / 1e9))
    extra_s = float(extra.group_by("pair").agg(pl.col("extra").sum())["extra"].max())  # type: ignore[arg-type]
    if extra_s < _MATTERS * float(case.length_s.sum()):
        return None
    times_hit = start[hit & (slower > _SLOWER)]
    return Meeting(
        link,
        other,
        ratio,
        shares[0] - shares[1],
        len(beside_it),
        # The first and last transfer of the meeting are chosen.
        _depend((len(beside_it), shares[0]), (len(apart_from_it), shares[1])) - 2 * math.log(with_other.sum()),
        extra_s,
        int(times_hit.min()),
        int(times_hit.max()),
    )


def _depend(*parts: tuple[int, float]) -> float:
    """How much likelier slow transfers are if each part has its own share of them than if all have one, in nats."""
    total = sum(num for num, _ in parts)
    mean = sum(num * share for num, share in parts) / total

    def surprise(share: float) -> float:
        return -sum(s * math.log(s) for s in (share, 1 - share) if s > 0)

    return total * surprise(mean) - sum(num * surprise(share) for num, share in parts)


def _time_beside(start: Ints, end: Ints, busy_start: Ints, busy_end: Ints) -> Floats:
    """How long the other job's transfers are under way during each transfer."""
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


def _propose(case: Case, met: Meeting, transfers: Transfers, pairs: set[int]) -> Proposal:
    starts = case.steps["start_ns"].to_numpy()
    first, last = (
        int(np.clip(np.searchsorted(starts, t, side="right") - 1, 0, len(starts) - 1))
        for t in (met.first_ns, met.last_ns)
    )
    switch = met.link.replace(_OTHERS, "")
    over = f"the links of {switch}" if switch != met.link else met.link
    evidence = (
        f"{met.num_with} transfers over {over} take {100 * (met.ratio - 1):.0f} % longer while {met.other.job.id} "
        f"sends over it too; tenants there: {case.job.id}, {met.other.job.id}"
    )
    if met.same:
        evidence += f"; the same transfers meet at {', '.join(met.same)}, which cannot be told apart from it"
    told = case.finding("contention", _name(met.link), first, last, lost_s=met.extra_s, score=_SURE, evidence=evidence)
    rows = np.flatnonzero(transfers.rows["pair"].is_in(list(pairs)).to_numpy()).tolist()
    window = Window(first, last, met.ratio - 1, 1.0)
    seconds = [Alternative(kind="contention", culprit=_name(s), score=1 / (1 + len(met.same))) for s in met.same]
    gain = max(score_delays(transfers.slower, rows, window, 1.0), 0.0) + met.depends
    return Proposal(finding=told, gain=gain, seconds=tuple(seconds))


def _name(link: str) -> Culprit:
    switch = link.replace(_OTHERS, "")
    return culprit("link" if ">" in switch else "switch", switch)
