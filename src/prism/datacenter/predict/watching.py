"""Risks over time: which nodes need an alert, once each, and whether the risks are still calibrated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prism.datacenter.predict.forecast import Forecast
from prism.datacenter.predict.nodes import NodeRisk, gather_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchConfig:
    """When a node needs an alert."""

    limit: float = 0.2  # probability of an event within the horizon
    rearm: float = 0.5  # share of the limit below which a node may be alerted about again


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A message to the person on call."""

    kind: str  # risk, counter, drift, stale
    node: str
    text: str

    def to_json(self, at_ns: int) -> dict[str, Any]:
        """One line of the stream."""
        return {"at_ns": at_ns, "kind": self.kind, "node": self.node, "text": self.text}


@dataclass(slots=True, kw_only=True)
class RiskWatch:
    """Takes each new forecast and returns the alerts. Opens no file."""

    config: WatchConfig = field(default_factory=WatchConfig)
    alerted: set[str] = field(default_factory=set)
    drifted: bool = False
    stale: bool = False
    rising: set[str] = field(default_factory=set)

    def handle(
        self,
        forecast: Forecast,
        came: int,
        told: tuple[float, float] | None,
        *,
        stale_h: float = 0.0,
        rising: Mapping[str, str] | None = None,
    ) -> list[Alert]:
        """Alerts of this hour; calibration is judged by the number of events that `came` and the range `told` before.

        `rising` names counters that mean damage, by node and counter, whatever the history says of the node.
        """
        found = [self._risk(node, forecast.horizon_days) for node in self._new(gather_nodes(forecast))]
        rising = rising or {}
        found += [
            Alert(kind="counter", node=k.split(" ")[0], text=t) for k, t in rising.items() if k not in self.rising
        ]
        self.rising = set(rising)
        drifted = told is not None and not told[0] <= came <= told[1]
        if drifted and not self.drifted and told is not None:
            expected = f"{told[0]:.0f} to {told[1]:.0f} were expected"
            text = f"{came} parts had an event, {expected}: do not rely on the level of the risks"
            found.append(Alert(kind="drift", node="", text=text))
        stale = stale_h > 0
        if stale and not self.stale:
            text = f"the newest record is {stale_h:.0f} h old: are events still collected?"
            found.append(Alert(kind="stale", node="", text=text))
        self.drifted, self.stale = drifted, stale
        return found

    def _new(self, nodes: Sequence[NodeRisk]) -> list[NodeRisk]:
        over = {node.id for node in nodes if node.risk >= self.config.limit}
        again = {node.id for node in nodes if node.risk < self.config.limit * self.config.rearm}
        fresh = [node for node in nodes if node.id in over - self.alerted]
        self.alerted = (self.alerted | over) - again
        return fresh

    def _risk(self, node: NodeRisk, days: float) -> Alert:
        why = "; ".join(node.reasons) or "no single reason stands out"
        return Alert(kind="risk", node=node.id, text=f"{node.risk:.0%} risk within {days:g} days: {why}")


def write_metrics(forecast: Forecast, watch: RiskWatch, most: int = 200) -> str:
    """Prometheus text: the riskiest nodes, what is expected, and whether calibration holds."""
    lines = ["# HELP prism_predict_risk Probability of an event within the horizon.", "# TYPE prism_predict_risk gauge"]
    for node in gather_nodes(forecast)[:most]:
        name = node.id.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
        lines.append(f'prism_predict_risk{{node="{name}"}} {node.risk:.6g}')
    values = (
        ("expected_events", "Parts expected to have an event within the horizon.", forecast.expected_events),
        ("past_auc", "Order of the risks on the last horizon; 0.5 is chance.", forecast.past_auc),
        ("calibration_drift", "1 while events lie outside the range that was given.", float(watch.drifted)),
        ("nodes_over_limit", "Nodes that an alert is standing for.", float(len(watch.alerted))),
        ("counters_rising", "Counters that mean damage and rose in a week.", float(len(watch.rising))),
        ("scored_at_seconds", "When the risks were made, since the epoch.", forecast.at_ns / 1e9),
    )
    for name, words, value in values:
        full = f"prism_predict_{name}"
        lines += [f"# HELP {full} {words}", f"# TYPE {full} gauge", f"{full} {value:.10g}"]
    return "\n".join(lines) + "\n"
