"""Checkpoints as frameworks write them: the same weights come out, half-written is told from unsupported."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import harness_parts
import torch
from marks import needs_transformers

from prism.errors import BadFileError
from prism.evaluate.run.checkpoints.convert import make_readable
from prism.evaluate.run.checkpoints.folder import find_step, inspect_folder
from prism.evaluate.run.checkpoints.kinds import UnsupportedCheckpoint
from prism.evaluate.run.checkpoints.pickles import PLAIN, Reader

SIDE = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")

pytestmark = needs_transformers


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness_parts.write_model(tmp_path_factory.mktemp("kinds") / "hf")


@pytest.fixture(scope="module")
def weights(model: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(model / "model.safetensors")


@pytest.fixture(scope="module")
def assets(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("assets")
    for name in SIDE:
        shutil.copyfile(model / name, folder / name)
    return folder


def save_dcp(state: dict[str, Any], folder: Path) -> None:
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=str(folder), no_dist=True)


def check_same(converted: Path, weights: dict[str, Any]) -> None:
    from safetensors.torch import load_file

    found = load_file(converted / "model.safetensors")
    assert set(found) == set(weights)
    assert all(torch.equal(found[name], weights[name]) for name in weights)
    assert (converted / "config.json").is_file() and (converted / "tokenizer.json").is_file()


def to_titan(weights: dict[str, Any], heads: int = 4, groups: int = 2) -> dict[str, Any]:
    """Hugging Face's Llama as torchtitan keeps it: other names, and rows of queries and keys in pairs."""
    names = {
        "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
        "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2",
        "mlp.up_proj": "feed_forward.w3", "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    found = {}
    for name, value in weights.items():
        target = name.removeprefix("model.").replace("embed_tokens", "tok_embeddings").replace("lm_head", "output")
        for ours, theirs in names.items():
            target = target.replace(ours, theirs)
        count = heads if "q_proj" in name else groups
        if "q_proj" in name or "k_proj" in name:  # torchtitan's from_hf
            rows, columns = value.shape
            value = value.view(count, 2, rows // count // 2, columns).transpose(1, 2).reshape(rows, columns)
        found[target] = value
    return found


def to_megatron(weights: dict[str, Any], heads: int = 4, groups: int = 2, layers: int = 2) -> dict[str, Any]:
    """The same as Megatron keeps it: layers stacked, queries, keys and values of a group together, vocabulary padded."""

    def layer(i: int, name: str) -> Any:
        return weights[f"model.layers.{i}.{name}.weight"]

    def qkv(i: int) -> Any:
        q, k, v = (layer(i, f"self_attn.{x}_proj") for x in "qkv")
        size = q.shape[0] // heads
        parts = [
            torch.cat(
                [
                    q.view(groups, heads // groups, size, -1)[g].reshape(-1, q.shape[1]),
                    k.view(groups, size, -1)[g],
                    v.view(groups, size, -1)[g],
                ]
            )
            for g in range(groups)
        ]
        return torch.cat(parts)

    def stack(name: str) -> Any:
        return torch.stack([layer(i, name) for i in range(layers)])

    pad = torch.zeros(
        384 - weights["model.embed_tokens.weight"].shape[0], weights["model.embed_tokens.weight"].shape[1]
    )
    start = "decoder.layers."
    return {
        "embedding.word_embeddings.weight": torch.cat([weights["model.embed_tokens.weight"], pad]),
        "output_layer.weight": torch.cat([weights["lm_head.weight"], pad]),
        "decoder.final_layernorm.weight": weights["model.norm.weight"],
        start + "self_attention.linear_qkv.weight": torch.stack([qkv(i) for i in range(layers)]),
        start + "self_attention.linear_qkv.layer_norm_weight": stack("input_layernorm"),
        start + "self_attention.linear_proj.weight": stack("self_attn.o_proj"),
        start + "mlp.linear_fc1.layer_norm_weight": stack("post_attention_layernorm"),
        start + "mlp.linear_fc1.weight": torch.stack(
            [torch.cat([layer(i, "mlp.gate_proj"), layer(i, "mlp.up_proj")]) for i in range(layers)]
        ),
        start + "mlp.linear_fc2.weight": stack("mlp.down_proj"),
        "optimizer.state.exp_avg.embedding.word_embeddings.weight": torch.zeros(4),
    }


@pytest.mark.parametrize(
    "kind", ["fsdp2", "titan", "titan nested", "megatron", "bin", "module", "lightning", "trainer fsdp"]
)
def test_a_checkpoint_of_a_framework_gives_the_same_weights(
    kind: str, model: Path, weights: dict[str, Any], assets: Path, tmp_path: Path
) -> None:
    path = tmp_path / "step-40"
    optimizer = {"state": {"model.embed_tokens.weight": {"exp_avg": torch.zeros(3)}}}
    if kind == "fsdp2":
        save_dcp({"model": weights, "optim": optimizer, "step": 40}, path)
    elif kind == "titan":
        save_dcp({**to_titan(weights), "optimizer": optimizer, "train_state": torch.zeros(2)}, path)
    elif kind == "titan nested":
        save_dcp({"model": to_titan(weights), "optimizer": optimizer}, path)
    elif kind == "megatron":
        path = tmp_path / "iter_0000040"
        save_dcp(to_megatron(weights), path)
        (path / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
    elif kind == "bin":
        path.mkdir()
        torch.save(weights, path / "pytorch_model.bin")
    elif kind == "module":  # its state_dict() is an ordered mapping with an attribute `_metadata`
        transformers = pytest.importorskip("transformers")
        path = tmp_path / "step-40.pt"
        torch.save(transformers.AutoModelForCausalLM.from_pretrained(model).state_dict(), path)
    elif kind == "lightning":
        path = tmp_path / "epoch=1-step=40.ckpt"
        torch.save(
            {
                "state_dict": {f"model._orig_mod.{n}": v for n, v in weights.items()},
                "global_step": 40,
                "hyper_parameters": {"path": Path("x")},
            },
            path,
        )
    else:
        save_dcp({"model": weights}, path / "pytorch_model_fsdp_0")
        (path / "trainer_state.json").write_text("{}")
    assert inspect_folder(path).step == 40
    converted = make_readable(path, assets, None, tmp_path / "cache")
    check_same(converted, weights)
    written = (converted / "model.safetensors").stat().st_mtime_ns
    again = make_readable(path, assets, None, tmp_path / "cache")
    assert again == converted and (again / "model.safetensors").stat().st_mtime_ns == written, "it is kept"


@pytest.mark.slow
def test_shards_of_two_ranks_are_joined(model: Path, weights: dict[str, Any], assets: Path, tmp_path: Path) -> None:
    """As FSDP2 writes them: every rank has rows of every tensor, in a file of its own."""
    torch.multiprocessing.spawn(
        _save_shards, args=(str(model), str(tmp_path / "step-8"), str(tmp_path / "store")), nprocs=2
    )
    assert len(list((tmp_path / "step-8").glob("*.distcp"))) == 2
    check_same(make_readable(tmp_path / "step-8", assets, None, tmp_path / "cache"), weights)


def _save_shards(rank: int, model: str, folder: str, store: str) -> None:
    """What a rank of FSDP2 saves: its rows of every tensor."""
    warnings.simplefilter("ignore")
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    state = {n: distribute_tensor(v, mesh, [Shard(0)]) for n, v in load_file(Path(model) / "model.safetensors").items()}
    dcp.save({"model": state}, checkpoint_id=folder)
    dist.destroy_process_group()


def test_half_written_is_distinguished_from_unsupported(weights: dict[str, Any], assets: Path, tmp_path: Path) -> None:
    save_dcp({"model": weights}, tmp_path / "step-1")
    shard = next((tmp_path / "step-1").glob("*.distcp"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1000])
    with pytest.raises(BadFileError, match="half written") as told:
        inspect_folder(tmp_path / "step-1")
    assert not isinstance(told.value, UnsupportedCheckpoint)
    shard.write_bytes(whole)
    (tmp_path / "step-1" / ".metadata").unlink()
    with pytest.raises(BadFileError, match="half written, no .metadata yet"):
        inspect_folder(tmp_path / "step-1")
    torch.save(weights, tmp_path / "x.ckpt")
    (tmp_path / "x.ckpt").write_bytes((tmp_path / "x.ckpt").read_bytes()[:-100])
    with pytest.raises(BadFileError, match="half written"):
        inspect_folder(tmp_path / "x.ckpt")
    for name, file, why in (
        ("ds", "mp_rank_00_model_states.pt", "DeepSpeed"),
        ("ob", "_CHECKPOINT_METADATA", "Orbax"),
        ("gg", "model.gguf", "GGUF"),
        ("od", "weights.xyz", "weights.xyz"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
        with pytest.raises(UnsupportedCheckpoint, match=f"unsupported, .*{why}"):
            inspect_folder(tmp_path / name)
    (tmp_path / "zarr").mkdir()
    (tmp_path / "zarr" / "__0_0.distcp").touch()
    (tmp_path / "zarr" / "metadata.json").write_text('{"sharded_backend": "zarr"}')
    with pytest.raises(UnsupportedCheckpoint, match="kept by 'zarr'"):
        inspect_folder(tmp_path / "zarr")


def test_another_models_config_and_no_config_are_refused(weights: dict[str, Any], assets: Path, tmp_path: Path) -> None:
    save_dcp({"model": weights}, tmp_path / "step-1")
    with pytest.raises(BadFileError, match="name a folder with it and the tokenizer in the checkpoint's 'assets'"):
        make_readable(tmp_path / "step-1", None, None, tmp_path / "cache")
    other = tmp_path / "other"
    shutil.copytree(assets, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(BadFileError, match="holds 2 layers, its config.json says 3"):
        make_readable(tmp_path / "step-1", other, None, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.converting"))
    save_dcp({"model": {"strange.name": torch.zeros(2)}}, tmp_path / "step-2")
    with pytest.raises(BadFileError, match="unsupported, its tensors have the names of no known layout"):
        make_readable(tmp_path / "step-2", assets, None, tmp_path / "cache")


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/prism-pickle-ran",)


def test_nothing_in_a_pickle_is_run(tmp_path: Path, weights: dict[str, Any], assets: Path) -> None:
    marker = Path("/tmp/prism-pickle-ran")
    marker.unlink(missing_ok=True)
    (tmp_path / "evil").write_bytes(pickle.dumps({"a": _Evil(), "b": 1}))
    with (tmp_path / "evil").open("rb") as handle:
        assert Reader(handle, PLAIN).load()["b"] == 1
    path = tmp_path / "epoch=0-step=3.ckpt"
    torch.save({"state_dict": {f"model.{n}": v for n, v in weights.items()}, "callbacks": _Evil()}, path)
    check_same(make_readable(path, assets, None, tmp_path / "cache"), weights)
    save_dcp({"model": weights}, tmp_path / "step-1")
    (tmp_path / "step-1" / ".metadata").write_bytes(pickle.dumps(_Evil()))
    with pytest.raises(BadFileError, match="not readable as metadata"):
        inspect_folder(tmp_path / "step-1")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("name", "step"),
    [("epoch=1-step=40", 40), ("iter_0000040", 40), ("epoch=1-step=40-v1", 40), ("checkpoint-7", 7), ("last", None)],
)
def test_steps_are_read_from_names_of_frameworks(name: str, step: int | None) -> None:
    assert find_step(name) == step


def test_adapters_change_a_base_that_is_loaded_once(model: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    from prism.evaluate.run.adapters import BUILTIN_DATASETS, WorkerCache, open_adapter

    folders = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        made = peft.get_peft_model(
            AutoModelForCausalLM.from_pretrained(model),
            peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM"),
        )
        made.save_pretrained(tmp_path / f"step-{seed}")
        folders.append(make_readable(tmp_path / f"step-{seed}", None, model, tmp_path / "cache"))
    cache, adapter, found = WorkerCache(), open_adapter("builtin"), []
    dataset = BUILTIN_DATASETS["text"]
    for folder in (*folders, folders[0]):
        adapter.prepare(dataset, folder, cache, 0)
        found.append(adapter.infer(dataset, folder, cache, 0, 3, 0))
        assert (cache.take_spent_s("model") > 0) == (len(found) == 1), "the base is loaded once"
    assert found[0] == found[2] and found[0] != found[1]
    with pytest.raises(BadFileError, match="give the checkpoint's 'base' in the plan"):
        config = tmp_path / "step-1" / "adapter_config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "base_model_name_or_path": "org/elsewhere"}))
        make_readable(tmp_path / "step-1", None, None, tmp_path / "cache")
