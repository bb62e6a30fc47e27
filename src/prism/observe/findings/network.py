"""What is slow on the network: a pair, a NIC's link, a switch; found where transfers take longer than their like."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from prism.observe.findings.case import Case, culprit
from prism.observe.findings.windows import find_window, spread_of
from prism.records.findings import Culprit, Finding

_SLOWER = 0.20  # a transfer this much longer than its like
_SURE = 5.0
_MATTERS = 0.003  # of a step: less extra time than this is nobody's trouble
_EXPLAINS = 0.75  # share of a suspect's pairs that must be slow


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowPair:
    """A pair whose transfers took longer than those of its like, over a window of steps."""

    pair: int
    src: int
    dst: int
    kind: str
    first: int
    last: int
    mean: float
    sure: float
    extra_s: float  # a step, on all its transfers


def find_network(case: Case) -> list[Finding]:
    """Slow links and switches of one job."""
    if case.steps.height < 3 or case.messages.is_empty():
        return []
    excess = _excess_by_step(case)
    slow = _slow_pairs(case, excess)
    found = []
    while slow:
        finding, explained = _best_explanation(case, slow, excess)
        found.append(finding)
        slow = [p for p in slow if p.pair not in explained]
        if len(found) >= 5:
            break
    return found


def _excess_by_step(case: Case) -> pl.DataFrame:
    """pair src dst kind step excess: how much longer a pair's transfers of a step took than the usual of their like."""
    steps = case.steps.select("index", pl.col("start_ns").alias("step_ns"))
    known = (
        case.messages.filter(pl.col("role").is_in(["pp", "oneway", "exchange"]))
        .with_columns(duration=(pl.col("end_ns") - pl.col("start_ns")).cast(pl.Float64))
        .filter(pl.col("duration") > 0)
        # Like with like: the same kind of traffic and the same size.
        .with_columns(like=(pl.col("bytes").log() * 20).round())
        .sort("start_ns")
        .join_asof(steps, left_on="start_ns", right_on="step_ns")
        .drop_nulls("index")
    )
    usual = known.group_by("kind", "like", "index").agg(
        pl.col("duration").median().alias("usual"), pl.col("pair").n_unique().alias("peers")
    )
    return (
        known.join(usual, on=["kind", "like", "index"])
        .filter((pl.col("peers") >= 4) & (pl.col("usual") > 0))
        .group_by("pair", "src", "dst", "kind", pl.col("index").alias("step"))
        .agg(
            (pl.col("duration") / pl.col("usual") - 1).median().alias("excess"),
            (pl.col("duration") - pl.col("usual")).sum().alias("extra_ns"),
        )
        .sort("pair", "step")
    )


def _slow_pairs(case: Case, excess: pl.DataFrame) -> list[SlowPair]:
    noise = max(spread_of(excess["excess"].to_numpy()), 0.01)
    found = []
    rows = excess.group_by("pair", "src", "dst", "kind", maintain_order=True).agg("step", "excess", "extra_ns")
    for pair, src, dst, kind, steps, values, extra in rows.iter_rows():
        series = np.full(case.steps.height, np.nan)
        series[np.array(steps)] = values
        window = find_window(series, _SLOWER)
        if window is None:
            continue
        length = window.last - window.first + 1
        sure = window.mean * np.sqrt(length) / noise
        at = np.array(steps)
        inside = (at >= window.first) & (at <= window.last)
        extra_s = float(np.median(np.array(extra)[inside])) / 1e9
        matters = extra_s > _MATTERS * float(np.median(case.length_s))
        steady = length >= 2 and window.share >= 0.7
        if steady and matters and sure >= _SURE and window.mean >= _SLOWER + 2 * noise:
            found.append(SlowPair(pair=pair, src=src, dst=dst, kind=kind, first=window.first, last=window.last,
                                  mean=window.mean, sure=float(sure), extra_s=extra_s))  # fmt: skip
    return found


