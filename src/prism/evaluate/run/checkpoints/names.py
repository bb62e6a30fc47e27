"""Tensors under the names of Hugging Face, from wrapped modules and from torchtitan's and Megatron's layouts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from prism.errors import BadFileError
from prism.evaluate.run.checkpoints.tensors import Array, Tensor

# Parts of names that wrappers of modules leave: torch.compile, FSDP1, activation checkpointing, DDP.
_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_forward_module.")
# The embedding of each family of models, by which the names before it are known to be a prefix.
_EMBEDDINGS = (
    "model.embed_tokens.weight",
    "transformer.wte.weight",
    "gpt_neox.embed_in.weight",
    "model.decoder.embed_tokens.weight",
    "transformer.word_embeddings.weight",
    "backbone.embeddings.weight",
    "model.language_model.embed_tokens.weight",
)
_TITAN_EMBEDDING = "tok_embeddings.weight"
_MEGATRON_EMBEDDING = "embedding.word_embeddings.weight"
_TITAN = {
    "attention.wq.weight": "self_attn.q_proj.weight",
    "attention.wk.weight": "self_attn.k_proj.weight",
    "attention.wv.weight": "self_attn.v_proj.weight",
    "attention.wo.weight": "self_attn.o_proj.weight",
    "attention.q_norm.weight": "self_attn.q_norm.weight",
    "attention.k_norm.weight": "self_attn.k_norm.weight",
    "feed_forward.w1.weight": "mlp.gate_proj.weight",
    "feed_forward.w2.weight": "mlp.down_proj.weight",
    "feed_forward.w3.weight": "mlp.up_proj.weight",
    "attention_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
}
_TITAN_ENDS = {"norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
_INTERLEAVED = ("llama",)  # torchtitan turns pairs of neighbours for these, Hugging Face turns halves
_AS_LLAMA = ("llama", "mistral", "qwen2", "qwen3")
_MEGATRON = {
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "input_layernorm.weight": "input_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
}
_MEGATRON_ENDS = {"decoder.final_layernorm.weight": "model.norm.weight", "output_layer.weight": "lm_head.weight"}
_LAYER = re.compile(r"\blayers?\.(\d+)\.|\bh\.(\d+)\.")


def rename(tensors: Mapping[str, Tensor], config: Mapping[str, Any], where: Path) -> dict[str, Tensor]:
    """The model's tensors under the names that its config.json stands for; raises where they do not fit it."""
    plain = {_unwrap(name): tensor for name, tensor in tensors.items()}
    for marker, turn in (
        *((embedding, _keep) for embedding in _EMBEDDINGS),
        (_TITAN_EMBEDDING, _from_titan),
        (_MEGATRON_EMBEDDING, _from_megatron),
    ):
        starts = sorted((name.removesuffix(marker) for name in plain if _ends(name, marker)), key=len)
        if starts:
            inner = {name.removeprefix(starts[0]): t for name, t in plain.items() if name.startswith(starts[0])}
            found = dict(turn(inner, config, where))
            _check(found, config, where)
            return found
    shown = ", ".join(sorted(plain)[:3])
    raise BadFileError(
        f"{where}: unsupported, its tensors have the names of no known layout (such as {shown}); "
        "known: Hugging Face's, torchtitan's and Megatron's; convert it with its framework"
    )


def _unwrap(name: str) -> str:
    for word in _WRAPPERS:
        name = name.replace(word, "")
    return name


def _ends(name: str, marker: str) -> bool:
    is_state = name.startswith(("optim", "opt.")) or ".exp_avg" in name
    return not is_state and (name == marker or name.endswith(f".{marker}"))


def _keep(tensors: Mapping[str, Tensor], config: Mapping[str, Any], where: Path) -> Iterator[tuple[str, Tensor]]:
    starts = ("optim", "lr_scheduler", "train_state", "dataloader", "rng")
    yield from ((name, tensor) for name, tensor in tensors.items() if not name.startswith(starts))


def _from_titan(tensors: Mapping[str, Tensor], config: Mapping[str, Any], where: Path) -> Iterator[tuple[str, Tensor]]:
    _check_family(config, where, "torchtitan")
    for name, tensor in tensors.items():
        layer = re.fullmatch(r"layers\.(\d+)\.(.+)", name)
        if name == _TITAN_EMBEDDING:
            yield "model.embed_tokens.weight", tensor
        elif name in _TITAN_ENDS:
            yield _TITAN_ENDS[name], tensor
        elif layer and layer[2] in _TITAN:
            if layer[2] in ("attention.wq.weight", "attention.wk.weight") and config["model_type"] in _INTERLEAVED:
                heads = _heads(config) if "wq" in name else _groups(config)
                tensor = Tensor(tensor.dtype, tensor.shape, lambda t=tensor, h=heads: _turn_halves(t.array(), h))  # type: ignore[misc]
            yield f"model.layers.{layer[1]}.{_TITAN[layer[2]]}", tensor
        elif layer:
            raise BadFileError(f"{where}: unsupported, {name} is no tensor of torchtitan's {config['model_type']}")


