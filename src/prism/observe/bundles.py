"""Bundles: connections that act as one, because they carry one collective, or one micro-batch of one replica."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe.jobs import SKEW_NS, connect
from prism.observe.period import nearest
from prism.observe.stages import StageMap
from prism.observe.traffic import Traffic

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_OTHER_SIZE = 0.15  # of the logarithm of bytes
_PLACES = 12  # hosts that are looked at
_MOST_EVENTS = 300  # messages of a connection that are compared
_SAME = 0.004  # of a transfer's length: ends that differ by no more than this, but for a constant, are one collective's
_JUMP = 4.0  # times: distances of ranks that act as one and of others lie at least this far apart
_MOST_SHIFTS = 6  # differences of clocks that are tried
_FLOOR_NS = 3_000.0
_RIGID = 5e-3  # of the time between messages: replicas differ by more than this, ranks that act as one by less


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
        found = [_count_in_family(traffic, part) for part in _by_size(own)]
        counts.append(min(found))
        most.append(max(found))
    dense = Counter(counts).most_common(1)[0][0]
    expert = Counter(most).most_common(1)[0][0]
    # Shards of a copy span fewer hosts than the job; dense gradients are summed over all of them.
    whole = _span(largest)
    partial = any(_span(part) < whole for part in _by_size(largest) if part.height >= 0.1 * largest.height)
    return Bundles(dense=dense, expert=dense if partial else expert)


def _by_size(own: pl.DataFrame) -> list[pl.DataFrame]:
    """Units that carry messages of about one size, apart from the others."""
    ordered = own.sort("bytes")
    size = np.log(np.maximum(ordered["bytes"].to_numpy(), 1.0))
    cut = np.flatnonzero(np.diff(size) > _OTHER_SIZE) + 1
    edges = [0, *cut.tolist(), ordered.height]
    return [ordered[a:b] for a, b in pairwise(edges)]


def _span(units: pl.DataFrame) -> int:
    """Hosts that are connected to the first one."""
    src, dst = (units[c].to_numpy().astype(np.int64) for c in ("src_host", "dst_host"))
    hosts = np.unique(np.concatenate([src, dst]))
    labels = connect(len(hosts), np.searchsorted(hosts, src), np.searchsorted(hosts, dst))
    return int(np.bincount(labels).max())


def _count_in_family(traffic: Traffic, own: pl.DataFrame) -> int:
    """Groups among units of one size; a host may send on to several others, of which one is enough."""
    target = own.group_by("dst_host").len().sort("len", "dst_host", descending=[True, False])["dst_host"][0]
    return len(np.unique(_bundle(traffic, own.filter(pl.col("dst_host") == target)["voice"].to_numpy())))


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
    """For each message of one the one of the other that goes with it: clocks may differ by more than messages do."""
    if min(len(a), len(b)) < 3:
        return None
    middle = a[len(a) // 2]
    near = b[np.abs(b - middle) <= 2 * SKEW_NS] - middle
    shifts = [0, *near[np.argsort(np.abs(near))][:_MOST_SHIFTS].tolist()]
    found = [nearest(b, a + shift) for shift in shifts]
    return min(found, key=lambda at: _scatter((b[at] - a).astype(np.float64)))


def _scatter(distance: Floats) -> float:
    return float(np.median(np.abs(distance - np.median(distance))))


def count_acting_as_one(traffic: Traffic, voices: pl.DataFrame, rank_key: str) -> int | None:
    """Ranks of one host and stage whose pipeline messages leave at the same moments, as tensor-parallel ones do.

    `rank_key` is what stands for a rank: a `unit` where ranks share NICs, else a `pair`.
    """
    pipe = voices.filter(pl.col("kind") == "pp")
    pipe = pipe.sort("num", "voice", descending=[True, False]).group_by(rank_key, maintain_order=True).first()
    ways = pipe.group_by("src_host", "dst_host").len().sort("src_host", "dst_host")
    ways = ways.filter(pl.col("len") > 1)
    if ways.is_empty():
        return 1 if pipe.height else None
    chosen = ways[np.unique(np.linspace(0, ways.height - 1, _PLACES).astype(np.int64)).tolist()]
    tables: list[Floats] = []
    for s, d, _ in chosen.iter_rows():
        own = pipe.filter((pl.col("src_host") == s) & (pl.col("dst_host") == d))
        times = [_times_of(traffic, int(v))[0] for v in own["voice"].to_numpy()[:32]]
        spacing = max((float(np.median(np.diff(t))) for t in times if len(t) > 1), default=1.0)
        tables.append(_distances(times) / max(spacing, 1.0))
    limit = _find_limit(np.concatenate([t[np.triu_indices(len(t), 1)] for t in tables]))
    # What leaves a rank may be held up by the other side's, so the way that is more in step tells.
    tightest = sorted(tables, key=lambda t: float(np.median(t)))[: max(1, len(tables) // 2)]
    sizes = Counter[int]()
    for table in tightest:
        sizes.update((table <= limit).sum(axis=1).tolist())
    members = Counter(len(t) for t in tables).most_common(1)[0][0]
    size = sizes.most_common(1)[0][0]
    return min((n for n in range(1, members + 1) if members % n == 0), key=lambda n: abs(np.log(n / size)))


def _find_limit(distances: Floats) -> float:
    """Up to which distance two connections act as one: below a wide gap between near and far ones, or a usual one."""
    known = np.sort(np.maximum(distances[np.isfinite(distances)], 1e-5))
    known = known[known < 0.2]
    if len(known) < 4:
        return _RIGID
    jumps = known[1:] / known[:-1]
    at = int(np.argmax(jumps))
    if jumps[at] >= _JUMP and known[at + 1] > 1e-4:
        return float(np.sqrt(known[at] * known[at + 1]))
    return _RIGID


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