def _best_explanation(case: Case, slow: list[SlowPair], excess: pl.DataFrame) -> tuple[Finding, set[int]]:
    """The one suspect that accounts for most of the slow pairs with fewest healthy ones against it."""
    pairs = excess.select("pair", "src", "dst", "kind").unique("pair")
    bad = {p.pair: p for p in slow}
    # A ring is as slow as its slowest hop, so only messages between two ranks point at one place.
    pointing = [p for p in slow if p.kind == "pp"] or slow
    suspects: dict[tuple[str, str], tuple[int, int]] = {}
    table = case.endpoints
    switch = table["switch"].to_list()
    for pair, src, dst, kind in pairs.iter_rows():
        if kind != pointing[0].kind and kind != "pp":
            continue
        for suspect in _touched(case, src, dst, switch):
            hit, total = suspects.get(suspect, (0, 0))
            suspects[suspect] = (hit + (pair in bad), total + 1)
    ranked = sorted(
        (
            (kind, name, hit, total)
            for (kind, name), (hit, total) in suspects.items()
            if hit >= _EXPLAINS * total and hit > 0
        ),
        key=lambda s: (-(s[2] - 2 * (s[3] - s[2])), {"switch": 0, "host": 2, "nic": 1, "pair": 3}[s[0]]),
    )
    if ranked:
        kind, name, hit, total = ranked[0]
        chosen = [p for p in slow if (kind, name) in _touched(case, p.src, p.dst, switch)]
    else:
        chosen = [max(slow, key=lambda p: p.mean)]
        kind, name, hit, total = "pair", f"{case.address(chosen[0].src)}>{case.address(chosen[0].dst)}", 1, 1
    explained = _explained(case, chosen, slow)
    return _to_finding(case, kind, name, hit, total, chosen), explained


def _touched(case: Case, src: int, dst: int, switch: list[str | None]) -> list[tuple[str, str]]:
    names = [("pair", f"{case.address(src)}>{case.address(dst)}")]
    for e in (src, dst):
        names.append(("nic", str(e)))
        names.append(("host", case.host(e)))
        if switch[e] is not None:
            names.append(("switch", str(switch[e])))
    return list(dict.fromkeys(names))


def _explained(case: Case, chosen: list[SlowPair], slow: list[SlowPair]) -> set[int]:
    """The chosen pairs, and rings that share an endpoint with them: all their hops wait for the slow one."""
    touched = {e for p in chosen for e in (p.src, p.dst)}
    out = {p.pair for p in chosen}
    rings = [p for p in slow if p.kind != "pp"]
    grown = True
    while grown:
        grown = False
        for p in rings:
            if p.pair not in out and (p.src in touched or p.dst in touched):
                out.add(p.pair)
                touched |= {p.src, p.dst}
                grown = True
    return out | {p.pair for p in slow if p.src in touched and p.dst in touched}


def _to_finding(case: Case, kind: str, name: str, hit: int, total: int, chosen: list[SlowPair]) -> Finding:
    first = int(np.median([p.first for p in chosen]))
    last = int(np.median([p.last for p in chosen]))
    mean = float(np.median([p.mean for p in chosen]))
    sure = max(p.sure for p in chosen)
    where = {
        "switch": f"{hit} of {total} pairs through switch {name}",
        "host": f"{hit} of {total} pairs of host {name}",
        "nic": f"{hit} of {total} pairs of its NIC",
        "pair": "this pair alone",
    }[kind]
    evidence = f"transfers take {100 * mean:.0f} % longer than their like: {where}"
    inside = case.length_s[first : last + 1]
    outside = np.concatenate([case.length_s[:first], case.length_s[last + 1 :]])
    slower = float((inside - np.median(outside)).clip(0).sum()) if len(outside) >= 3 else 0.0
    lost = max(slower, max(p.extra_s for p in chosen) * len(inside))
    return case.finding(
        "slow_switch" if kind == "switch" else "slow_link", _name(case, kind, name), first, last,
        lost_s=lost, score=1 - np.exp(-sure / 10), evidence=evidence,
    )  # fmt: skip


def _name(case: Case, kind: str, name: str) -> Culprit:
    if kind == "nic":
        e = int(name)
        leaf = case.endpoints["switch"][e]
        return (
            culprit("link", f"{case.address(e)}>{leaf}") if leaf is not None else culprit("endpoint", case.address(e))
        )
    return culprit({"switch": "switch", "host": "host"}.get(kind, "link"), name)  # type: ignore[arg-type]
