"""What is slow on the network: a pair, a NIC's link, a link between switches, a switch.

Every suspect is weighed by what it touches: a slow one makes all of it slow. Hops of a collective share one fate, for
a ring is as slow as its slowest hop, and then only the groups and pairs that a suspect is part of point at it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import polars as pl

from prism.observe.findings.case import Case, culprit
from prism.observe.findings.cost import price_slow_pairs
from prism.observe.findings.routes import links_of
from prism.observe.findings.transfers import SlowPair, Transfers
from prism.observe.findings.windows import Window
from prism.records.findings import Culprit, Finding

Suspect = tuple[str, str]
"""What it is (pair, nic, link, host, switch) and its name."""

_ORDER = {"pair": 0, "out": 1, "in": 1, "nic": 2, "link": 3, "host": 4, "switch": 5}
_COUPLED = 0.8  # share of a group's hops that are slow when all of them wait for one
_EXPLAINED = 0.4  # share of all that is slow which the worst suspect must touch
_ALONE = 0.4  # a pair that is slow all by itself must be slower than this
_ALONE_ALWAYS = 2.0  # the same where it was never quicker
_MOST = 3  # findings of one job
_FELT = 0.003  # steps of the window are longer than the others by at least this much, or transfers twice as long


@dataclass(frozen=True)
class Scene:
    """The slow pairs of one job, and what every pair touches."""

    slow: dict[int, SlowPair]  # by row of the transfers
    touches: list[set[Suspect]]  # by row
    unit: list[int]  # by row
    moved: set[Suspect]  # links that a slow pair was moved to about when it became slow


def find_network(
    case: Case, transfers: Transfers | None, slow: list[SlowPair], routes: pl.DataFrame | None = None
) -> list[Finding]:
    """Slow links and switches of one job, from its slow pairs."""
    felt = [p for p in slow if p.sound and _is_felt(case, p)]
    if transfers is None or not felt:
        return []
    return _explain(case, _set_scene(case, transfers, felt, routes))


def _is_felt(case: Case, pair: SlowPair) -> bool:
    """Whether steps are longer for it: those of its window, or, where it is slow now and then, those it is slow in."""
    if pair.steady:
        slower = case.slower_by(pair.window.first, pair.window.last)
        return slower is None or slower > _FELT
    inside, outside = case.length_s[list(pair.slow_steps)], np.delete(case.length_s, list(pair.slow_steps))
    return len(outside) >= 3 and bool(np.median(inside) > (1 + _FELT) * np.median(outside))


def _set_scene(case: Case, transfers: Transfers, slow: list[SlowPair], routes: pl.DataFrame | None) -> Scene:
    row_of = {(p, k): i for i, (p, k) in enumerate(transfers.rows.select("pair", "kind").iter_rows())}
    by_row = {row_of[p.pair, p.kind]: p for p in slow}
    unit = transfers.rows["unit"].to_list()
    members: dict[int, list[int]] = defaultdict(list)
    for row, u in enumerate(unit):
        members[u].append(row)
    # Where only some hops of a group are slow, each speaks for itself.
    fresh = max(unit) + 1
    for rows in members.values():
        bad = sum(r in by_row for r in rows)
        if 0 < bad < _COUPLED * len(rows):
            for r in rows:
                unit[r] = fresh
                fresh += 1
    paths, moved = _paths(routes, transfers, by_row, case)
    touches = [
        _touched(case, src, dst, paths.get(pair, ()))
        for pair, src, dst in transfers.rows.select("pair", "src", "dst").iter_rows()
    ]
    return Scene(by_row, touches, unit, moved)


def _paths(
    routes: pl.DataFrame | None, transfers: Transfers, slow: dict[int, SlowPair], case: Case
) -> tuple[dict[int, list[str]], set[Suspect]]:
    """The paths of each pair while something was slow, and links that came into use only then."""
    if routes is None or routes.is_empty():
        return {}, set()
    begin = min(int(case.steps["start_ns"][p.window.first]) for p in slow.values())
    end = max(int(case.steps["end_ns"][p.window.last]) for p in slow.values())
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
    return paths, moved


def _touched(case: Case, src: int, dst: int, paths: list[str] | tuple[str, ...]) -> set[Suspect]:
    found: set[Suspect] = {("pair", f"{src}>{dst}"), ("out", str(src)), ("in", str(dst))}
    for e in (src, dst):
        found |= {("nic", str(e)), ("host", case.host(e))}
        if case.switches[e] is not None:
            found.add(("switch", str(case.switches[e])))
    for path in paths:
        found |= {("link", link) for link in links_of(path)} | {("switch", stop) for stop in path.split(">")}
    return found


def _explain(case: Case, scene: Scene) -> list[Finding]:
    """The suspects that account for most of what is slow with least that is not, one after the other."""
    found: list[Finding] = []
    left = dict(scene.slow)
    num_units = len({scene.unit[r] for r in left})
    while left and len(found) < _MOST:
        ranked = _rank(scene, left)
        score, _, best = ranked[0]
        hits = len({scene.unit[r] for r in left if best in scene.touches[r]})
        if hits < 2 and hits < _EXPLAINED * num_units:
            break  # Slow here and there: no one place is to blame.
        alone = [p for r, p in left.items() if best in scene.touches[r]]
        if best[0] == "pair" and not any(_stands_alone(case, p) for p in alone):
            break  # A single pair that is a little slow, now and then or one way only, is no link's fault.
        same = [s for value, _, s in ranked if value == score and s[0] in ("nic", "host")]
        chosen = [r for r in left if best in scene.touches[r]]
        units = {scene.unit[r] for r in chosen}
        found.append(_to_finding(case, scene, best, [scene.slow[r] for r in chosen], same))
        left = {r: p for r, p in left.items() if r not in chosen and scene.unit[r] not in units}
    return found


def _stands_alone(case: Case, pair: SlowPair) -> bool:
    """Whether one slow pair is enough: pairs differ by design, so one that always was slow must be very much so."""
    least = _ALONE_ALWAYS if pair.window.length > 0.8 * case.steps.height else _ALONE
    return pair.steady and pair.window.mean >= least


def _rank(scene: Scene, left: dict[int, SlowPair]) -> list[tuple[float, int, Suspect]]:
    hit: dict[Suspect, set[int]] = defaultdict(set)
    total: dict[Suspect, set[int]] = defaultdict(set)
    for row, suspects in enumerate(scene.touches):
        for suspect in suspects:
            total[suspect].add(scene.unit[row])
            if row in left:
                hit[suspect].add(scene.unit[row])
    ranked = []
    for suspect, units in hit.items():
        misses = len(total[suspect] - {scene.unit[r] for r in scene.slow})
        score = len(units) - 2.0 * misses
        if suspect in scene.moved:
            score = max(score, 0.0) + len(units) + 2.0  # Messages went another way just when they became slow.
        ranked.append((score, _ORDER[suspect[0]], suspect))
    return sorted(ranked, key=lambda r: (-r[0], r[1], r[2]))


def _to_finding(case: Case, scene: Scene, suspect: Suspect, chosen: list[SlowPair], same: list[Suspect]) -> Finding:
    first = int(np.median([p.window.first for p in chosen]))
    last = max(first, int(np.median([p.window.last for p in chosen])))
    mean = float(np.median([p.window.mean for p in chosen]))
    sure = max(p.sure for p in chosen)
    kind, name = suspect
    who = _name(case, suspect)
    steady = np.mean([p.steady for p in chosen]) >= 0.5
    share = float(np.median([p.window.share for p in chosen]))
    when = "" if steady else f" in {100 * share:.0f} % of the steps"
    where = {"switch": f"through {name}", "host": f"of {name}", "link": f"over {name}", "pair": "of this pair"}
    moved = ", some of which took this way only then" if suspect in scene.moved else ""
    evidence = (
        f"transfers take {100 * mean:.0f} % longer than their like{when}: {len(chosen)} pairs "
        f"{where.get(kind, 'of this NIC')}{moved}"
    )
    ends = {e for p in chosen for e in (p.src, p.dst)}
    if kind == "pair" or (kind not in ("switch", "link") and len(same) > 2 and len(ends) == 2):
        # Two NICs that only talk to each other: nothing tells which of them it is.
        who, other = (_name(case, ("nic", str(e))) for e in (chosen[0].src, chosen[0].dst))
        evidence += f"; or at its other end, {other.id}"
    elif kind in ("out", "in", "nic", "host") and len(same) > 2:
        members = sorted({e for p in chosen for e in (p.src, p.dst)})
        who = culprit("group", ",".join(case.address(e) for e in members))
        evidence += "; all hops of the group are alike slow, so any of its links may be the cause"
    cost = price_slow_pairs(
        case, [(p.src, p.dst, p.kind) for p in chosen], Window(first, last, mean, share), max(p.extra_s for p in chosen)
    )
    return case.finding(
        "slow_switch" if kind == "switch" else "slow_link", who, first, last,
        lost_s=cost.lost_s * (1 if steady else share), score=1 - np.exp(-sure / 10),
        evidence=f"{evidence}; {cost.words}",
    )  # fmt: skip


def _name(case: Case, suspect: Suspect) -> Culprit:
    kind, name = suspect
    if kind == "pair":
        src, dst = (int(e) for e in name.split(">"))
        return culprit("link", f"{case.address(src)}>{case.address(dst)}")
    if kind in ("out", "in", "nic"):
        e = int(name)
        leaf = case.switches[e]
        if leaf is None:
            return culprit("endpoint", case.address(e))
        return culprit("link", f"{leaf}>{case.address(e)}" if kind == "in" else f"{case.address(e)}>{leaf}")
    return culprit("switch" if kind == "switch" else "host" if kind == "host" else "link", name)
