"""Risks of parts, combined for the node that holds them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from prism.datacenter.predict.forecast import Forecast


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


def total_per_day(nodes: Iterable[NodeRisk], horizon_days: float) -> float:
    """Failures per day of a job on these nodes."""
    return sum(node.per_day(horizon_days) for node in nodes)
