"""Suspects: which components every transfer touches, and which of them best explains what is slow.

A suspect is scored by the transfers that it touches, because a slow component slows all of them, for every tenant. Hops
of a collective are slow together, as a ring is as slow as its slowest hop; only those that end last point at the cause.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from prism.observe import levels
from prism.observe.findings.case import Case, Floats
from prism.observe.findings.collectives import POINT_TO_POINT
from prism.observe.findings.routes import links_of
from prism.observe.findings.transfers import SlowPair, Transfers

Suspect = tuple[str, str]
"""What it is (pair, out, in, nic, link, host, switch) and its name."""

_ORDER = {"pair": 0, "out": 1, "in": 1, "nic": 2, "link": 3, "host": 4, "switch": 5}
_COUPLED = levels.SHARE_LARGE  # share of a group's hops that are slow when all of them wait for one
_QUICK = 0.25  # of the slow ones' excess time: a transfer with no more than this is not slow
_MOSTLY = levels.SHARE_HALF  # of what is slow in another job
_MISS = levels.RATIO_DOUBLE  # weight of a transfer that should be slow and is not, relative to one that is


@dataclass(frozen=True)
class Scene:
    """The slow pairs of one job, and what every pair touches."""

    case: Case
    slow: dict[int, SlowPair]  # by row of the transfers
    quick: frozenset[int]  # rows that are surely not slow while these are
    touches: list[set[Suspect]]  # by row
    unit: list[int]  # by row
    moved: frozenset[Suspect]  # links that a slow pair moved to about when it became slow
    slower: Floats  # by row and step, what its transfers take longer, as a share
    waiting: frozenset[int] = frozenset()  # rows that are slow at no pace while others are at one: they wait for these


@dataclass(frozen=True, slots=True)
class Ranked:
    """A suspect, how well it explains what is slow, and the time that it explains."""

    suspect: Suspect
    units: frozenset[int]
    score: float
    misses: int
    extra_s: float


def set_scene(
    case: Case, transfers: Transfers, slow: Sequence[SlowPair], counted: Sequence[SlowPair], routes: pl.DataFrame | None
) -> Scene:
    """The scene of a job; `counted` are those of its slow pairs that point at a cause."""
    row_of = {(p, k): i for i, (p, k) in enumerate(transfers.rows.select("pair", "kind").iter_rows())}
    early = {row_of[p.pair, p.kind] for p in slow if p.early}
    unit, apart = _part_units(transfers.rows["unit"].to_list(), {row_of[p.pair, p.kind] for p in counted}, early)
    by_row = {row_of[p.pair, p.kind]: p for p in counted}
    if apart:  # Connections whose hops end together wait for those whose hops end apart, which locate the cause.
        by_row = {r: p for r, p in by_row.items() if r in apart or p.kind in POINT_TO_POINT}
    paths, moved = _paths(routes, transfers, by_row, case)
    touches = [
        _touched(case, src, dst, paths.get(pair, ()))
        for pair, src, dst in transfers.rows.select("pair", "src", "dst").iter_rows()
    ]
    # A pair that is slow by far less has another cause, so it clears the components that both touch.
    least = _QUICK * find_worst(by_row.values()).window.mean
    quick = _find_quick(transfers, by_row) - {row_of[p.pair, p.kind] for p in slow if p.window.mean >= least}
    return Scene(case, by_row, quick, touches, unit, moved, transfers.slower)


def _part_units(unit: list[int], slow: set[int], early: set[int]) -> tuple[list[int], set[int]]:
    """Units anew, a hop on its own where only some of its group are slow or end last; and the rows that end last."""
    members: dict[int, list[int]] = defaultdict(list)
    for row, u in enumerate(unit):
        members[u].append(row)
    fresh = max(unit) + 1
    parted, apart = list(unit), set()
    for rows in members.values():
        bad = slow.intersection(rows)
        if bad and (early.intersection(rows) or len(bad) < _COUPLED * len(rows)):
            for r in rows:
                parted[r] = fresh
                fresh += 1
            if early.intersection(rows):
                apart |= bad
    return parted, apart


def _find_quick(transfers: Transfers, slow: dict[int, SlowPair]) -> frozenset[int]:
    """Rows whose transfers take no longer than usual in the steps in which the slowest are slow."""
    worst = find_worst(slow.values())
    steps = list(worst.slow_steps)
    excess = transfers.slower[:, steps]
    # What a rank sends in the first slow step may have passed before it began, unless it is of the same kind.
    excess[(transfers.rows["kind"] != worst.kind).to_numpy(), 0] = np.nan
    known = np.isfinite(excess)
    middle = np.array([np.median(e[k]) if k.any() else np.inf for e, k in zip(excess, known, strict=True)])
    return frozenset(np.flatnonzero(transfers.tells & (middle < _QUICK * worst.window.mean)).tolist())


def find_worst(slow: Iterable[SlowPair]) -> SlowPair:
    """The slow pair that loses most, which shows the window best."""
    return max(slow, key=lambda p: (p.extra_s, p.sure))


def _paths(
    routes: pl.DataFrame | None, transfers: Transfers, slow: dict[int, SlowPair], case: Case
) -> tuple[dict[int, list[str]], frozenset[Suspect]]:
    """The paths of each pair while something was slow, and links that came into use only then."""
    if routes is None or routes.is_empty():
        return {}, frozenset()
    window = find_worst(slow.values()).window
    begin, end = int(case.steps["start_ns"][window.first]), int(case.steps["end_ns"][window.last])
    own = routes.filter(pl.col("pair").is_in(transfers.rows["pair"].unique().implode()))
    during = own.filter((pl.col("first_ns") < end) & (pl.col("last_ns") > begin))
    step = int(np.median(case.length_s) * 1e9)
    slow_pairs = {p.pair for p in slow.values()}
    before = own.filter(pl.col("first_ns") < begin - step).select("pair", "path")
    came = during.filter(pl.col("first_ns") >= begin - step).join(before, on=["pair", "path"], how="anti")
    came = came.filter(pl.col("pair").is_in(list(slow_pairs)) & pl.col("pair").is_in(before["pair"].implode()))
    moved: set[Suspect] = {("link", link) for path in came["path"] for link in links_of(path)}
    paths: dict[int, list[str]] = defaultdict(list)
    for pair, path in during.select("pair", "path").iter_rows():
        paths[pair].append(path)
    return paths, frozenset(moved)


def _touched(case: Case, src: int, dst: int, paths: list[str] | tuple[str, ...]) -> set[Suspect]:
    found: set[Suspect] = {("pair", f"{src}>{dst}"), ("out", str(src)), ("in", str(dst))}
    for e in (src, dst):
        found |= {("nic", str(e)), ("host", case.host(e))}
        if case.switches[e] is not None:
            found.add(("switch", str(case.switches[e])))
    for path in paths:
        found |= {("link", link) for link in links_of(path)} | {("switch", stop) for stop in path.split(">")}
    return found


def rank_suspects(scene: Scene, left: dict[int, SlowPair], others: Sequence[Scene]) -> list[Ranked]:
    """All components that the slow pairs `left` touch, the best first; `others` are scenes of the same time."""
    hits, misses = _tally(scene, left)
    elsewhere = [(*_tally(other, other.slow), len({other.unit[r] for r in other.slow})) for other in others]
    ranked = []
    for suspect, units in hits.items():
        score = len(units) - _MISS * len(misses[suspect])
        if suspect[0] != "pair":
            score += sum(_count_for(suspect, *tally) for tally in elsewhere)
        if suspect in scene.moved:
            score = max(score, 0.0) + len(left)  # Messages changed their path just when they became slow.
        ranked.append(Ranked(suspect, frozenset(units), score, len(misses[suspect]), round(sum(units.values()), 6)))
    return sorted(ranked, key=lambda r: (-r.score, r.misses, -r.extra_s, _ORDER[r.suspect[0]], r.suspect))


def _count_for(
    suspect: Suspect, hits: dict[Suspect, dict[int, float]], misses: dict[Suspect, set[int]], num_slow: int
) -> float:
    """The evidence of another job on a suspect: one that touches little of what is slow there is not its cause."""
    touched = len(hits.get(suspect, ()))
    return (touched if touched >= _MOSTLY * num_slow else 0) - _MISS * len(misses.get(suspect, ()))


def weigh_rivals(ranked: Sequence[Ranked], same: Sequence[Suspect]) -> dict[Suspect, float]:
    """The probabilities of all suspects but `same`, of which one is the cause or one of `same` is.

    Each transfer that a suspect accounts for, or should have made slow and did not, counts as one nat; suspects that
    touch the very same transfers are one rival, named by the best of them.
    """
    rivals = {r.units: r for r in reversed(ranked) if r.suspect not in same}
    odds = {r.suspect: math.exp(min(r.score - ranked[0].score, 0.0)) for r in rivals.values()}
    return {suspect: weight / (1 + sum(odds.values())) for suspect, weight in odds.items()}


def is_cleared(scene: Scene, row: int) -> bool:
    """Whether both ends of a slow pair send and receive quickly otherwise, and one switch is all that lies between."""
    ends = {(kind, name) for kind, name in scene.touches[row] if kind in ("out", "in")}
    switches = [name for kind, name in scene.touches[row] if kind == "switch"]
    return len(switches) == 1 and all(any(end in scene.touches[r] for r in scene.quick) for end in ends)


def _tally(scene: Scene, left: dict[int, SlowPair]) -> tuple[dict[Suspect, dict[int, float]], dict[Suspect, set[int]]]:
    """For each suspect the slow units that it touches with what they lose, and those that it should have made slow."""
    hits: dict[Suspect, dict[int, float]] = defaultdict(dict)
    misses: dict[Suspect, set[int]] = defaultdict(set)
    lost: dict[int, float] = defaultdict(float)
    for row, pair in left.items():
        lost[scene.unit[row]] = max(lost[scene.unit[row]], pair.extra_s)
    for row in left:
        for suspect in scene.touches[row]:
            hits[suspect][scene.unit[row]] = lost[scene.unit[row]]
    slow_units = {scene.unit[r] for r in scene.slow}
    for row in scene.quick | scene.waiting:
        if scene.unit[row] not in slow_units:
            for suspect in scene.touches[row]:
                misses[suspect].add(scene.unit[row])
    return hits, misses
