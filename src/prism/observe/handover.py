"""The handover from step to step: ranks end one and begin the next each on its own, most of them unseen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import polars as pl

from prism.observe.jobs import connect
from prism.observe.steps import STEPS
from prism.records.layout import Layout

_UNEVEN = 0.01  # by how much the same work takes ranks longer or shorter: standard deviation, as a share
_UPDATE_BYTES = 30  # that Adam reads and writes per parameter, in mixed precision
_MEMORY_BYTES_PER_NS = 2_000.0  # of a data-centre GPU
_GRADIENT_BYTES, _PARAMETER_BYTES = 4, 2  # per parameter, on the network
_HOST_NS = 2_000_000  # of hosts' work that any two things of a step may have between them
_ALIKE = 0.1  # relative difference up to which messages are of one size
_UPDATE_SHARE = 0.1  # of the time until the first message that goes to the update, where no gradients are seen
_NARROWS = 0.24  # power of a number of ranks by which the spread of the latest of so many narrows


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """How many ranks a job has, how many of them move in lockstep, and how many such teams begin a step."""

    ranks: int
    team: int
    teams: int


def overlap_steps(steps: pl.DataFrame, voices: pl.DataFrame, layout: Layout) -> pl.DataFrame:
    """The steps, from where their first rank begins to where their last one ends; `steps` is what `find_steps` returns.

    The last synchronisation shows when all ranks have come. From then on each updates its parameters, and leaves a
    pause, on its own: the more ranks there are the further the first is ahead of the last. Ranks in lockstep are seen
    to begin when the last of them does.
    """
    crew = _count_crew(layout, voices)
    lead = float(steps["lead_ns"].median() or 0)  # type: ignore[arg-type]
    update = min(_measure_update(voices, layout, crew.ranks) or _UPDATE_SHARE * lead, lead)
    # Between an update and the gathering that completes it nothing happens; between steps hosts prepare the next one.
    completes = pl.col("rest_ns") <= 2 * update + _HOST_NS
    apart = pl.when(completes).then(pl.col("apart_ns")).otherwise(0)
    apart += round(2 * expect_latest(crew.ranks) * _UNEVEN * update)
    unseen = expect_latest(crew.ranks) + expect_latest(crew.team)
    unseen -= expect_latest(crew.teams) * crew.team**-_NARROWS
    before = (pl.col("pause_ns") * (_UNEVEN * unseen)).round().cast(pl.Int64)
    moved = steps.with_columns(pl.col("start_ns") - before, pl.col("end_ns") + apart)
    return moved.select(list(STEPS))


def expect_latest(num: int) -> float:
    """How late the latest of so many is expected to be, in standard deviations (Blom's approximation)."""
    return NormalDist().inv_cdf((num - 0.375) / (num + 0.25))


def _count_crew(layout: Layout, voices: pl.DataFrame) -> Crew:
    dp, pp, tp, cp = (d.value or 1 for d in (layout.dp, layout.pp, layout.tp, layout.cp))
    seen = pl.concat([voices["src"], voices["dst"]]).n_unique()
    ranks = max(math.prod((dp, pp, tp, cp)), seen)
    return Crew(ranks=ranks, team=tp, teams=max(1, ranks // (tp * pp)))


def _measure_update(voices: pl.DataFrame, layout: Layout, ranks: int) -> float | None:
    """Nanoseconds of the optimizer: it touches each parameter that a rank keeps, and its gradients tell how many."""
    gradients = voices.filter(pl.col("kind") == "dp")
    if gradients.is_empty():
        return None
    copies = (layout.dp.value or 1) * (layout.cp.value or 1)
    src, dst = (gradients[c].to_numpy().astype(np.int64) for c in ("src_host", "dst_host"))
    together = connect(int(max(src.max(), dst.max())) + 1, src, dst)[np.unique(src)]
    hosts = float(np.median(np.unique(together, return_counts=True)[1]))
    pieces = max(1.0, ranks / voices["src_host"].n_unique() * hosts / copies)
    # Of h hosts that sum or gather something each sends (h - 1) / h of it, and as much of the sum.
    whole = hosts / max(hosts - 1, 1) / pieces
    volume = (pl.col("bytes") * pl.col("per_step")).sum().alias("sent")
    sent = gradients.group_by("src_host", (pl.col("bytes").log() / _ALIKE).round()).agg(volume)
    by_host = sent.group_by("src_host").agg(pl.col("sent").sum(), pl.col("sent").min().alias("least")).median()
    update = whole * _UPDATE_BYTES / _MEMORY_BYTES_PER_NS
    if _gathers(gradients):  # once, however often gradients are summed
        return update * float(by_host["least"][0]) / _PARAMETER_BYTES / copies
    return update * float(by_host["sent"][0]) / (2 * _GRADIENT_BYTES)


def _gathers(gradients: pl.DataFrame) -> bool:
    """Whether ranks gather parameters after they have summed gradients, so that each keeps a share of them.

    Gradients alone are cut into equal buckets; parameters, half as large, come in others.
    """
    sizes = gradients.group_by("unit").agg((pl.col("bytes").log() / _ALIKE).round().n_unique().alias("num"))
    return float(sizes["num"].median()) >= 2  # type: ignore[arg-type]
