"""Shapes of models: by name, from a Hugging Face config, from Megatron's arguments; what is not known is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prism.errors import BadConfigError, BadFileError
from prism.estimate import read_model

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}


def _config(tmp_path: Path, sizes: dict[str, Any]) -> str:
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    return str(tmp_path)


@pytest.mark.parametrize(("sizes", "billions"), [(LLAMA, 8.03), (GPT2, 0.1236), (MIXTRAL, 46.7)])
def test_a_hugging_face_config_has_the_parameters_of_its_model(
    sizes: dict[str, Any], billions: float, tmp_path: Path
) -> None:
    assert read_model(_config(tmp_path, sizes)).params / 1e9 == pytest.approx(billions, rel=0.01)


def test_a_file_and_a_name_give_the_same_shape(tmp_path: Path) -> None:
    assert read_model(_config(tmp_path, LLAMA)) == read_model("llama-8b")


def test_megatron_arguments_are_read(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(
        "torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \\\n --swiglu "
        "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 8192 \\\n"
        " --untie-embeddings-and-output-weights --vocab-size 128256\n"
    )
    assert read_model(str(tmp_path / "train.sh")) == read_model("llama-8b")


def test_a_length_that_is_asked_for_is_taken() -> None:
    assert read_model("llama-8b", 2048).seq == 2048


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_lora_rank": 512}, "latent attention"),
        ({"head_dim": 256}, "'head_dim' 256 x 32 heads"),
        ({"hidden_size": None}, "no hidden_size"),
        ({"hidden_size": "big"}, "expected a whole number"),
    ],
)
def test_what_the_shape_cannot_say_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadConfigError, match=message):
        read_model(_config(tmp_path, {**LLAMA, **changes}))


def test_a_name_nobody_knows_lists_those_that_are_known() -> None:
    with pytest.raises(BadConfigError, match="'llama-9b'.*llama-8b"):
        read_model("llama-9b")


def test_a_file_that_is_no_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadFileError, match="config.json: not JSON"):
        read_model(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-8b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-8b"),
        ("meta-llama/Llama-2-70b-hf", "llama-70b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3-70b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("Qwen/Qwen2.5-72B-Instruct", "qwen2.5-72b"),
    ],
)
def test_the_name_on_a_hub_is_known(name: str, same: str) -> None:
    assert read_model(name) == read_model(same)
