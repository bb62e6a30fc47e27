"""Transfers: how long the messages of each pair take in each step, compared with similar pairs and with the past."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.findings.case import Case, number_hosts
from prism.observe.findings.collectives import POINT_TO_POINT
from prism.observe.findings.durations import compare_with_peers, list_rows, measure_durations
from prism.observe.findings.windows import Floats, Window, find_window, quantile_rows, spread_of
from prism.observe.traffic.medians import quantile_groups, take_median

Ints = NDArray[np.int64]

BY_DESIGN = (*POINT_TO_POINT, "ep", "embedding")
"""Kinds whose pairs may differ for good: experts get unequal shares, receivers are busy, the last stage comes first."""

_SLOWER = 0.12  # a transfer this much longer than similar ones
_SURE = levels.SIGMAS_CERTAIN  # standard errors
_MATTERS = levels.TWO_PER_MILLE  # of a step: less extra time than this is ignored
_PEERS = levels.MIN_COMPARED  # pairs with similar messages that make a comparison
_SAME = 0.25  # of a pair's slowdown in a window: less has another cause, or is chance
_AT_ONCE = levels.RATIO_DOUBLE  # a single step is enough where transfers take three times as long
_EARLY = 0.002  # of the longest hop: a hop that ends this much earlier is early
_LASTING = 0.40  # a transfer that was never quicker must be this much longer than similar ones
_LASTING_ALONE = levels.RATIO_DOUBLE  # the same of kinds whose pairs differ by design
_SLOW_PACE = levels.RATIO_LONGER  # times the usual time a byte: a message that is slow where others may not be
_ONE_PACE = 1.8  # upper over lower quartile of the time a byte over one slow link, at most; backward over forward is 2
_OWN_SPREAD = levels.RATIO_LONGER  # times what it is at other times, where that is more
_ANY_PACE = 2.2  # never more
_FEW = levels.MIN_STATISTICS  # messages that show no spread
_WARM_UP = levels.MIN_SAMPLES  # first steps of an observation, which may be those of the job


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowPair:
    """A pair whose transfers took longer than they should, over a window of steps."""

    pair: int
    src: int
    dst: int
    kind: str
    window: Window
    sure: float
    extra_s: float  # a step, on all its transfers
    steady: bool  # in nearly all steps of the window, not now and then
    sound: bool  # no wait for a late rank explains it
    early: bool  # ends before others of its collectives, for which it waits
    even: bool  # many messages, most of those sent meanwhile, take one time a byte
    unpaced: bool = False  # of many messages sent meanwhile not most take one time a byte
    once: bool = False  # of these one in a step takes most of the excess time: it waits
    slow_steps: tuple[int, ...]


@dataclass(frozen=True)
class Transfers:
    """Pairs of one job by kind, and what each of their steps took beyond the usual."""

    rows: pl.DataFrame  # pair src dst kind unit, one row for each row of the tables below
    against_like: Floats  # by row and step; nan where there is nothing to compare with
    against_past: Floats
    extra_s: Floats
    lead_ns: Floats  # how long before the last hop of the same collective it ends
    longest_ns: Floats  # what that one takes
    paces: pl.DataFrame  # pair kind stream step begin_ns end_ns pace: every message without waiting, nanoseconds a byte

    @property
    def slower(self) -> Floats:
        """By row and step the excess over similar transfers or over the past, as a share, which a link determines."""
        return np.fmax(self.against_like, self.against_past)

    @property
    def tells(self) -> NDArray[np.bool_]:
        """By row, whether it shows which link is slow: blocks that pass around a ring advance in lockstep."""
        ring = self.rows["kind"].is_in(POINT_TO_POINT).to_numpy() & (_rows_back(self) == np.arange(self.rows.height))
        return np.asarray(~ring, np.bool_)

    @cached_property
    def ends(self) -> list[tuple[int, int, int, str]]:
        """By row its pair, sender, receiver and kind."""
        return self.rows.select("pair", "src", "dst", "kind").rows()


def measure_transfers(case: Case) -> Transfers | None:
    """Tabulate a case's transfers by pair, kind and step; None where there is nothing to compare."""
    if case.steps.height < 3 or case.messages.is_empty():
        return None
    cells, paces = measure_durations(case)
    if not len(cells.stream):
        return None
    # Without waiting a message is timed by the clocks of several exporters, with waiting by its own alone: both count.
    usual, usual_whole, peers = compare_with_peers(cells)
    enough = (peers >= _PEERS) & (usual > 0)
    like = np.where(enough, np.minimum(cells.took / usual, cells.whole / usual_whole) - 1, np.nan)
    often = np.bincount(cells.stream)[cells.stream] >= 5
    quick = quantile_groups(cells.took, cells.stream, cells.streams.height, 0.25)[cells.stream]
    past = np.where(often, quick, np.nan)
    base = np.fmin(past, np.where(enough, usual, np.nan))
    rows, row = list_rows(cells, number_hosts(case))
    shape = rows.height, case.steps.height
    at = row[cells.stream] * case.steps.height + cells.step

    def total(values: Floats) -> Floats:
        return np.asarray(np.bincount(at, np.nan_to_num(values), shape[0] * shape[1]), np.float64).reshape(shape)

    # Where a pair has messages of several sizes, those that take longest count most.
    weight = cells.num * cells.took
    with np.errstate(invalid="ignore"):
        return Transfers(
            rows,
            against_like=total(like * weight) / total(weight * ~np.isnan(like)),
            against_past=total((cells.took / past - 1) * weight) / total(weight),
            extra_s=total((cells.took - base) * cells.num) / 1e9,
            lead_ns=total((cells.longest - cells.mean) * weight) / total(weight),
            longest_ns=total(cells.longest * weight) / total(weight),
            paces=paces,
        )


