"""How samples become outputs and outputs become scores: built-in tasks, lm-evaluation-harness, commands."""

from prism.evaluate.adapters.adapter import Adapter, Bench, SampleError, Survey, open_adapter
from prism.evaluate.adapters.builtin import BUILTIN_DATASETS

__all__ = ["BUILTIN_DATASETS", "Adapter", "Bench", "SampleError", "Survey", "open_adapter"]
