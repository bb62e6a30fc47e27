"""Volumes: how a job is laid out where single messages do not show, from how much each pair sends in all.

Stages of a pipeline send each other as much as they get back, in paths from the first stage to the last. Rings of
gradients go one way, or both ways between two replicas, and join paths at the same place. Ties of embeddings join the
two ends of a path. Each kind sends one amount. Where the graph allows another reading, nothing is said.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import polars as pl

from prism.observe import levels
from prism.observe.jobs.grouping import ObservedJob, connect
from prism.observe.traffic.table import Traffic

Edge = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeConfig:
    """How volumes are compared."""

    light: float = levels.SHARE_NEGLIGIBLE  # of the heaviest pair: pairs that send less carry norms and the like
    # Of the larger direction that the other one carries, where both carry the same.
    both_ways: float = levels.SHARE_LARGE
    other_class: float = levels.SHARE_SMALL  # of the logarithm of bytes
    alike: float = levels.SHARE_NEARLY_ALL  # share of the parts of a class that have the usual size


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeLayout:
    """A layout read from volumes: its degrees, and the kind of each pair that carries any."""

    dp: int
    pp: int
    tp: int
    kinds: dict[int, str]


def lay_out_volumes(traffic: Traffic, job: ObservedJob, config: VolumeConfig | None = None) -> VolumeLayout | None:
    """The layout of a job with a pipeline of three stages or more; None where volumes leave it open."""
    config = config or VolumeConfig()
    load = _sum_pairs(traffic, job, config)
    ranks = len(job.endpoints)
    classes = [_part(edges, ranks_of(job), both) for both, edges in _class_edges(load, config)]
    # What goes one way is no pipeline: a ring of which samples missed a pair is a path, too.
    paths = [c for c in classes if c.both and c.shape == "path" and c.size >= 3 and c.even >= config.alike]
    if len(paths) != 1 or sum(c.shape == "path" and c.size >= 3 for c in classes) != 1:
        return None
    (pipeline,) = paths
    place = pipeline.number_along()
    if len(place) < config.alike * ranks:
        return None
    kinds: dict[Edge, str] = dict.fromkeys(pipeline.edges, "pp")
    dp = 1
    for other in classes:
        if other is pipeline:
            continue
        known = [(place[a], place[b]) for a, b in other.edges if a in place and b in place]
        ties = [p[0] == q[0] and {p[1], q[1]} == {0, pipeline.size - 1} for p, q in known]
        beside = [p[0] != q[0] and p[1] in (q[1], pipeline.size - 1 - q[1]) for p, q in known]
        if known and np.mean(ties) >= config.alike:
            kinds |= dict.fromkeys(other.edges, "embedding")
        elif known and np.mean(beside) >= config.alike:
            kinds |= dict.fromkeys(other.edges, "dp")
            dp = max(dp, other.size)
        else:
            return None
    if ranks % (pipeline.size * dp):
        return None
    named = {pair: kinds[_edge(s, d)] for pair, s, d in load.select("pair", "src", "dst").iter_rows()}
    return VolumeLayout(dp=dp, pp=pipeline.size, tp=ranks // (pipeline.size * dp), kinds=named)


def ranks_of(job: ObservedJob) -> int:
    """One more than the largest number of an endpoint."""
    return int(job.endpoints.max()) + 1


def _edge(src: int, dst: int) -> Edge:
    return (min(src, dst), max(src, dst))


def _sum_pairs(traffic: Traffic, job: ObservedJob, config: VolumeConfig) -> pl.DataFrame:
    """pair src dst bytes of all pairs that are not light."""
    own = traffic.pairs[job.pairs].select("pair", pl.col("src", "dst").cast(pl.Int64), "bytes")
    return own.filter(pl.col("bytes") >= config.light * pl.col("bytes").max())


def _class_edges(load: pl.DataFrame, config: VolumeConfig) -> list[tuple[bool, list[Edge]]]:
    """Pairs without their direction, in classes of one volume; what goes one way is apart from what goes both ways."""
    sent = {(s, d): float(b) for s, d, b in load.select("src", "dst", "bytes").iter_rows()}
    found: dict[bool, dict[Edge, float]] = {True: {}, False: {}}
    for (s, d), size in sent.items():
        back = sent.get((d, s), 0.0)
        both = min(size, back) >= config.both_ways * max(size, back)
        found[both][_edge(s, d)] = max(size, back)
    classes: list[tuple[bool, list[Edge]]] = []
    for both, edges in found.items():
        ordered = sorted(edges, key=lambda e: edges[e])
        for i, edge in enumerate(ordered):
            if i == 0 or np.log(edges[edge] / edges[ordered[i - 1]]) > config.other_class:
                classes.append((both, []))
            classes[-1][1].append(edge)
    return classes


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeClass:
    """Edges of one volume: the shape of the parts they form, the usual size of these, and how many have it."""

    edges: list[Edge]
    both: bool  # whether each carries as much in either direction
    shape: str  # path, ring or other
    size: int
    even: float
    parts: list[list[int]]

    def number_along(self) -> dict[int, tuple[int, int]]:
        """By endpoint of a class of paths the number of its path and its place in it, from either end."""
        beside: dict[int, list[int]] = {}
        for a, b in self.edges:
            beside.setdefault(a, []).append(b)
            beside.setdefault(b, []).append(a)
        found: dict[int, tuple[int, int]] = {}
        for number, part in enumerate(self.parts):
            here, at = next(e for e in sorted(part) if len(beside[e]) == 1), 0
            while here is not None:
                found[here] = (number, at)
                here, at = next((e for e in beside[here] if e not in found), None), at + 1  # type: ignore[assignment]
        return found


def _part(edges: list[Edge], num: int, both: bool) -> EdgeClass:
    """The parts that edges form, and what most of them look like."""
    ends = np.array(edges, np.int64)
    labels = connect(num, ends[:, 0], ends[:, 1])
    degree = Counter(ends.ravel().tolist())
    parts: dict[int, list[int]] = {}
    for e in degree:
        parts.setdefault(int(labels[e]), []).append(e)
    count = Counter(int(labels[a]) for a, _ in edges)
    shapes = Counter(_shape_of(part, count[label], degree) for label, part in parts.items())
    sizes = Counter(len(part) for part in parts.values())
    size, most = sizes.most_common(1)[0]
    shape = shapes.most_common(1)[0][0] if len(shapes) == 1 else "other"
    return EdgeClass(edges=edges, both=both, shape=shape, size=size, even=most / len(parts), parts=list(parts.values()))


def _shape_of(part: list[int], edges: int, degree: Counter[int]) -> str:
    most = max(degree[e] for e in part)
    return "other" if most > 2 else "path" if edges == len(part) - 1 else "ring"