def _turn_halves(weight: Array, heads: int) -> Array:
    """Rows of a head from pairs (a0 b0 a1 b1 ..) to halves (a0 a1 .. b0 b1 ..), as rotary embeddings expect them."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _from_megatron(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], where: Path
) -> Iterator[tuple[str, Tensor]]:
    _check_family(config, where, "Megatron")
    for name, tensor in tensors.items():
        if name == _MEGATRON_EMBEDDING or name == "output_layer.weight":
            kept = int(config["vocab_size"])  # Megatron pads the vocabulary
            shape = (min(kept, tensor.shape[0]), *tensor.shape[1:])
            target = "model.embed_tokens.weight" if name == _MEGATRON_EMBEDDING else "lm_head.weight"
            yield target, Tensor(tensor.dtype, shape, lambda t=tensor, n=shape[0]: t.array()[:n])  # type: ignore[misc]
        elif name in _MEGATRON_ENDS:
            yield _MEGATRON_ENDS[name], tensor
        elif name.startswith("decoder.layers.") and not name.endswith("_extra_state"):
            for number, part, layer in _layers(name.removeprefix("decoder.layers."), tensor):
                for target, made in _from_megatron_layer(part, layer, config, where):
                    yield f"model.layers.{number}.{target}", made


def _layers(name: str, tensor: Tensor) -> Iterator[tuple[int, str, Tensor]]:
    """Layers one by one: Megatron stacks those that are alike along a first axis."""
    number, _, rest = name.partition(".")
    if number.isdigit():
        yield int(number), rest, tensor
        return
    for i in range(tensor.shape[0]):
        yield i, name, Tensor(tensor.dtype, tensor.shape[1:], lambda t=tensor, i=i: t.array()[i])  # type: ignore[misc]


def _from_megatron_layer(
    part: str, tensor: Tensor, config: Mapping[str, Any], where: Path
) -> Iterator[tuple[str, Tensor]]:
    if part in _MEGATRON:
        yield _MEGATRON[part], tensor
    elif part in ("self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias"):
        groups, per = _groups(config), _heads(config) // _groups(config)
        size = tensor.shape[0] // (groups * (per + 2))
        rest, kind = tensor.shape[1:], part.rsplit(".", 1)[-1]
        for letter, box in (("q", slice(0, per)), ("k", slice(per, per + 1)), ("v", slice(per + 1, per + 2))):
            rows = groups * (box.stop - box.start) * size

            def take(box: slice = box, rows: int = rows) -> Array:
                return tensor.array().reshape(groups, per + 2, size, *rest)[:, box].reshape(rows, *rest)

            yield f"self_attn.{letter}_proj.{kind}", Tensor(tensor.dtype, (rows, *rest), take)
    elif part == "mlp.linear_fc1.weight":
        half = tensor.shape[0] // 2
        shape = (half, *tensor.shape[1:])
        yield "mlp.gate_proj.weight", Tensor(tensor.dtype, shape, lambda: tensor.array()[:half])
        yield "mlp.up_proj.weight", Tensor(tensor.dtype, shape, lambda: tensor.array()[half:])
    else:
        raise BadFileError(f"{where}: unsupported, decoder.layers.{part} has no place in {config['model_type']}")


def _check_family(config: Mapping[str, Any], where: Path, layout: str) -> None:
    if config.get("model_type") not in _AS_LLAMA:
        raise BadFileError(
            f"{where}: unsupported, {layout}'s layout of a '{config.get('model_type')}' model; "
            f"known: {', '.join(_AS_LLAMA)}; convert it with {layout}'s own tool"
        )


def _heads(config: Mapping[str, Any]) -> int:
    return int(config["num_attention_heads"])


def _groups(config: Mapping[str, Any]) -> int:
    return int(config.get("num_key_value_heads") or config["num_attention_heads"])


def _check(tensors: Mapping[str, Tensor], config: Mapping[str, Any], where: Path) -> None:
    """Layers and the embedding are as the config says: a loader would fill missing parts with random numbers."""
    layers = {int(found[1] or found[2]) for name in tensors if (found := _LAYER.search(name))}
    wanted = config.get("num_hidden_layers") or config.get("n_layer")
    if wanted is not None and layers != set(range(int(wanted))):
        raise BadFileError(
            f"{where}: holds {len(layers)} layers, its config.json says {wanted}; is it another model's?"
        )
    shape = next((t.shape for n, t in tensors.items() if n.endswith(_EMBEDDINGS)), None)
    sizes = (config.get("vocab_size"), config.get("hidden_size") or config.get("n_embd"))
    if shape is not None and None not in sizes and tuple(shape) != sizes:
        raise BadFileError(f"{where}: its embedding is {shape}, its config.json says {sizes}; is it another model's?")
    if any(np.prod(t.shape, dtype=np.int64) < 0 for t in tensors.values()):
        raise BadFileError(f"{where}: a tensor has a negative extent; save it again")
