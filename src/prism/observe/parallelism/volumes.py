"""Volumes: the layout of a job whose single messages are not visible, from the total volume of each connection.

A ring through all hosts sums gradients of one model, so there are no stages; what neighbours in it exchange in addition
is context or tokens. Stages of a pipeline send each other equal volumes in both directions, in paths from the first
stage to the last. Rings of gradients go one way, or both ways between two replicas, and connect the same position of
several paths. Tied embeddings connect the two ends of a path. If volumes are ambiguous, no layout is reported.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from prism.observe import levels
from prism.observe.jobs.grouping import ObservedJob
from prism.observe.parallelism.rank_counts import Ranks
from prism.observe.parallelism.volume_graph import (
    Edge,
    Layer,
    VolumeConfig,
    lie_side_by_side,
    list_edge_layers,
    list_layers,
)
from prism.observe.traffic.table import Traffic
from prism.records.layout import Degree, Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeLayout:
    """A layout read from volumes: degrees by hosts or endpoints, how likely it is, and the kind of each edge."""

    pp: int = 1
    dp: int = 1  # endpoints that sum gradients, of a pipeline
    cp: int = 1  # hosts of a group
    ep: int = 1  # hosts of a group
    senders: float = 0.0  # connections between endpoints of two stages: one for each rank
    sure: float
    kinds: dict[Edge, str]

    def name_pairs(self, traffic: Traffic, job: ObservedJob) -> dict[int, str]:
        """The kind of each pair; in a job with gradients alone that of all pairs."""
        rest = "dp" if set(self.kinds.values()) == {"dp"} else "unknown"
        ends = traffic.pairs[job.pairs].select("pair", "src", "dst").iter_rows()
        return {pair: self.kinds.get((min(s, d), max(s, d)), rest) for pair, s, d in ends}

    def lay_out(self, ranks: Ranks | None) -> Layout:
        """The degrees of as many ranks; unknown where it is unknown how many there are."""
        if ranks is None:
            return Layout()
        inside, total = max(1, round(ranks.per_host)), ranks.total
        sure = self.sure * (levels.SHARE_LARGE if ranks.guessed else 1.0)
        tp = inside if self.cp > 1 else 1
        dp = total // (self.cp * tp)
        if self.pp > 1:
            dp, tp = self.dp, total // (self.pp * self.dp)
        values = (dp, self.pp, tp, self.cp, self.ep * inside if self.ep > 1 else 1)
        each = [Degree(value, round(sure, 3)) for value in values]
        return Layout(dp=each[0], pp=each[1], tp=each[2], cp=each[3], ep=each[4], joint=round(sure, 3))


def lay_out_volumes(traffic: Traffic, job: ObservedJob, config: VolumeConfig | None = None) -> VolumeLayout | None:
    """The layout of a job; None where volumes leave it open."""
    config = config or VolumeConfig()
    host = dict(enumerate(traffic.endpoints["host_id"].to_list()))
    rings = _read_rings(list_layers(traffic, job, config), job, host, config)
    return rings or _read_pipeline(list_edge_layers(traffic, job, config), job, config)


def _read_rings(
    layers: list[Layer], job: ObservedJob, host: dict[int, int], config: VolumeConfig
) -> VolumeLayout | None:
    """Data parallelism over all hosts, and groups of neighbours in it that exchange more."""
    every = {host[e] for e in job.endpoints.tolist()}
    around = [(layer, order) for layer in layers if len(order := layer.goes_around(host)) == len(every) > 2]
    if len(every) == 2 and len(layers) == 1:
        # Two hosts with one volume between them may be two stages, too, but these have a norm and little else.
        whole = layers[0].even >= config.alike and layers[0].size == 2
        kinds = dict.fromkeys(layers[0].edges, "dp")
        return VolumeLayout(sure=config.sure, kinds=kinds) if whole else None
    if not around:
        return None
    order = around[0][1]
    kinds = {edge: "dp" for layer, _ in around for edge in layer.edges}
    inner: list[Layer] = []
    apart = 1  # hosts of a group that lies apart
    for layer in layers:
        if any(layer is ring for ring, _ in around):
            continue
        groups = [set(part) for part in {frozenset(host[e] for e in part) for part in layer.parts}]
        if len({len(g) for g in groups}) != 1 or sum(map(len, groups)) != len(every):
            return None
        if lie_side_by_side(order, groups):
            inner.append(layer)
        else:
            apart = len(groups[0])
            kinds |= dict.fromkeys(layer.edges, "dp")
    if not inner and apart == 1:
        return VolumeLayout(sure=config.alike, kinds=kinds)
    # Experts have copies on hosts that lie apart; rings of context have none.
    kind = "ep" if apart > 1 or inner[0].shape == "other" else "cp"
    kinds |= {edge: kind for layer in inner for edge in layer.edges}
    hosts = len({host[e] for e in inner[0].parts[0]}) if inner else len(every) // apart
    return VolumeLayout(**{kind: hosts}, sure=config.sure, kinds=kinds)


def _read_pipeline(layers: list[Layer], job: ObservedJob, config: VolumeConfig) -> VolumeLayout | None:
    """The pipeline that accounts for all layers; of two that do, the likelier one."""
    # What goes one way is not a pipeline: a ring of which samples missed a pair is a path, too.
    paths = [c for c in layers if c.both and c.shape == "path" and c.even >= config.alike]
    read = [(c, found) for c in paths if (found := _explain(c, layers, job, config)) is not None]
    if not read:
        return None
    if len(read) == 1:
        return _name(*read[0], config.alike)
    if len(read) > 2 or any(layer.size > 2 for layer, _ in read):
        return None
    (one, _), (other, _) = read
    odds = weigh_stages(one, other)
    sure = min(1 / (1 + math.exp(-abs(odds))), config.alike)
    return _name(*(read[0] if odds > 0 else read[1]), sure) if sure >= config.sure else None


def _name(pipeline: Layer, read: tuple[int, dict[Edge, str]], sure: float) -> VolumeLayout:
    dp, kinds = read
    return VolumeLayout(pp=pipeline.size, dp=dp, senders=pipeline.connections, sure=sure, kinds=kinds)


def weigh_stages(one: Layer, other: Layer) -> float:
    """Logarithm of how much likelier the first layer joins stages and the second sums their gradients.

    Micro-batches come with pauses and gradients in one go, so records of the same exporter show another pace, or only
    those of gradients end before a timeout. A rank sends to the next stage by one connection and sums by several
    channels. Ties go by the edges of two stages.
    """
    pace = 0.0 if one.cut and other.cut else math.log(other.pace / one.pace)
    channels = levels.RATIO_DOUBLE * math.log(other.connections / one.connections)
    told = (one.cut > other.cut) - (one.cut < other.cut) + (one.mixed > other.mixed) - (one.mixed < other.mixed)
    return pace + channels + math.log(levels.RATIO_FAR) * told


def _explain(
    pipeline: Layer, layers: list[Layer], job: ObservedJob, config: VolumeConfig
) -> tuple[int, dict[Edge, str]] | None:
    """How many replicas a pipeline has and the kinds of all edges, if all other layers are ties or gradients."""
    place, ranks = pipeline.number_along(), len(job.endpoints)
    if len(place) < config.alike * ranks:
        return None
    kinds: dict[Edge, str] = dict.fromkeys(pipeline.edges, "pp")
    sizes: Counter[int] = Counter()
    for other in layers:
        if other is pipeline:
            continue
        known = [(place[a], place[b]) for a, b in other.edges if a in place and b in place]
        ties = [p[0] == q[0] and {p[1], q[1]} == {0, pipeline.size - 1} for p, q in known]
        beside = [p[0] != q[0] and p[1] in (q[1], pipeline.size - 1 - q[1]) for p, q in known]
        if known and np.mean(ties) >= config.alike:
            kinds = dict.fromkeys(other.edges, "embedding") | kinds
        elif known and np.mean(beside) >= config.alike and (other.shape == "ring" or other.size == 2):
            kinds |= dict.fromkeys(other.edges, "dp")
            sizes[other.size] += 1
        else:
            return None
    dp = max(sizes, default=1)
    return (dp, kinds) if ranks % (pipeline.size * dp) == 0 else None
