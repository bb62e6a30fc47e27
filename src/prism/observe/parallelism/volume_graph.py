"""Layers of a job's traffic: the graph of connections that carry about the same total volume."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.jobs.grouping import ObservedJob, list_parts
from prism.observe.traffic.table import Traffic

Edge = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeConfig:
    """How volumes are compared."""

    light: float = levels.ONE_PERCENT  # of the heaviest pair: pairs that send less carry norms and the like
    few: float = levels.ONE_PERCENT  # of the heaviest connection: the same of connections
    both_ways: float = levels.SHARE_SMALL  # of an edge's bytes that come back, where both ways carry something
    other_class: float = levels.SHARE_SMALL  # of the logarithm of bytes
    chance: float = levels.SIGMAS_UNLIKELY  # deviations by which sampled volumes differ
    alike: float = levels.SHARE_NEARLY_ALL  # share of the parts of a layer that have the usual size
    sure: float = levels.SHARE_LARGE  # least probability of a reading that is reported


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Edges that connections of like volumes use, the parts they form, and how they carry it."""

    pairs: pl.DataFrame  # low high ahead back: bytes from the lower endpoint to the higher one, and back
    both: bool  # whether bytes go both ways
    shape: str  # path, ring or other
    size: int  # usual endpoints of a part
    even: float  # share of the parts that have as many
    parts: list[list[int]]
    mixed: bool  # whether connections of an edge are of two kinds: of two volumes, or not as many as channels are
    connections: int  # of an edge and way, of the kind that has fewer
    pace: float  # bytes per nanosecond of records, of connections of the slowest volume
    cut: bool  # whether a timeout cut most records, so that their time tells little

    @property
    def edges(self) -> list[Edge]:
        """Both ends of each, the lower first."""
        return list(self.pairs.select("low", "high").iter_rows())

    def number_along(self) -> dict[int, tuple[int, int]]:
        """By endpoint of a layer of paths the number of its path and its place in it, from either end."""
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

    def goes_around(self, host: Mapping[int, int]) -> list[int]:
        """The hosts in the order of a ring that goes one way through all of them; empty where there is none."""
        onward: dict[int, set[int]] = {}
        for low, high, ahead, back in self.pairs.iter_rows():
            a, b = (host[low], host[high]) if ahead >= back else (host[high], host[low])
            onward.setdefault(a, set()).add(b)
        every = {host[e] for part in self.parts for e in part}
        if self.both or set(onward) != every or any(len(to) != 1 for to in onward.values()):
            return []
        order = [min(every)]
        while len(order) < len(every):
            order.append(next(iter(onward[order[-1]])))
        return order if len(set(order)) == len(every) else []


def list_layers(traffic: Traffic, job: ObservedJob, config: VolumeConfig) -> list[Layer]:
    """The layers of a job by the volumes of its connections; an edge may be in several."""
    links = sum_links(traffic, job, config)
    drawn: dict[frozenset[Edge], list[pl.DataFrame]] = {}
    for own in links.partition_by("klass"):
        drawn.setdefault(frozenset(own.select("low", "high").iter_rows()), []).append(own)
    return [_describe(parts, config) for parts in drawn.values()]


def list_edge_layers(traffic: Traffic, job: ObservedJob, config: VolumeConfig) -> list[Layer]:
    """The layers of a job by all that an edge carries, and by how many connections."""
    links = sum_links(traffic, job, config)
    ways = pl.len().over("pair").max().over("low", "high")
    links = links.with_columns(ways.alias("ways"), pl.col("bytes").sum().over("low", "high").alias("volume"))
    klass = pl.Series("edges", _classify(links["volume"].to_numpy(), traffic, config))
    return [
        _describe(own.partition_by("klass"), config) for own in links.with_columns(klass).partition_by("edges", "ways")
    ]