def find_slow_pairs(case: Case, transfers: Transfers | None) -> list[SlowPair]:
    """Pairs that are slow compared with similar pairs, or for part of the time compared with their own past."""
    if transfers is None:
        return []
    step_s = float(np.median(case.length_s))
    best: dict[int, SlowPair] = {}
    both_ways = _slower_way_back(transfers, transfers.against_like)
    for excess, partly in ((both_ways, False), (transfers.against_past, True)):
        noise = _noise(excess)
        threshold = max(_SLOWER, 4 * noise)
        differing = _find_differing(transfers, excess)
        most_s = np.where(excess > threshold, transfers.extra_s, -np.inf).max(axis=1, initial=-np.inf)
        for row in np.flatnonzero(most_s >= _MATTERS * step_s).tolist():
            slow = _judge(transfers, excess[row], row, threshold, noise)
            if slow is None or slow.extra_s < _MATTERS * step_s:
                continue
            lasting = slow.steady and slow.window.length > 0.8 * case.steps.height
            least = _LASTING_ALONE if slow.kind in differing else _LASTING
            if (lasting and (partly or slow.window.mean < least)) or (partly and slow.window.last < _WARM_UP):
                continue
            if row not in best or slow.sure > best[row].sure:
                best[row] = slow
    back = _rows_back(transfers)
    sound = {
        r: p.kind not in POINT_TO_POINT or (back[r] != r and _at_one_time(p, best.get(back[r])))
        for r, p in best.items()
    }
    last = find_last(transfers, {r: list(p.slow_steps) for r, p in best.items()})
    even, uneven, many, once = compare_paces(transfers, best)
    return [
        replace(p, sound=sound[r] and r not in uneven, early=r not in last, even=r in even, unpaced=r in many - even,
                once=r in once - even)
        for r, p in best.items()
    ]  # fmt: skip


def _find_differing(transfers: Transfers, excess: Floats) -> set[str]:
    """Kinds whose pairs may differ for good and do: of their pairs not nearly all take what their like take."""
    usual = np.abs(quantile_rows(excess, levels.SHARE_HALF, axis=1))
    kinds = transfers.rows["kind"].to_numpy()
    return {k for k in set(kinds) & set(BY_DESIGN) if np.mean(usual[kinds == k] <= _SLOWER) < levels.SHARE_LARGE}


