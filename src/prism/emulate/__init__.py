"""A real training program, a few ranks live, the rest virtual.

The names below load on first use: the part that runs inside a training process must not import the rest.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "CaptureConfig": "capturing",
    "CheckConfig": "checking",
    "CheckReport": "checking",
    "EmulateConfig": "emulation",
    "Emulation": "emulation",
    "FaultPlan": "inside.plan",
    "LaunchConfig": "launch",
    "LiveRun": "live",
    "Prediction": "predict",
    "calibrate": "calibrating",
    "capture_job": "capturing",
    "check": "checking",
    "describe_emulation": "document",
    "emulate": "emulation",
    "predict_captures": "emulation",
    "read_sweep": "sweep",
    "run_live": "live",
    "run_sweep": "sweep",
    "write_outputs": "outputs",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'prism.emulate' has no attribute {name!r}")
    return getattr(importlib.import_module(f"prism.emulate.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
