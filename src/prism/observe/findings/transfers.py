"""Transfers: how long the messages of each pair take in each step, against their like and against their own past."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe.findings.case import Case
from prism.observe.findings.windows import Floats, Window, find_window, quantile_rows, spread_of
from prism.observe.medians import median_groups, quantile_groups, take_median
from prism.observe.numbering import begin_together, number_again, number_calls

Ints = NDArray[np.int64]

POINT_TO_POINT = ("pp", "cp")
"""Kinds whose messages run at their own pace; those of collectives end together."""

BY_DESIGN = (*POINT_TO_POINT, "ep")
"""Kinds whose pairs may differ for good: experts get unequal shares of tokens, receivers are busy here and there."""

_SLOWER = 0.12  # a transfer this much longer than its like
_SURE = 6.0  # standard errors
_MATTERS = 0.002  # of a step: less extra time than this is nobody's trouble
_PEERS = 4  # pairs with like messages that make a comparison
_LIKE = 0.03  # sizes that differ by less, as a share, are alike
_USUAL = 0.25  # of like pairs this share is surely not slow
_UNHINDERED = 0.1  # share of a pair's messages of a step that surely wait for nobody
_AT_ONCE = 2.0  # a single step is enough where transfers take three times as long
_EARLY = 0.002  # of the longest hop: one that is done so much before it
_LASTING = 0.40  # a transfer that was never quicker must be this much longer than its like
_LASTING_ALONE = 2.0  # the same of kinds whose pairs differ by design
_SLOW_PACE = 1.5  # times the usual time a byte: a message that is slow in a step where others may not be
_ONE_PACE = 1.8  # upper over lower quartile of the time a byte over one slow link, at most; backward over forward is 2
_OWN_SPREAD = 1.5  # times what it is at other times, where that is more
_ANY_PACE = 2.2  # never more
_FEW = 8  # messages that show no spread
_WARM_UP = 3  # first steps of an observation, which may be those of the job


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
    early: bool  # done before others of its collectives, which hold it up
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
    paces: pl.DataFrame  # pair kind voice step begin_ns end_ns pace: every message without waiting, nanoseconds a byte

    @property
    def tells(self) -> NDArray[np.bool_]:
        """By row, whether it shows which link is slow: blocks that pass around a ring keep step with each other."""
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
    table, paces = _by_step(case)
    if table.is_empty():
        return None
    # Without waiting a message is timed by the clocks of several exporters, with waiting by its own alone: both count.
    like = pl.min_horizontal(pl.col("took") / pl.col("usual"), pl.col("whole") / pl.col("usual_whole")) - 1
    enough = (pl.col("peers") >= _PEERS) & (pl.col("usual") > 0)
    table = table.with_columns(
        pl.when(enough).then(like).alias("like"), (pl.col("took") / pl.col("past") - 1).alias("own")
    )
    base = pl.min_horizontal("past", pl.when(enough).then("usual"))
    merged = table.group_by("pair", "src", "dst", "kind", "step").agg(
        # Where a pair has messages of several sizes, those that take longest count most.
        (pl.col("like") * pl.col("weight")).sum() / pl.col("weight").filter(pl.col("like").is_not_null()).sum(),
        (pl.col("own") * pl.col("weight")).sum() / pl.col("weight").sum(),
        ((pl.col("took") - base) * pl.col("num")).sum().alias("extra"),
        *((pl.col(c) * pl.col("weight")).sum() / pl.col("weight").sum() for c in ("lead", "longest")),
    )
    rows = merged.select("pair", "src", "dst", "kind").unique().sort("pair", "kind").with_row_index("row")
    merged = merged.join(rows.select("row", "pair", "kind"), on=["pair", "kind"])
    shape = rows.height, case.steps.height
    at = merged["row"].to_numpy(), merged["step"].to_numpy()
    tables = []
    for column, empty in (("like", np.nan), ("own", np.nan), ("extra", 0.0), ("lead", np.nan), ("longest", np.nan)):
        values = np.full(shape, empty)
        values[at] = merged[column].fill_null(empty).fill_nan(empty).to_numpy()
        tables.append(values)
    units = _units(rows)
    rows = rows.with_columns(pl.Series("unit", units))
    like_excess, past_excess, extra, lead, longest = tables
    return Transfers(rows, like_excess, past_excess, extra / 1e9, lead, longest, paces)


def _by_step(case: Case) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Durations less waiting (pair src dst kind step num took usual past peers weight) and the pace of each message."""
    known = case.messages.filter((pl.col("role") != "rare") & (pl.col("step") >= 0) & (pl.col("kind") != "unknown"))
    named = known["voice"].to_numpy().astype(np.int64)
    voice, found = number_again(named, int(named.max(initial=-1)) + 1)
    sizes = median_groups(known["bytes"].to_numpy().astype(np.float64), voice, len(found))
    known = known.with_columns(pl.Series("like_size", _number_sizes(sizes)[voice]))
    step = known["step"].to_numpy()
    number, found = number_again(voice * case.steps.height + step, len(found) * case.steps.height)
    # A message between two that finds its receiver busy waits; of several in a step, one or the other does not.
    each, longest = _leave_waiting_out(known, voice)
    between_two = np.zeros(len(found), np.bool_)
    between_two[number] = known["kind"].is_in(POINT_TO_POINT).to_numpy()
    quick = quantile_groups(each, number, len(found), _UNHINDERED)
    count = np.maximum(np.bincount(number, minlength=len(found)), 1)
    whole = (known["end_ns"] - known["start_ns"]).to_numpy().astype(np.float64)
    mean, most, whole = (np.bincount(number, values, len(found)) / count for values in (each, longest, whole))
    # A link that flaps slows some of a step's collectives, which a median would not show.
    took = np.where(between_two, quick, mean)
    first = known.select("pair", "size_class", "step", "src", "dst", "kind", "like_size", "num", "place")
    table = (
        first.filter(pl.col("place") == 0)
        .drop("place")
        .with_columns(
            pl.Series("took", took),
            pl.Series("lead", most - mean),
            pl.Series("longest", most),
            pl.Series("whole", np.where(between_two, quick, whole)),
        )
    )
    table = table.filter(pl.col("took") > max(0, 10 * case.resolution_ns))
    peers = ["kind", "like_size", "step"]
    own = ["pair", "size_class"]
    begin = pl.col("end_ns") - pl.Series(each).cast(pl.Int64)
    paces = known.select(
        "pair", "kind", "voice", "step", begin.alias("begin_ns"), "end_ns", pace=pl.Series(each) / pl.col("bytes")
    )
    table = table.with_columns(
        pl.col("took").quantile(_USUAL, "lower").over(peers).alias("usual"),
        pl.col("whole").quantile(_USUAL, "lower").over(peers).alias("usual_whole"),
        pl.col("pair").n_unique().over(peers).alias("peers"),
        pl.when(pl.len().over(own) >= 5).then(pl.col("took").quantile(0.25, "lower").over(own)).alias("past"),
        (pl.col("num") * pl.col("took")).alias("weight"),
    )
    return table, paces


