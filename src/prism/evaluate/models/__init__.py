"""Language models as adapters see them, opened from a checkpoint folder."""

from prism.evaluate.models.model import Continuation, LanguageModel, Likelihood, open_model

__all__ = ["Continuation", "LanguageModel", "Likelihood", "open_model"]