def compare_paces(transfers: Transfers, best: dict[int, SlowPair]) -> tuple[set[int], ...]:
    """Slow rows whose slow messages are many and of one pace, hops whose are not, rows that send many, some of these.

    The last are rows of which one message takes most of the excess time of a slow step. A late rank has no pace. Hops
    of a collective are slow together: if half of the slow ones have no pace, none has.
    """
    if not best:
        return set(), set(), set(), set()
    steps = pl.DataFrame(
        [(row, p.pair, p.kind, list(p.slow_steps)) for row, p in best.items()],
        {"row": pl.Int64, **{c: transfers.paces[c].dtype for c in ("pair", "kind")}, "step": pl.List(pl.Int32)},
        orient="row",
    )
    paces = transfers.paces.filter(pl.col("pair").is_in(steps["pair"].implode()))
    paces = paces.join(steps.select("row", "pair", "kind"), on=["pair", "kind"])
    paces = paces.join(steps.explode("step").with_columns(slow=True), on=["row", "pair", "kind", "step"], how="left")
    pace, slow = pl.col("pace"), pl.col("slow").fill_null(False)
    usual = pace.filter(~slow).median().fill_null(0).over("row")
    spread = pace.quantile(0.75) / pace.quantile(0.25)
    own = paces.filter(~slow).group_by("row").agg(spread.alias("own"))
    paces = paces.with_columns(usual.alias("usual"), slow.sum().over("row").alias("sent"))
    many = set(paces.filter(pl.col("sent") >= _FEW)["row"].to_list())
    found = paces.filter(slow & (pace > _SLOW_PACE * pl.col("usual")))
    found = found.group_by("row", "sent").agg(spread.alias("spread"), pl.len().alias("num"))
    more = (pace - pl.col("usual")).clip(lower_bound=0)
    largest = paces.filter(slow).group_by("row", "step").agg((more.max() / more.sum()).fill_nan(0.0))
    largest = largest.group_by("row").agg(pl.col("pace").median()).filter(pl.col("pace") >= levels.SHARE_LARGE)
    once = many & set(largest["row"].to_list())
    found = found.join(own, on="row", how="left").filter(pl.col("num") >= _FEW)
    limit = (_OWN_SPREAD * pl.col("own").fill_null(1.0)).clip(_ONE_PACE, _ANY_PACE)
    even = set(found.filter((pl.col("spread") <= limit) & (2 * pl.col("num") > pl.col("sent")))["row"].to_list())
    uneven = set(found.filter(pl.col("spread") > limit)["row"].to_list())
    unit = transfers.rows["unit"].to_list()
    hops = [row for row, p in best.items() if p.kind not in POINT_TO_POINT]
    slow_hops, uneven_hops = (Counter(unit[row] for row in rows) for rows in (hops, uneven.intersection(hops)))
    uneven = {row for row in hops if 2 * uneven_hops[unit[row]] >= slow_hops[unit[row]]}
    return even - uneven, uneven, many, once


def _at_one_time(pair: SlowPair, other: SlowPair | None) -> bool:
    return other is not None and 2 * len({*pair.slow_steps} & {*other.slow_steps}) > len(pair.slow_steps)


def find_last(transfers: Transfers, slow_steps: dict[int, list[int]]) -> set[int]:
    """Of rows that are slow in some steps, those that end last of their collectives then: they hold up the others."""
    members: dict[int, list[int]] = defaultdict(list)
    for row, unit in zip(slow_steps, transfers.rows["unit"].gather(list(slow_steps)), strict=True):
        members[unit].append(row)
    found: set[int] = set()
    for rows in members.values():
        if len(rows) == 1:  # There is no other hop to wait for.
            found.update(rows)
            continue
        steps, times = np.unique([step for row in rows for step in slow_steps[row]], return_counts=True)
        steps = steps[times >= min(0.5 * len(rows), times.max())]
        # Hops of far shorter collectives do not hold up the long ones, nor the reverse.
        longest = np.array([_middle(transfers.longest_ns[row, steps]) for row in rows])
        beside = [row for row, long in zip(rows, longest, strict=True) if long < 0.5 * longest.max()]
        rows = [row for row in rows if row not in beside]
        ends, blur = _compare_ends(transfers, rows, steps.tolist())
        found.update(row for row, end in zip(rows, ends, strict=True) if end >= ends.max() - blur)
        found.update(beside)
    return found


