"""Language models as adapters see them, opened from a checkpoint folder."""

from __future__ import annotations

import json
from pathlib import Path

from prism.errors import BadFileError, MissingExtraError
from prism.evaluate.run.models.endpoint import ENDPOINT_FILE, EndpointModel
from prism.evaluate.run.models.model import Continuation, LanguageModel, is_tiny

__all__ = ["Continuation", "LanguageModel", "open_model"]


def open_model(folder: Path, device: str) -> LanguageModel:
    """Map a checkpoint's weights and put them on a device; `cpu`, `cuda:0`. Or the server that it names."""
    if (folder / ENDPOINT_FILE).is_file():
        return EndpointModel(folder)
    try:
        json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        raise BadFileError(
            f"{folder}: no config.json, so the model's shape is not known; put it beside the weights, "
            "or use a dataset with adapter: command"
        ) from None
    except (OSError, ValueError) as error:
        raise BadFileError(f"{folder / 'config.json'}: not readable ({error})") from None
    if is_tiny(folder):
        from prism.evaluate.run.models.tiny import TinyModel

        return TinyModel(folder)
    try:
        from prism.evaluate.run.models.pretrained import PretrainedModel
    except ImportError:
        raise MissingExtraError("a Hugging Face checkpoint", "harness") from None
    return PretrainedModel(folder, device)
