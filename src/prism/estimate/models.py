"""Read a model's shape: by a name that Prism knows, from a Hugging Face config, or from Megatron's arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from prism.errors import BadConfigError, BadFileError
from prism.records.settings import nearest, parse_mapping, read_text
from prism.simulate.plans.model import MODELS, ModelShape

_LONGEST = 8192  # of positions, where neither the file nor the command says how long sequences are
# The names that Hugging Face's configs have for each size, the usual one first.
_NAMES: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "ffn": ("moe_intermediate_size", "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads", "num_query_groups", "num_attention_heads", "n_head"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "seq": ("seq_length", "max_position_embeddings", "n_positions"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "top_k": ("num_experts_per_tok", "moe_router_topk"),
}
_GATED_TYPES = re.compile(
    r"llama|mistral|mixtral|qwen|gemma|phi3|olmo|granite|cohere|internlm|yi|deepseek|smollm|exaone"
)
# Names on model hubs, without owner, `Meta-`, and what tells tunings of one shape apart.
_HUB_NAMES = {
    "gpt3-175b": "gpt-175b",
    "gpt-3-175b": "gpt-175b",
    "llama-2-7b": "llama-7b",
    "llama-2-13b": "llama-13b",
    "llama-2-70b": "llama-70b",
    **dict.fromkeys(("llama-3-8b", "llama-3.1-8b", "llama3-8b", "llama3.1-8b"), "llama-8b"),
    **dict.fromkeys(("llama-3.1-70b", "llama-3.3-70b", "llama3-70b", "llama3.1-70b"), "llama-3-70b"),
    **dict.fromkeys(("llama-3-405b", "llama-3.1-405b", "llama3-405b", "llama3.1-405b"), "llama-405b"),
}
_TUNING = re.compile(r"^meta-|-(?:hf|instruct|chat|base|v0\.\d)(?=-|$)")
# What such a config has and the shape cannot say: a wrong number would look right.
_NOT_KNOWN = {
    "kv_lora_rank": "latent attention",
    "ssm_state_size": "state-space layers",
    "mamba_d_state": "state-space layers",
    "linear_num_value_heads": "linear attention",
    "is_encoder_decoder": "an encoder beside the decoder",
    "vision_config": "a vision tower",
    "audio_config": "an audio tower",
}


def read_model(name: str, seq: int | None = None) -> ModelShape:
    """A model by name, or from a config.json, a folder that holds one, or a file of Megatron's arguments."""
    path, known = Path(name), find_name(name)
    if known in MODELS and not path.is_file():
        model = MODELS[known]
    elif path.is_dir() or path.is_file():
        model = _read_file(path / "config.json" if path.is_dir() else path)
    else:
        raise BadConfigError(
            f"--model is '{name}'{nearest(name, MODELS)}: neither a file nor one of {', '.join(MODELS)}; for another "
            "model give its config.json"
        )
    return model if seq is None else replace(model, seq=seq)


def find_name(name: str) -> str:
    """The name here of what a hub calls `meta-llama/Llama-3.1-8B-Instruct`."""
    plain = _TUNING.sub("", name.rpartition("/")[2].lower())
    return _HUB_NAMES.get(plain, plain)


def _read_file(path: Path) -> ModelShape:
    where, text = str(path), read_text(path)
    if path.suffix == ".json":
        try:
            values = json.loads(text)
        except ValueError as error:
            raise BadFileError(f"{where}: not JSON ({error}); expected a Hugging Face config") from None
    elif re.search(r"(?m)(^|\s)--num-layers\b", text):
        values = _read_arguments(text)
    else:
        values = parse_mapping(text, where, "'num_layers' or 'hidden_size'")
    if not isinstance(values, dict):
        raise BadFileError(f"{where}: expected a mapping of sizes")
    return read_sizes(values.get("text_config") or values, where)


def _read_arguments(text: str) -> dict[str, Any]:
    """Megatron's arguments as a shell script or a file holds them; flags are true, numbers are numbers."""
    found: dict[str, Any] = {}
    for name, value in re.findall(r"--([a-z][a-z0-9-]{0,60})(?:[ =]+([A-Za-z0-9_.]{1,40})\b)?", text):
        found[name.replace("-", "_")] = int(value) if value.isdecimal() else value or True
    return found


def read_sizes(values: Mapping[str, Any], where: str) -> ModelShape:
    """The shape that a config's sizes make."""
    for key, what in _NOT_KNOWN.items():
        if values.get(key):
            raise BadConfigError(f"{where}: '{key}' means {what}, which estimate does not know; use `prism emulate`")
    sizes = {own: _find(values, names) for own, names in _NAMES.items()}
    needed = [own for own in ("layers", "hidden", "heads", "vocab") if sizes[own] is None]
    if needed:
        raise BadConfigError(
            f"{where}: no {' or '.join(_NAMES[needed[0]])}; a model needs layers, width, heads and words"
        )
    hidden, heads = int(sizes["hidden"] or 0), int(sizes["heads"] or 1)
    head_size = values.get("head_dim") or values.get("kv_channels")
    if head_size and int(head_size) * heads != hidden:
        raise BadConfigError(
            f"{where}: 'head_dim' {head_size} x {heads} heads is not 'hidden_size' {hidden}, which estimate does not "
            "know; use `prism emulate`"
        )
    ffn = sizes["ffn"] or 4 * hidden
    if not _is_gated(values):
        ffn = ffn * 2 // 3  # two matrices, as three of equal size together
    return ModelShape(
        layers=int(sizes["layers"] or 0), hidden=hidden, ffn=int(ffn), heads=heads,
        kv_heads=int(sizes["kv_heads"] or heads), vocab=int(sizes["vocab"] or 0),
        seq=min(int(sizes["seq"] or _LONGEST), _LONGEST), experts=int(sizes["experts"] or 0),
        top_k=int(sizes["top_k"] or 2),
        tied=_is_tied(values),
    )  # fmt: skip


def _find(values: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = values.get(name)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise BadConfigError(f"'{name}' is {value!r}, expected a whole number")
            return value
    return None


def _is_tied(values: Mapping[str, Any]) -> bool:
    """As the file says; else as Megatron, GPT-2 and Gemma have it, and not as the other gated families."""
    if "tie_word_embeddings" in values:
        return bool(values["tie_word_embeddings"])
    kind = str(values.get("model_type", ""))
    apart = bool(_GATED_TYPES.match(kind)) and not kind.startswith("gemma")
    return not (apart or values.get("untie_embeddings_and_output_weights"))


def _is_gated(values: Mapping[str, Any]) -> bool:
    """Whether the feed-forward block has a gate: Megatron's --swiglu, or the families of models that all have one."""
    return bool(
        values.get("swiglu") or values.get("gated_linear_unit") or _GATED_TYPES.match(str(values.get("model_type", "")))
    )
