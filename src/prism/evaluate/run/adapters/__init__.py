"""How samples become outputs and outputs become scores: built-in tasks, lm-evaluation-harness, commands."""

from __future__ import annotations

from prism.errors import BadConfigError
from prism.evaluate.run.adapters.adapter import Adapter, SampleError, Survey, WorkerCache
from prism.evaluate.run.adapters.builtin import BUILTIN_DATASETS, BuiltinAdapter

__all__ = ["BUILTIN_DATASETS", "Adapter", "SampleError", "Survey", "WorkerCache", "open_adapter"]


def open_adapter(name: str) -> Adapter:
    """The adapter of that name."""
    if name == "builtin":
        return BuiltinAdapter()
    if name == "lm-eval":
        from prism.evaluate.run.adapters.harness import HarnessAdapter

        return HarnessAdapter()
    if name == "command":
        from prism.evaluate.run.adapters.command import CommandAdapter

        return CommandAdapter()
    raise BadConfigError(f"'{name}' is no adapter; expected builtin, lm-eval or command")
