"""The harness's model for a checkpoint: Hugging Face in this process, vLLM, or an OpenAI-compatible server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prism.errors import BadConfigError
from prism.evaluate.run.adapters.adapter import WorkerCache, batch_of
from prism.evaluate.run.models.endpoint import ENDPOINT_FILE, read_endpoint
from prism.evaluate.run.models.lora import AdapterSwitch, split_adapter
from prism.evaluate.schedule.trials import Dataset

ENGINES = ("hf", "vllm")


def open_harness_model(dataset: Dataset, model: Path, cache: WorkerCache, shrink: int) -> Any:
    """The model in the cache, ready for requests; it stays there for the next part."""
    if (model / ENDPOINT_FILE).is_file():
        return cache.keep("model", ("endpoint", model, _words(dataset)), lambda: _open_endpoint(dataset, model))
    engine, options = _read_engine(dataset)
    if engine == "vllm":
        return cache.keep("model", ("vllm", model, _words(dataset)), lambda: _open_vllm(model, options))
    options = {**dict(dataset.settings.get("model_args", {})), **options}
    base, adapter = split_adapter(model)
    key = ("lm-eval", base, _words(dataset))
    held = cache.keep("model", key, lambda: _Held(_open_pretrained(base, cache, options)))
    held.lm._model = held.switch.use_adapter(adapter)
    held.lm.batch_size_per_gpu = batch_of(dataset, shrink)
    return held.lm


class _Held:
    """The harness's model, whose weights an adapter may change."""

    def __init__(self, lm: Any) -> None:
        self.lm, self.switch = lm, AdapterSwitch(lm._model)


def _open_pretrained(folder: Path, cache: WorkerCache, options: dict[str, Any]) -> Any:
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(folder), device=cache.device, batch_size=1, **options)


def _open_vllm(folder: Path, options: dict[str, Any]) -> Any:
    try:
        import vllm  # noqa: F401
    except ImportError:
        raise BadConfigError("'inference.engine' is vllm, which is not installed here; pip install vllm") from None
    from lm_eval.models.vllm_causallms import VLLM

    return VLLM(pretrained=str(folder), **{"batch_size": "auto", **options})


def _open_endpoint(dataset: Dataset, model: Path) -> Any:
    from prism.evaluate.run.adapters.harness_endpoint import open_endpoint_model

    return open_endpoint_model(read_endpoint(model), bool(dataset.settings.get("apply_chat_template")))


def _read_engine(dataset: Dataset) -> tuple[str, dict[str, Any]]:
    asked = dict(dataset.settings.get("inference", {}))
    engine = asked.pop("engine", "hf")
    options = asked.pop("args", {})
    if engine not in ENGINES or asked or not isinstance(options, dict):
        raise BadConfigError(
            f"dataset '{dataset.name}': 'inference' is {dataset.settings['inference']!r}, "
            f"expected keys engine ({' or '.join(ENGINES)}) and args"
        )
    return engine, options


def _words(dataset: Dataset) -> str:
    settings = dataset.settings
    return json.dumps([settings.get("model_args", {}), settings.get("inference", {})], sort_keys=True, default=str)
