"""What the built-in tasks ask of a model: how likely a continuation is, and what comes next."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

TINY = "prism-tiny"  # the `model_type` of the model that needs neither torch nor a tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """A text and what may follow it."""

    context: str
    continuation: str


class LanguageModel(Protocol):
    """A model on its device."""

    def likelihoods(self, asked: Sequence[Continuation], batch: int) -> list[float]:
        """The log probability of all tokens of each continuation; it does not depend on what else is asked."""
        ...

    def generate(self, prompts: Sequence[str], max_tokens: int, batch: int) -> list[str]:
        """The likeliest next tokens of each prompt."""
        ...


def is_tiny(folder: Path) -> bool:
    """Whether a checkpoint folder holds a model that needs no torch."""
    try:
        return bool(json.loads((folder / "config.json").read_text()).get("model_type") == TINY)
    except (OSError, ValueError, AttributeError):
        return False
