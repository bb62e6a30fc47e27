"""Bundles: connections that act as one, because they carry one collective, or one micro-batch of one replica."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe.stages import StageMap
from prism.observe.traffic import Traffic

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_PLACES = 12  # hosts that are looked at
_MOST_EVENTS = 300  # messages of a connection that are compared
_SAME = 0.004  # of a transfer's length: ends that differ by no more than this, but for a constant, are one collective's
_LOCKSTEP = 0.2  # of the usual distance between ranks: closer ones act as one
_FLOOR_NS = 3_000.0
_RIGID = 5e-4  # of the time between messages: what scatters less acts as one, whatever the others do


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundles:
    """Groups whose gradients leave a host: dense ones, and those of experts where they are others; 0 where unknown."""

    dense: int
    expert: int


def count_bundles(traffic: Traffic, voices: pl.DataFrame, stages: StageMap) -> Bundles:
    """How many different groups send gradients from a host."""
    rings = voices.filter(pl.col("kind") == "dp")
    if rings.is_empty():
        return Bundles(dense=0, expert=0)
    largest = rings.sort("bytes", "voice", descending=[True, False]).group_by("unit", maintain_order=True).first()
    counts: list[int] = []
    most: list[int] = []
    hosts = largest["src_host"].unique().sort().to_numpy()
    for place in hosts[np.unique(np.linspace(0, len(hosts) - 1, _PLACES).astype(np.int64))].tolist():
        own = largest.filter(pl.col("src_host") == place)
        if stages.stage:
            here = [stages.stage.get(int(e), 0) for e in own["src"]]
            own = own.filter(pl.Series([s == Counter(here).most_common(1)[0][0] for s in here]))
        # A host may send on to several others; one of them is enough.
        target = own.group_by("dst_host").len().sort("len", "dst_host", descending=[True, False])["dst_host"][0]
        own = own.filter(pl.col("dst_host") == target)
        labels = _bundle(traffic, own["voice"].to_numpy())
        families = own["family"].to_numpy()
        by_family = [len(np.unique(labels[families == f])) for f in np.unique(families)]
        counts.append(min(by_family))
        most.append(max(by_family))
    dense = Counter(counts).most_common(1)[0][0]
    return Bundles(dense=dense, expert=Counter(most).most_common(1)[0][0])


def _bundle(traffic: Traffic, voices: Ints) -> Ints:
    """Label voices so that those whose messages end together, but for a constant, share one."""
    times = [_times_of(traffic, int(v)) for v in voices]
    labels = np.arange(len(voices))
    for i in range(len(voices)):
        for k in range(i):
            if labels[k] == k and _ends_together(times[k], times[i]):
                labels[i] = k
                break
    return labels


def _times_of(traffic: Traffic, voice: int) -> tuple[Ints, Ints]:
    pair = int(traffic.voices["pair"][voice])
    part = traffic.messages[int(traffic.begin[pair]) : int(traffic.begin[pair + 1])]
    own = part["voice"].to_numpy() == voice
    return part["start_ns"].to_numpy()[own][:_MOST_EVENTS], part["end_ns"].to_numpy()[own][:_MOST_EVENTS]


def _ends_together(a: tuple[Ints, Ints], b: tuple[Ints, Ints]) -> bool:
    """Whether two transfers are channels of one: starts and ends differ by a constant, that of their clocks."""
    at = _match(a[0], b[0])
    if at is None:
        return False
    length = float(np.median(a[1] - a[0]))
    scatter = [_scatter((b[side][at] - a[side]).astype(np.float64)) for side in (0, 1)]
    return max(scatter) <= max(_SAME * length, _FLOOR_NS)


def _match(a: Ints, b: Ints) -> Ints | None:
    if min(len(a), len(b)) < 3:
        return None
    right = np.clip(np.searchsorted(b, a), 0, len(b) - 1)
    left = np.maximum(right - 1, 0)
    return np.where(np.abs(a - b[left]) <= np.abs(b[right] - a), left, right)


def _scatter(distance: Floats) -> float:
    return float(np.median(np.abs(distance - np.median(distance))))


def count_acting_as_one(traffic: Traffic, voices: pl.DataFrame, stages: StageMap) -> int | None:
    """Ranks of one host and stage whose pipeline messages leave at the same moments, as tensor-parallel ones do."""
    pipe = voices.filter(pl.col("kind") == "pp")
    pipe = pipe.sort("num", "voice", descending=[True, False]).group_by("unit", maintain_order=True).first()
    ways = pipe.group_by("src_host", "dst_host").len().sort("src_host", "dst_host")
    ways = ways.filter(pl.col("len") > 1)
    if ways.is_empty():
        return 1 if pipe.height else None
    chosen = ways[np.unique(np.linspace(0, ways.height - 1, _PLACES).astype(np.int64)).tolist()]
    tables: list[Floats] = []
    spacing = 0.0
    for s, d, _ in chosen.iter_rows():
        own = pipe.filter((pl.col("src_host") == s) & (pl.col("dst_host") == d))
        times = [_times_of(traffic, int(v))[0] for v in own["voice"].to_numpy()[:32]]
        tables.append(_distances(times))
        spacing = max(spacing, *(float(np.median(np.diff(t))) for t in times if len(t) > 1), 0.0)
    joined = np.concatenate([t[np.triu_indices(len(t), 1)] for t in tables])
    joined = joined[np.isfinite(joined)]
    if not len(joined):
        return None
    wide = float(np.quantile(joined, 0.9))
    floor = max(_FLOOR_NS, _RIGID * spacing)
    limit = max(_LOCKSTEP * wide, floor)
    sizes = Counter[int]()
    for table in tables:
        sizes.update((table <= limit).sum(axis=1).tolist())
    if wide <= floor:
        return max(len(t) for t in tables)
    return sizes.most_common(1)[0][0]


def _distances(times: list[Ints]) -> Floats:
    """How far the messages of each two connections scatter around their usual distance; 0 to itself."""
    n = len(times)
    table = np.full((n, n), np.inf)
    np.fill_diagonal(table, 0.0)
    for i in range(n):
        for k in range(i + 1, n):
            at = _match(times[i], times[k])
            if at is not None:
                table[i, k] = table[k, i] = _scatter((times[k][at] - times[i]).astype(np.float64))
    return table
