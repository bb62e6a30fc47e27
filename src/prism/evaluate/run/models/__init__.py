"""Language models as adapters see them, opened from a checkpoint folder."""

from prism.evaluate.run.models.model import Continuation, LanguageModel, Likelihood
from prism.evaluate.run.models.opening import open_model

__all__ = ["Continuation", "LanguageModel", "Likelihood", "open_model"]
