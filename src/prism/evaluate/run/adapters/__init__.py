"""How samples become outputs and outputs become scores: built-in tasks, lm-evaluation-harness, commands."""

from prism.evaluate.run.adapters.adapter import Adapter, Bench, SampleError, Survey
from prism.evaluate.run.adapters.builtin import BUILTIN_DATASETS
from prism.evaluate.run.adapters.opening import open_adapter

__all__ = ["BUILTIN_DATASETS", "Adapter", "Bench", "SampleError", "Survey", "open_adapter"]
