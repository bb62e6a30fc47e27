"""Fault history and counters -> risk per part, with reasons. The names below load on first use."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
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
