"""Fault history and counters -> risk per part and node, advice, replay. The names below load on first use."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Advice": "prism.datacenter.predict.advice",
    "AdviceConfig": "prism.datacenter.predict.advice",
    "advise": "prism.datacenter.predict.advice",
    "NodeRisk": "prism.datacenter.predict.nodes",
    "gather_nodes": "prism.datacenter.predict.nodes",
    "Replayed": "prism.datacenter.predict.replaying",
    "TraceConfig": "prism.datacenter.predict.replaying",
    "forecast_often": "prism.datacenter.predict.replaying",
    "replay_history": "prism.datacenter.predict.replaying",
    "RiskRound": "prism.datacenter.predict.rounds",
    "RiskWatch": "prism.datacenter.predict.watching",
    "WatchConfig": "prism.datacenter.predict.watching",
    "add_counters": "prism.datacenter.predict.history",
    "Forecast": "prism.datacenter.predict.forecast",
    "PredictConfig": "prism.datacenter.predict.level",
    "Risk": "prism.datacenter.predict.forecast",
    "predict": "prism.datacenter.predict.forecast",
    "History": "prism.datacenter.predict.history",
    "read_history": "prism.datacenter.predict.history",
    "backtest": "prism.datacenter.predict.backtesting",
}

__all__ = [*sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'prism.datacenter.predict' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
