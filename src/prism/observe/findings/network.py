"""Slow network components: a pair, a NIC's link, a link between switches, a switch."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from prism.observe import levels
from prism.observe.findings.case import Case, culprit
from prism.observe.findings.collectives import POINT_TO_POINT
from prism.observe.findings.cost import price_slow_pairs
from prism.observe.findings.scoring import score_delays
from prism.observe.findings.suspects import (
    Scene,
    Suspect,
    find_worst,
    is_cleared,
    rank_suspects,
    set_scene,
    weigh_rivals,
)
from prism.observe.findings.transfers import SlowPair, Transfers
from prism.observe.findings.verdicts import Proposal, compare_steps
from prism.observe.findings.windows import Window
from prism.records.findings import Alternative, Culprit, FindingKind

_EXPLAINED = 0.4  # share of everything slow that the worst suspect must touch
_ALONE = 0.4  # a single slow pair must be slower than this
_ALONE_ALWAYS = levels.RATIO_DOUBLE  # the same for a pair that was never quicker
_ALIKE = 0.2  # less than this share of the worst slowdown has another cause
# What is slow in some steps only must be slower than this: sizes and waits differ by chance.
_NOW_AND_THEN = levels.SHARE_HALF
_MOST = levels.MIN_SAMPLES  # findings of one job
_FELT = levels.THREE_PER_MILLE  # steps of the window are at least this much longer, or transfers twice as long


def find_scene(
    case: Case, transfers: Transfers | None, slow: list[SlowPair], routes: pl.DataFrame | None
) -> Scene | None:
    """The slow pairs of one job that lengthen its steps, and what they touch; None if there are none."""
    felt = [p for p in slow if p.sound and not p.early and _is_felt(case, p)]
    if transfers is None or not felt:
        return None
    # A slow link slows most messages that pass it to one pace. Pairs of many messages that have none wait for it. Where
    # every hop of a collective has one slow message in a step, the hops wait for a rank.
    paced, waiting = any(p.even for p in felt), _find_waiting(transfers, slow)
    counted = [p for p in felt if not (paced and p.unpaced) and (p.pair, p.kind) not in waiting]
    if not counted:
        return None
    # What two exchange waits for other reasons too.
    unpaced = {(p.pair, p.kind) for p in felt if paced and p.unpaced and p.kind not in POINT_TO_POINT}
    rows = transfers.rows.select("pair", "kind").iter_rows()
    scene = set_scene(case, transfers, slow, counted, routes)
    return replace(scene, waiting=frozenset(row for row, key in enumerate(rows) if key in unpaced))


def _find_waiting(transfers: Transfers, slow: list[SlowPair]) -> set[tuple[int, str]]:
    """The hops, as pair and kind, of collectives nearly all hops of which have one slow message in a step."""
    once = {(p.pair, p.kind) for p in slow if p.once}
    units: dict[int, set[tuple[int, str]]] = defaultdict(set)
    for pair, kind, unit in transfers.rows.select("pair", "kind", "unit").iter_rows():
        units[unit].add((pair, kind))
    waiting = [rows for rows in units.values() if len(rows & once) >= max(levels.SHARE_LARGE * len(rows), 2)]
    return set().union(*waiting)


def find_network(scene: Scene, others: Sequence[Scene] = ()) -> list[Proposal]:
    """Slow links and switches of one job; `others` are the scenes of other jobs, which may share them."""
    return _explain(scene.case, scene, [o for o in others if o is not scene and _at_one_time(scene, o)])


def _at_one_time(scene: Scene, other: Scene) -> bool:
    """Whether what is slow in two jobs is slow at the same time, for the most part of the shorter."""
    (begin, end), (other_begin, other_end) = _span(scene), _span(other)
    both = min(end, other_end) - max(begin, other_begin)
    return both > 0.5 * min(end - begin, other_end - other_begin)


def _span(scene: Scene) -> tuple[int, int]:
    window, steps = find_worst(scene.slow.values()).window, scene.case.steps
    return int(steps["start_ns"][window.first]), int(steps["end_ns"][window.last])


def _is_felt(case: Case, pair: SlowPair) -> bool:
    """Whether its steps are longer: those of its window or, if it is slow occasionally, those in which it is slow."""
    if pair.steady:
        slower = case.slower_by(pair.window.first, pair.window.last)
        return slower is None or slower > _FELT
    if pair.window.mean < _NOW_AND_THEN:
        return False
    during = np.isin(np.arange(case.steps.height), pair.slow_steps)
    inside, outside = case.length_s[during], case.length_s[~during]
    longer = len(outside) >= 3 and bool(np.median(inside) > (1 + _FELT) * np.median(outside))
    return longer and compare_steps(case, during) >= levels.SHARE_NEARLY_ALL


def _explain(case: Case, scene: Scene, others: Sequence[Scene]) -> list[Proposal]:
    """The suspects that explain most of the slow transfers and touch the fewest others, one after the other."""
    found: list[Proposal] = []
    left = dict(scene.slow)
    while left and len(found) < _MOST:
        alike, ranked = left, rank_suspects(scene, left, others)
        if len(ranked[0].units) < len({scene.unit[r] for r in left}):  # No component explains all that is slow.
            worst = max(p.window.mean for p in left.values())
            alike = {r: p for r, p in left.items() if p.window.mean >= _ALIKE * worst}
            ranked = rank_suspects(scene, alike, others)
        equal = [r.suspect for r in ranked if r.score == ranked[0].score and r.units == ranked[0].units]
        shared = _find_shared_nic(scene, alike, equal)
        same = equal if shared is None else [shared]
        best = _choose(same)
        if best[0] == "switch" and _is_everywhere(best, scene, others):
            break  # It cannot be distinguished from the job itself: all wait, wherever it is.
        chosen = [r for r in alike if best in scene.touches[r]]
        units = {scene.unit[r] for r in chosen}
        if len(case.own_by_host) <= levels.MIN_TWO and not any(alike[r].steady for r in chosen):
            break  # Now and then a rank waits for a core: of two hosts nothing shows whether it is that or a link.
        if len(units) < 2 and len(units) < _EXPLAINED * len({scene.unit[r] for r in alike}):
            break  # Slow in several unrelated components: none of them explains it.
        alone = [r for r in chosen if _stands_alone(case, alike[r])]
        if best[0] == "pair" and not alone:
            break  # A single pair that is a little slow, occasionally or one way only, does not mean a slow link.
        if best[0] == "pair" and all(is_cleared(scene, r) for r in alone):
            if any(_is_always_slow(case, alike[r]) for r in alone) or _count_pairs(same) > 1:
                # By design, as nothing else that these NICs send or receive is slow; or all hops of a ring wait alike.
                break
            best = ("ends", best[1])
        if len({s for s in same if s[0] == "nic"}) > 2:
            chosen = [r for r in alike if scene.unit[r] in units]
        found.append(_propose(scene, best, [scene.slow[r] for r in chosen], same, weigh_rivals(ranked, equal)))
        left = {r: p for r, p in left.items() if r not in chosen and scene.unit[r] not in units}
    return found


def _find_shared_nic(scene: Scene, slow: dict[int, SlowPair], same: list[Suspect]) -> Suspect | None:
    """Of suspects that explain one collective alike the NIC at most of its slow hops, if all have one pace.

    A pair would leave the other hops unexplained; a late rank has no pace.
    """
    hops = {s: [p for r, p in slow.items() if s in scene.touches[r]] for s in same if s[0] == "nic"}
    most = max(map(len, hops.values()), default=0)
    widest = [s for s, own in hops.items() if len(own) == most and all(p.even for p in own)]
    return widest[0] if len(widest) == 1 and most > 1 else None


def _count_pairs(suspects: list[Suspect]) -> int:
    """How many pairs are suspects, whichever way they send."""
    return len({frozenset(name.split(">")) for kind, name in suspects if kind == "pair"})


def _is_everywhere(suspect: Suspect, scene: Scene, others: Sequence[Scene]) -> bool:
    """Whether everything that a job sends passes a component, and nothing slow of another job does."""
    shared = any(suspect in other.touches[row] for other in others for row in other.slow)
    return not shared and all(suspect in touched for touched in scene.touches)


def _choose(same: list[Suspect]) -> Suspect:
    """The first of equally good suspects; the switch if several hosts are equally likely."""
    switches = [s for s in same if s[0] == "switch"]
    several = len([s for s in same if s[0] == "host"]) > 1
    return switches[0] if same[0][0] == "host" and several and switches else same[0]


def _stands_alone(case: Case, pair: SlowPair) -> bool:
    """Whether one slow pair is enough: pairs differ by design, so one that always was slow must be very much so."""
    always = _is_always_slow(case, pair) or pair.kind == "ep"  # the targets of tokens vary
    # A few steps may be slow for a reason of their own: here a processor is busy, there a packet is lost. A slow link
    # slows all that passes it in them to one pace.
    lasts = pair.window.length >= levels.MIN_SAMPLES or pair.even
    return pair.steady and lasts and pair.window.mean >= (_ALONE_ALWAYS if always else _ALONE)


def _is_always_slow(case: Case, pair: SlowPair) -> bool:
    return pair.window.length > 0.8 * case.steps.height


def _propose(
    scene: Scene, suspect: Suspect, chosen: list[SlowPair], same: list[Suspect], rivals: dict[Suspect, float]
) -> Proposal:
    case = scene.case
    first = int(np.median([p.window.first for p in chosen]))
    last = max(first, int(np.median([p.window.last for p in chosen])))
    mean = float(np.median([p.window.mean for p in chosen]))
    sure = max(p.sure for p in chosen)
    steady = np.mean([p.steady for p in chosen]) >= 0.5
    share = float(np.median([p.window.share for p in chosen]))
    who, where = _name_place(case, suspect, chosen, same)
    when = "" if steady else f" in {100 * share:.0f} % of the steps"
    moved = ", some of which took this way only then" if suspect in scene.moved else ""
    cost = price_slow_pairs(
        case, [(p.src, p.dst, p.kind) for p in chosen], Window(first, last, mean, share), max(p.extra_s for p in chosen)
    )
    evidence = f"transfers take {100 * mean:.0f} % longer than their like{when}: {len(chosen)} pairs {where}{moved}"
    kind: FindingKind = "slow_compute" if suspect[0] == "ends" else _kind_of(who)
    told = case.finding(
        kind, who, first, last, lost_s=cost.lost_s * (1 if steady else share),
        score=min(1 - np.exp(-sure / 10), cost.margin, 1 - sum(rivals.values())), evidence=f"{evidence}; {cost.words}",
    )  # fmt: skip
    seconds = [(_name(case, s), round(p, 3)) for s, p in rivals.items() if p >= levels.SHARE_SMALL]
    rows = [r for r, touched in enumerate(scene.touches) if suspect in touched or ("pair", suspect[1]) in touched]
    num_suspects = len(set().union(*scene.touches))  # Choosing among them has a cost.
    return Proposal(
        finding=told,
        gain=score_delays(scene.slower, rows, Window(first, last, mean, share), 1.0) - math.log(num_suspects),
        seconds=tuple(Alternative(kind=_kind_of(c), culprit=c, score=p) for c, p in seconds),
        comes_and_goes=not steady,
    )


def _kind_of(who: Culprit) -> FindingKind:
    return "slow_switch" if who.type == "switch" else "slow_link"


def _name_place(case: Case, suspect: Suspect, chosen: list[SlowPair], same: list[Suspect]) -> tuple[Culprit, str]:
    """The culprit, and where the slow pairs are in words; `same` are the suspects that account for them as well."""
    kind, name = suspect
    ends = sorted({e for p in chosen for e in (p.src, p.dst)})
    if kind == "ends":
        who = culprit("group", ",".join(case.address(e) for e in ends))
        return who, "between these two, which send and take in quickly otherwise: one of them comes late"
    if len({s for s in same if s[0] == "nic"}) > 2:
        who = culprit("group", ",".join(case.address(e) for e in ends))
        return who, "of a group, whose hops are all alike slow, so any of its links may be the cause"
    if kind == "pair" or (kind in ("out", "in", "nic", "host") and len(ends) == 2):
        # Two NICs that only talk to each other: nothing shows which of them it is.
        who, other = (_name(case, ("nic", str(e))) for e in (chosen[0].src, chosen[0].dst))
        return who, f"between these NICs; or at its other end, {other.id}"
    hosts = [other for what, other in same if what == "host"]
    if kind == "host" and len(hosts) > 1:  # All that is slow passes between them.
        who = culprit("group", ",".join(case.address(e) for e in ends))
        return who, f"between {' and '.join(hosts)}; records do not show at which of them"
    places = {"switch": f"through {name}", "host": f"of {name}", "link": f"over {name}"}
    return _name(case, suspect), places.get(kind, "of this NIC")


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
