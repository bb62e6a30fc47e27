"""What a job would take that has no program yet, from its shape: no script, no GPU, no torch."""

from prism.estimate.document import describe_estimates
from prism.estimate.estimation import Estimate, EstimateConfig, estimate, sweep
from prism.estimate.gpus import Gpu, find_gpu
from prism.estimate.layouts import Layout, read_layout
from prism.estimate.models import read_model

__all__ = [
    "Estimate",
    "EstimateConfig",
    "Gpu",
    "Layout",
    "describe_estimates",
    "estimate",
    "find_gpu",
    "read_layout",
    "read_model",
    "sweep",
]
