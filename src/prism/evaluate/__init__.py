"""Checkpoints x datasets -> trials -> scores. The names below load on first use."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "evaluate": "prism.evaluate.evaluation",
    "Evaluation": "prism.evaluate.evaluation",
    "EvaluateConfig": "prism.evaluate.evaluation",
    "read_plan": "prism.evaluate.plan_file",
    "EvaluationPlan": "prism.evaluate.plan_file",
    "open_engine": "prism.evaluate.run.engines",
    "BUILTIN_DATASETS": "prism.evaluate.run.adapters",
    "write_results": "prism.evaluate.results",
}

__all__ = [*sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'prism.evaluate' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
