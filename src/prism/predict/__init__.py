"""Fault history and counters -> risk per part and node, advice, replay. The names below load on first use."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Advice": "prism.predict.advice",
    "AdviceConfig": "prism.predict.advice",
    "advise": "prism.predict.advice",
    "NodeRisk": "prism.predict.nodes",
    "gather_nodes": "prism.predict.nodes",
    "Replayed": "prism.predict.replaying",
    "TraceConfig": "prism.predict.replaying",
    "forecast_often": "prism.predict.replaying",
    "replay_history": "prism.predict.replaying",
    "RiskRound": "prism.predict.rounds",
    "RiskWatch": "prism.predict.watching",
    "WatchConfig": "prism.predict.watching",
    "add_counters": "prism.predict.history",
    "Forecast": "prism.predict.forecast",
    "PredictConfig": "prism.predict.forecast",
    "Risk": "prism.predict.forecast",
    "predict": "prism.predict.forecast",
    "History": "prism.predict.history",
    "read_history": "prism.predict.history",
    "backtest": "prism.predict.backtesting",
}

__all__ = [*sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'prism.predict' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