def _compare_ends(transfers: Transfers, rows: list[int], steps: list[int]) -> tuple[Floats, float]:
    """When each row's hops end in these steps against the other steps, over what the longest takes; and how unsure.

    Clocks that differ by a constant shift a row's ends in all steps alike.
    """
    every = transfers.lead_ns[rows]
    every = every - quantile_rows(
        every, 0.5, axis=0
    )  # A delay that all share, such as another connection, distinguishes none of them.
    lead, at_rest = every[:, steps], np.delete(every, steps, axis=1)
    longest = _middle(transfers.longest_ns[rows][:, steps])
    usual = np.array([_middle(values) for values in at_rest])
    ends = (usual - np.array([_middle(values) for values in lead])) / max(longest, 1.0)
    few = np.sqrt(1 / len(steps) + 1 / max(at_rest.shape[1], 1))
    blur = few * spread_of((at_rest - usual[:, None]).ravel()) / max(longest, 1.0)
    return ends, max(_EARLY, 3 * blur)


def _middle(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(take_median(known)) if len(known) else 0.0


def _slower_way_back(transfers: Transfers, excess: Floats) -> Floats:
    """The excess of point-to-point pairs, both ways: one way may be slow by design, where a receiver is mostly busy."""
    return np.minimum(excess, excess[_rows_back(transfers)])


def _rows_back(transfers: Transfers) -> Ints:
    """For each row of a point-to-point pair that of the other direction; itself where there is none."""
    ends = list(transfers.rows.select("src", "dst", "kind").iter_rows())
    row_of = {key: r for r, key in enumerate(ends)}
    back = (row_of.get((d, s, k), r) if k in POINT_TO_POINT else r for r, (s, d, k) in enumerate(ends))
    return np.fromiter(back, np.int64, len(ends))


def _noise(excess: Floats) -> float:
    moves = np.abs(np.diff(excess, axis=1)) / np.sqrt(2)
    known = moves[~np.isnan(moves)]
    return max(float(1.4826 * take_median(known)) if len(known) else 0.0, 0.01)


def _judge(transfers: Transfers, values: Floats, row: int, threshold: float, noise: float) -> SlowPair | None:
    rough = find_window(values, threshold)
    if rough is None:
        return None
    pair, src, dst, kind = transfers.ends[row]
    if kind == "dp":  # Between two a single wait may be as long as any.
        threshold = max(threshold, _SAME * rough.mean)
    window = find_window(values, threshold) or rough
    steady = (window.length >= 2 or window.mean >= _AT_ONCE) and window.share >= 0.7
    known = ~np.isnan(values)
    high = known & (values > threshold)
    if not steady or high.sum() > 1.3 * window.length * window.share:
        # Now and then: a link that flaps, or one that another tenant uses at times.
        at = np.flatnonzero(high)
        if len(at) >= 4:
            first, last = int(at[0]), int(at[-1])
            inside = values[first : last + 1][known[first : last + 1]]
            window = Window(first, last, float(values[high].mean()), float((inside > threshold).mean()))
            steady = False
        elif not steady:
            return None
    sure = window.mean * np.sqrt(high.sum()) / noise
    if sure < _SURE:
        return None
    slow = slice(window.first, window.last + 1)
    extra = float(np.mean(transfers.extra_s[row, slow][high[slow]]))
    slow_steps = tuple(np.flatnonzero(high).tolist())
    return SlowPair(pair=pair, src=src, dst=dst, kind=kind, window=window, sure=float(sure), extra_s=extra,
                    steady=steady, sound=False, early=False, even=False, slow_steps=slow_steps)  # fmt: skip
