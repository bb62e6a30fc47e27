"""How well the communication of a graph is known: measured, fitted or modelled, and within which band."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from prism.records.ops import COLLECTIVES, POINT_TO_POINT
from prism.simulate.bands import CALIBRATE_ABOVE_PCT
from prism.simulate.costs import PROVENANCES, ClusterCosts, estimate_ops
from prism.simulate.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What is known about the transfers of a graph, each weighted by the time it takes."""

    error_band_pct: float  # 95 of 100 measured times lie within a factor of 1 + this / 100
    measured_share: float  # of the time: from measured points or a fit to them

    @property
    def needs_calibration(self) -> bool:
        """Whether too little is known about this network to rely on the times."""
        return self.error_band_pct > CALIBRATE_ABOVE_PCT

    def to_json(self) -> dict[str, Any]:
        """The document form that `prism simulate --json` prints."""
        return {
            "error_band_pct": round(self.error_band_pct, 1),
            "measured_share": round(self.measured_share, 3),
            "calibrate": self.needs_calibration,
        }


def assess_communication(graph: Graph, costs: ClusterCosts) -> Assessment:
    """Estimate one rank's transfers of every class; ops that carry a measured duration are not asked about."""
    ops = graph.ops.filter(pl.col("kind").is_in([*COLLECTIVES, *POINT_TO_POINT]) & pl.col("duration_ns").is_null())
    sized = ops.with_columns(pl.coalesce(pl.col("bytes"), pl.col("sizes").list.sum(), pl.lit(0)).alias("bytes"))
    first = graph.ranks.group_by("class").agg(pl.col("rank").min())
    asked = sized.group_by("class", "slot", "kind", "bytes").agg(pl.len().alias("calls")).join(first, on="class")
    members = graph.groups.join(graph.ranks, on="rank").group_by("group").agg("host", "local")
    mine = asked.join(graph.groups.select("slot", "rank", "group"), on=["slot", "rank"]).join(members, on="group")
    mine = mine.filter(pl.col("host").list.len() > 1)
    if mine.is_empty():
        return Assessment(error_band_pct=0.0, measured_share=0.0)
    seats = list(dict.fromkeys(zip(map(tuple, mine["host"]), map(tuple, mine["local"]), strict=True)))
    number = {seat: i for i, seat in enumerate(seats)}
    index = np.array([number[tuple(h), tuple(n)] for h, n in zip(mine["host"], mine["local"], strict=True)], np.int64)
    placements = [costs.place(hosts, locals_) for hosts, locals_ in seats]
    kinds = mine["kind"].cast(pl.String).to_list()
    sizes = mine["bytes"].cast(pl.Int64).to_numpy()
    found = estimate_ops(kinds, sizes, index, placements, costs.cluster, costs.calibration)
    weight = (found.duration_ns + 1) * mine["calls"].to_numpy()
    return Assessment(
        error_band_pct=float(np.average(found.error_band_pct, weights=weight)),
        measured_share=float(np.average(found.provenance > PROVENANCES.index("modelled"), weights=weight)),
    )
