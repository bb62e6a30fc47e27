"""Risks of parts, combined for the node that holds them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from prism.datacenter.predict.forecast import Forecast
from prism.datacenter.predict.history import DAY_NS, History
from prism.recover.blame import BLAMED, blame_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRisk:
    """The probability that a node has an event within the horizon, and why."""

    id: str
    risk: float
    parts: int
    reasons: tuple[str, ...]

    def per_day(self, horizon_days: float) -> float:
        """Its hazard, assumed constant over the horizon."""
        return -math.log1p(-min(self.risk, 0.999_999)) / horizon_days

    def to_json(self) -> dict[str, Any]:
        """The document form."""
        return {"id": self.id, "risk": self.risk, "parts": self.parts, "reasons": list(self.reasons)}


def gather_nodes(forecast: Forecast) -> tuple[NodeRisk, ...]:
    """Nodes by risk, highest first: a node fails when any part of it does.

    A part's node is the place it is in, up to a slash (`node-3/gpu-5`); a part without a place is a node itself.
    """
    survives: dict[str, float] = {}
    parts: dict[str, int] = {}
    reasons: dict[str, list[str]] = {}
    for risk in forecast.risks:  # highest first, so the reasons of the riskiest part come first
        node = risk.place.split("/", 1)[0] or risk.id
        survives[node] = survives.get(node, 1.0) * (1.0 - risk.risk)
        parts[node] = parts.get(node, 0) + 1
        told = reasons.setdefault(node, [])
        if not told:
            told.extend(risk.reasons)
    nodes = [NodeRisk(id=n, risk=1.0 - s, parts=parts[n], reasons=tuple(reasons[n])) for n, s in survives.items()]
    return tuple(sorted(nodes, key=lambda node: -node.risk))


def blame_places(history: History, at_ns: int) -> pl.DataFrame:
    """Nodes that had more days with events than their time explains; nobody where it is not known who had none."""
    if not history.lives_known:
        return pl.DataFrame(schema=BLAMED)
    known = history.before(at_ns)
    names = np.array([name.split("/", 1)[0] for name in known.place_names], dtype=object)
    hours = (np.minimum(known.removed_ns, at_ns) - known.installed_ns) / 3.6e12
    stays = pl.DataFrame(
        {"node": names[known.stay_place], "hours": hours}, schema={"node": pl.String, "hours": pl.Float64}
    )
    events = pl.DataFrame(
        {"node": names[known.event_place], "day": known.event_ns // DAY_NS}, schema={"node": pl.String, "day": pl.Int64}
    )
    counts = events.unique().group_by("node").agg(failures=pl.len().cast(pl.Int64))
    on_nodes = stays.group_by("node").agg(pl.col("hours").sum()).join(counts, on="node", how="left")
    on_nodes = on_nodes.with_columns(pl.col("failures").fill_null(0), jobs=pl.col("hours"), stratum=pl.lit(0))
    return blame_nodes(on_nodes, on_nodes.group_by("stratum").agg(pl.col("jobs", "hours", "failures").sum()))


def total_per_day(nodes: Iterable[NodeRisk], horizon_days: float) -> float:
    """Failures per day of a job on these nodes."""
    return sum(node.per_day(horizon_days) for node in nodes)