def _number_sizes(sizes: Floats) -> Ints:
    """By voice a number that those with messages of nearly equal size share, over all pairs."""
    order = np.argsort(sizes, kind="stable")
    like = np.empty(len(sizes), np.int64)
    like[order] = np.cumsum(np.diff(np.log(sizes[order] + 1), prepend=np.inf) > _LIKE)
    return like


def _leave_waiting_out(known: pl.DataFrame, voice: Ints) -> tuple[Floats, Floats]:
    """What each message took, and the longest hop of its collective; `voice` numbers the voices without gaps.

    Hops of a collective that start apart wait for a late rank, so they count from the last start.
    """
    first = np.zeros(int(voice.max(initial=-1)) + 1, np.int64)
    first[voice[::-1]] = np.arange(len(voice) - 1, -1, -1)
    voices = known.select("pair", "src", "dst", "kind", "like_size")[first]
    apart = voices["kind"].is_in(POINT_TO_POINT).to_numpy()
    kind, like = voices["kind"].rank("dense").to_numpy().astype(np.int64), voices["like_size"].to_numpy()
    step, place, num = (known[c].to_numpy() for c in ("step", "place", "num"))
    start, end = known["start_ns"].to_numpy(), known["end_ns"].to_numpy()
    begin, final = start.copy(), end.copy()
    # A group works on several lanes that share no NIC: what is under way at the same time is first taken to be one.
    for group in (_units(voices), kind):
        sized = np.unique(group * (int(like.max(initial=0)) + 1) + like, return_inverse=True)[1].astype(np.int64)
        sized[apart] = -1
        call, count = number_calls(sized, voice, step, place, num)
        begin_together(call, count, start, end, begin, final)
    return (end - begin).astype(np.float64), (final - begin).astype(np.float64)


def _units(rows: pl.DataFrame) -> Ints:
    """For each row a number shared by what hangs together: a pair alone, or the hops of one group's collectives."""
    parent: dict[tuple[str, int], tuple[str, int]] = {}

    def root(x: tuple[str, int]) -> tuple[str, int]:
        while parent.setdefault(x, x) != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    keys: list[tuple[str, int]] = []
    for pair, src, dst, kind in rows.select("pair", "src", "dst", "kind").iter_rows():
        if kind in POINT_TO_POINT:
            keys.append((f"{kind} alone", pair))
            continue
        a, b = root((kind, src)), root((kind, dst))
        parent[max(a, b)] = min(a, b)
        keys.append((kind, src))
    roots = [root(k) if k[0] in ("dp", "ep", "tp", "embedding") else k for k in keys]
    number = {r: i for i, r in enumerate(dict.fromkeys(roots))}
    return np.array([number[r] for r in roots], np.int64)


