"""Layout: degrees and groups, from stages, from which ranks act together, and from the number of ranks."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np
import polars as pl

from prism.observe.jobs.grouping import ObservedJob
from prism.observe.parallelism.gradient_groups import count_gradient_groups
from prism.observe.parallelism.layout_model import RankCount, confidence_of, rank_layouts
from prism.observe.parallelism.layout_readings import Counts, find_groups, part_experts, read_lockstep
from prism.observe.parallelism.rank_counts import Ranks, list_nics, list_rank_counts
from prism.observe.parallelism.stages import StageMap, spread_over_nics
from prism.observe.traffic.table import Traffic
from prism.records.layout import DEGREES, Alternative, Degree, Group, Layout
from prism.records.scheduled import ScheduledJob

_LISTED = 4  # layouts that are listed, the best one among them
_SURE_OTHERWISE = 0.8  # confidence of an inferred layout that contradicts a declared one


def relabel_ties(streams: pl.DataFrame, stages: StageMap) -> pl.DataFrame:
    """A collective between the first and the last stage is not data parallel: it ties their embeddings."""
    if not stages.chains:
        return streams
    last = max(stages.stage.values())
    ends = [streams[c].to_numpy() for c in ("src", "dst")]
    table = stages.tabulate(int(max(map(np.max, ends))) + 1)
    src, dst = (table[side] for side in ends)
    collective = streams["kind"].is_in(["dp", "cp", "tp"]).to_numpy()
    across = (src >= 0) & (dst >= 0) & collective & (src != dst)
    ties = across & (np.minimum(src, dst) == 0) & (np.maximum(src, dst) == last)
    if across.sum() > 2 * max(1, ties.sum()):
        return streams  # Collectives between all stages: the stages are wrong.
    return streams.with_columns(pl.when(pl.Series(ties)).then(pl.lit("embedding")).otherwise("kind").alias("kind"))


def _count(traffic: Traffic, job: ObservedJob, streams: pl.DataFrame, stages: StageMap, ranks: Ranks) -> Counts:
    """The counts of a job, given its number of ranks."""
    period_ns = job.period_ns or float(job.last_ns - job.first_ns)
    gradients = count_gradient_groups(traffic, streams, period_ns, shared=ranks.shared)
    if ranks.guessed and not ranks.shared and gradients.dense:
        gradients = replace(gradients, dense=1, expert=1, stages=1)  # channels and groups cannot be distinguished
    return Counts(
        ranks=ranks,
        streams=streams,
        stages=stages,
        host=traffic.endpoints["host_id"].to_numpy().astype(np.int64),
        gradients=part_experts(gradients, ranks.per_host),
        groups=find_groups(streams, stages),
        connected=traffic.connected,
    )


def infer_layout(
    traffic: Traffic, job: ObservedJob, streams: pl.DataFrame, stages: StageMap, gpus_per_host: int | None = None
) -> Layout:
    """The most likely layout of a job; with `gpus_per_host`, indistinguishable ranks may share NICs."""
    host = traffic.endpoints["host_id"].to_numpy().astype(np.int64)
    possible = list_rank_counts(traffic, job, streams, gpus_per_host, host)
    counted = [_count(traffic, job, streams, stages, ranks) for ranks in possible]
    ranked = rank_layouts(
        [
            RankCount(
                ranks=c.ranks.total,
                per_host=c.inside,
                readings=[*c.read(), *read_lockstep(traffic, c)],
                likely=c.ranks.likely,
            )
            for c in counted
        ]
    )
    best = ranked[0].degrees
    address = traffic.endpoints["address"].to_list()
    staged = spread_over_nics(stages, streams.filter(pl.col("kind") == "pp"), best.pp, list_nics(traffic, job))
    return Layout(
        **{name: Degree(getattr(best, name), round(confidence_of(ranked, name), 3)) for name in DEGREES},
        joint=round(ranked[0].probability, 3),
        alternatives=tuple(
            Alternative(**asdict(other.degrees), probability=round(other.probability, 3)) for other in ranked[1:_LISTED]
        ),
        sharding="unknown",
        groups=tuple(
            Group(kind=kind, members=tuple(address[e] for e in sorted(m)), confidence=0.9)
            for kind, m in counted[0].groups
        ),
        stages={address[e]: s for e, s in staged.items()},
    )


def declare_layout(layout: Layout, given: ScheduledJob | None) -> tuple[Layout, tuple[str, ...]]:
    """The layout with the degrees that were declared, and a line where the records are sure of others.

    A degree that a declaration leaves out is one, but for the replicas, which are what is left of the GPUs.
    """
    if given is None or not given.degrees:
        return layout, ()
    degrees = dict(given.degrees)
    inner = math.prod(value for name, value in degrees.items() if name in ("tp", "pp", "cp"))
    ranks = given.gpus or math.prod(getattr(layout, name).value or 1 for name in ("dp", "pp", "tp", "cp"))
    if "dp" not in degrees and ranks % inner == 0:
        degrees["dp"] = ranks // inner
    names = [name for name in DEGREES if name in degrees] + [n for n in ("tp", "pp", "cp", "ep") if n not in degrees]
    told = {name: degrees.get(name, 1) for name in names}
    other = {name: getattr(layout, name).value for name in told if getattr(layout, name).value is not None}
    unlike = [f"{name}={value}" for name, value in other.items() if value != told[name]]
    notes: tuple[str, ...] = ()
    if unlike and layout.confidence >= _SURE_OTHERWISE:
        said = ",".join(f"{name}={value}" for name, value in given.degrees.items())
        notes = (f"{said} is declared, but its traffic looks like {','.join(unlike)} ({layout.confidence:.2f})",)
    if given.gpus is not None and math.prod(told[n] for n in told if n != "ep") != given.gpus:
        notes += (f"its declared layout is not of {given.gpus} GPUs",)
    sure = {name: Degree(value, 1.0) for name, value in told.items()}
    return replace(layout, **sure, joint=1.0, alternatives=()), notes  # type: ignore[arg-type]
