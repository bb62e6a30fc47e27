"""LoRA adapters: which model one belongs to, and a model that stays on its device while adapters come and go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prism.errors import BadFileError, MissingExtraError

ADAPTER_FILE = "adapter_config.json"


def find_base(folder: Path) -> Path:
    """The folder of the model that an adapter changes; only one on disk counts, nothing is fetched."""
    path = folder / ADAPTER_FILE
    try:
        named = str(json.loads(path.read_text())["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError):
        raise BadFileError(f"{path}: names no 'base_model_name_or_path'; write the adapter again") from None
    return check_base(Path(named), path)


def check_base(base: Path, where: Path) -> Path:
    """The same folder; raises where it holds no model."""
    if not (base / "config.json").is_file():
        raise BadFileError(
            f"{where}: its base model '{base}' is no folder with a config.json here; "
            "give the checkpoint's 'base' in the plan"
        )
    return base


class AdapterSwitch:
    """A model and the adapter that it wears."""

    def __init__(self, model: Any) -> None:
        self.model = model  # as it answers now
        self._base = model
        self._adapter: Path | None = None

    def use_adapter(self, adapter: Path | None) -> Any:
        """Put an adapter on in place of the one before; None: the model as it is. The model to ask."""
        if adapter == self._adapter:
            return self.model
        if self._adapter is not None:
            self._base = self.model.unload()
        self.model, self._adapter = self._base, adapter
        if adapter is not None:
            try:
                from peft import PeftModel
            except ImportError:
                raise MissingExtraError("a LoRA adapter", "harness") from None
            self.model = PeftModel.from_pretrained(self._base, str(adapter)).eval()
        return self.model


def split_adapter(folder: Path) -> tuple[Path, Path | None]:
    """The folder of a model, and of the adapter to put on it."""
    return (find_base(folder), folder) if (folder / ADAPTER_FILE).is_file() else (folder, None)