def find_slow_pairs(case: Case, transfers: Transfers | None) -> list[SlowPair]:
    """Pairs that are slow against their like, or for a part of the time against their own past."""
    if transfers is None:
        return []
    step_s = float(np.median(case.length_s))
    best: dict[int, SlowPair] = {}
    both_ways = _slower_way_back(transfers, transfers.against_like)
    for excess, partly in ((both_ways, False), (transfers.against_past, True)):
        noise = _noise(excess)
        threshold = max(_SLOWER, 4 * noise)
        above = np.where(np.isnan(excess), False, excess > threshold)
        for row in np.flatnonzero(above.any(axis=1)).tolist():
            slow = _judge(transfers, excess[row], row, threshold, noise)
            if slow is None or slow.extra_s < _MATTERS * step_s:
                continue
            lasting = slow.steady and slow.window.length > 0.8 * case.steps.height
            least = _LASTING_ALONE if slow.kind in BY_DESIGN else _LASTING
            if (lasting and (partly or slow.window.mean < least)) or (partly and slow.window.last < _WARM_UP):
                continue
            if row not in best or slow.sure > best[row].sure:
                best[row] = slow
    back = _rows_back(transfers)
    sound = {r: p.kind not in POINT_TO_POINT or (back[r] != r and _at_one_time(p, best.get(back[r]))) for r, p in
             best.items()}  # fmt: skip
    uneven, last = find_uneven(transfers, best), find_last(transfers, {r: list(p.slow_steps) for r, p in best.items()})
    return [replace(p, sound=sound[r] and r not in uneven, early=r not in last) for r, p in best.items()]


def find_uneven(transfers: Transfers, best: dict[int, SlowPair]) -> set[int]:
    """Slow hops whose slow messages take unequally long a byte: a slow link has one pace, a late rank has none."""
    kinds = {row: p for row, p in best.items() if p.kind not in POINT_TO_POINT}
    if not kinds:
        return set()
    steps = pl.DataFrame(
        [(row, p.pair, p.kind, list(p.slow_steps)) for row, p in kinds.items()],
        {"row": pl.Int64, "pair": transfers.paces["pair"].dtype, "kind": pl.String, "step": pl.List(pl.Int32)},
        orient="row",
    )
    paces = transfers.paces.join(steps.select("row", "pair", "kind"), on=["pair", "kind"])
    paces = paces.join(steps.explode("step").with_columns(slow=True), on=["row", "pair", "kind", "step"], how="left")
    pace, slow = pl.col("pace"), pl.col("slow").fill_null(False)
    usual = pace.filter(~slow).median().fill_null(0).over("row")
    spread = pace.quantile(0.75) / pace.quantile(0.25)
    own = paces.filter(~slow).group_by("row").agg(spread.alias("own"))
    found = paces.with_columns(usual.alias("usual")).filter(slow & (pace > _SLOW_PACE * pl.col("usual")))
    found = found.group_by("row").agg(spread.alias("spread"), pl.len().alias("num")).join(own, on="row", how="left")
    limit = (_OWN_SPREAD * pl.col("own").fill_null(1.0)).clip(_ONE_PACE, _ANY_PACE)
    return set(found.filter((pl.col("spread") > limit) & (pl.col("num") >= _FEW))["row"].to_list())


def _at_one_time(pair: SlowPair, other: SlowPair | None) -> bool:
    return other is not None and 2 * pair.window.overlap(other.window) > pair.window.length


def find_last(transfers: Transfers, slow_steps: dict[int, list[int]]) -> set[int]:
    """Of rows that are slow in some steps, those that end last of their collectives then: they hold up the others."""
    members: dict[int, list[int]] = defaultdict(list)
    for row, unit in zip(slow_steps, transfers.rows["unit"].gather(list(slow_steps)), strict=True):
        members[unit].append(row)
    found: set[int] = set()
    for rows in members.values():
        if len(rows) == 1:  # It has nobody to wait for.
            found.update(rows)
            continue
        steps = sorted({step for row in rows for step in slow_steps[row]})
        ends, blur = _compare_ends(transfers, rows, steps)
        found.update(row for row, end in zip(rows, ends, strict=True) if end >= ends.max() - blur)
    return found


def _compare_ends(transfers: Transfers, rows: list[int], steps: list[int]) -> tuple[Floats, float]:
    """When each row's hops end in these steps against the other steps, over what the longest takes; and how unsure.

    Clocks that differ by a constant shift a row's ends in all steps alike.
    """
    every = transfers.lead_ns[rows]
    every = every - quantile_rows(every, 0.5, axis=0)  # What all wait for, another lane say, tells none of them apart.
    lead, at_rest = every[:, steps], np.delete(every, steps, axis=1)
    longest = float(np.nanmedian(transfers.longest_ns[rows][:, steps]))
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
    window = find_window(values, threshold)
    if window is None:
        return None
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
    pair, src, dst, kind = transfers.ends[row]
    slow = slice(window.first, window.last + 1)
    extra = float(np.mean(transfers.extra_s[row, slow][high[slow]]))
    slow_steps = tuple(np.flatnonzero(high).tolist())
    return SlowPair(pair=pair, src=src, dst=dst, kind=kind, window=window, sure=float(sure), extra_s=extra,
                    steady=steady, sound=False, early=False, slow_steps=slow_steps)  # fmt: skip