def sum_links(traffic: Traffic, job: ObservedJob, config: VolumeConfig) -> pl.DataFrame:
    """pair low high onward bytes busy cut klass of connections that are not light; of pairs where none are told apart.

    The class is that of the volume. Of pairs it counts both ways: some exporters give both under one of them.
    """
    messages = traffic.messages_of(job.pairs)
    named = traffic.streams.select("stream", "connection", "cut")
    took = pl.col("end_ns") - pl.col("start_ns")  # Times that are rounded down leave its mean as it is.
    keys = ["pair", "connection"] if traffic.connected else ["pair"]
    links = messages.join(named, on="stream").group_by(keys, maintain_order=True).agg(
        pl.col("bytes").sum().cast(pl.Float64), (took.sum() + traffic.resolution_ns).alias("busy"),
        pl.col("bytes").filter("cut").sum().cast(pl.Float64).alias("cut"),
    )  # fmt: skip
    pairs = traffic.pairs.select("pair", pl.col("src", "dst").cast(pl.Int64), pl.col("bytes").alias("total"))
    links = links.join(pairs[job.pairs], on="pair").filter(pl.col("total") >= config.light * pl.col("total").max())
    links = links.filter(pl.col("bytes") >= config.few * pl.col("bytes").max()).with_columns(
        low=pl.min_horizontal("src", "dst"), high=pl.max_horizontal("src", "dst"), onward=pl.col("src") < pl.col("dst")
    )
    load = pl.col("bytes") if traffic.connected else pl.col("bytes").sum().over("low", "high")
    volume = links.select(load).to_series().to_numpy()
    return links.with_columns(pl.Series("klass", _classify(volume, traffic, config)))


def _classify(volume: NDArray[np.float64], traffic: Traffic, config: VolumeConfig) -> NDArray[np.int64]:
    """A class for each volume; those that chance may make of one are in one."""
    order = np.argsort(volume, kind="stable")
    ordered = volume[order]
    apart = np.maximum(config.other_class, config.chance * np.sqrt(traffic.sample_bytes / ordered[:-1]))
    klass = np.zeros(len(order), np.int64)
    klass[order[1:]] = np.cumsum(np.diff(np.log(ordered)) > apart)
    return klass


def _describe(parts: list[pl.DataFrame], config: VolumeConfig) -> Layer:
    """What connections of one or several volumes over the same edges look like."""
    links = pl.concat(parts)
    ahead, back = (pl.col("bytes").filter(way).sum() for way in (pl.col("onward"), ~pl.col("onward")))
    pairs = links.group_by("low", "high", maintain_order=True).agg(ahead.alias("ahead"), back.alias("back"))
    less = pl.min_horizontal("ahead", "back") >= config.both_ways * pl.max_horizontal("ahead", "back")
    ways = [int(p.group_by("pair").len()["len"].median() or 1) for p in parts]  # type: ignore[arg-type]
    # Collectives have two channels or four, and so on: what makes their number odd is something else.
    fewest = ways[0] & -ways[0] if len(ways) == 1 else min(ways)
    shape, size, even, nodes = _find_parts(list(pairs.select("low", "high").iter_rows()))
    return Layer(
        pairs=pairs,
        both=bool(pairs.select(less.mean() > levels.SHARE_HALF).item()),
        shape=shape,
        size=size,
        even=even,
        parts=nodes,
        mixed=len(parts) > 1 or fewest != ways[0],
        connections=fewest,
        pace=min(float(p["bytes"].sum() / max(int(p["busy"].sum()), 1)) for p in parts),
        cut=float(links["cut"].sum()) > levels.SHARE_HALF * float(links["bytes"].sum()),
    )


def _find_parts(edges: list[Edge]) -> tuple[str, int, float, list[list[int]]]:
    """The shape of most parts that edges form, their usual size, how many have it, and the parts."""
    ends = np.array(edges, np.int64)
    parts = [part.tolist() for part in list_parts(*ends.T)]
    degree = Counter(ends.ravel().tolist())
    shapes = {_shape_of([degree[e] for e in part]) for part in parts}
    size, most = Counter(map(len, parts)).most_common(1)[0]
    return shapes.pop() if len(shapes) == 1 else "other", size, most / len(parts), parts


def _shape_of(degrees: list[int]) -> str:
    """The shape of a part, from how many edges each of its nodes has."""
    return "other" if max(degrees) > 2 else "path" if 1 in degrees else "ring"


def lie_side_by_side(order: list[int], groups: list[set[int]]) -> bool:
    """Whether groups of hosts are runs of the ring's order."""
    place = {h: i for i, h in enumerate(order)}
    for group in groups:
        at = sorted(place[h] for h in group)
        gaps = [b - a for a, b in pairwise([*at, at[0] + len(order)])]
        if sum(gap > 1 for gap in gaps) > 1:
            return False
    return True
