"""Which kind of checkpoint a path is: by the names of its files, and by the manifest of Prism's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from prism.errors import BadFileError
from prism.evaluate.run.checkpoints.dcp import METADATA, SHARD_END

MANIFEST_NAME = "manifest.json"
_SIDE_ENDS = (".json", ".txt", ".model", ".jinja", ".md", ".py", ".yaml", ".bin.index.json")


class UnsupportedCheckpoint(BadFileError):
    """A checkpoint that will not be read, however long one waits."""


class Kind(StrEnum):
    """How weights are kept."""

    SAFETENSORS = "safetensors"
    COMMITTED = "prism"  # by Prism's own checkpointer
    DCP = "dcp"  # torch.distributed.checkpoint
    MEGATRON = "megatron"  # the same, named as Megatron does
    TORCH = "torch"  # torch.save: pytorch_model.bin, Lightning
    LORA = "lora"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What Prism's checkpointer has committed: every file with its length and, where known, its SHA-256."""

    step: int | None
    files: Mapping[str, tuple[int, str | None]]


def read_manifest(text: bytes, where: object) -> Manifest | None:
    """What a `manifest.json` says; None for one that another program wrote."""
    try:
        document = json.loads(text)
        if not isinstance(document, dict) or not str(document.get("schema")).startswith("prism.checkpoint/"):
            return None
        files = {str(file["name"]): (int(file["num_bytes"]), file.get("sha256")) for file in document["files"]}
        step = document.get("step")
        return Manifest(step=None if step is None else int(step), files=files)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise BadFileError(f"{where}: not a readable manifest; write the checkpoint again") from None


def find_manifest(folder: Path) -> Manifest | None:
    """The manifest of a checkpoint that Prism's own checkpointer wrote."""
    path = folder / MANIFEST_NAME
    return read_manifest(path.read_bytes(), path) if path.is_file() else None


def find_kind(path: Path) -> tuple[Kind, Path]:
    """The kind, and where its weights are; raises UnsupportedCheckpoint, or BadFileError while nothing is there yet."""
    if path.is_file():
        return _kind_of_file(path), path
    names = {entry.name for entry in path.iterdir()}
    if "adapter_config.json" in names:
        return Kind.LORA, path
    if any(name.endswith(".safetensors") for name in names) or "model.safetensors.index.json" in names:
        return Kind.SAFETENSORS, path
    if find_manifest(path) is not None:
        return Kind.COMMITTED, path
    if METADATA in names or any(name.endswith(SHARD_END) for name in names):
        return _kind_of_shards(path, names), path
    if "pytorch_model.bin" in names or "pytorch_model.bin.index.json" in names:
        return Kind.TORCH, path
    for inner in ("pytorch_model_fsdp_0", "model", "checkpoint"):  # Accelerate's and Trainer's FSDP, Lightning's
        if (path / inner / METADATA).exists():
            return Kind.DCP, path / inner
    _refuse(path, names)
    raise BadFileError(f"{path}: half written, it holds no weights yet; is the checkpoint still being written?")


def _kind_of_file(path: Path) -> Kind:
    if path.suffix == ".safetensors":
        return Kind.SAFETENSORS
    if path.suffix in (".ckpt", ".pt", ".pth", ".bin"):
        return Kind.TORCH
    raise UnsupportedCheckpoint(f"{path}: unsupported, files ending in '{path.suffix}' are no checkpoints known here")


def _kind_of_shards(path: Path, names: set[str]) -> Kind:
    if "metadata.json" not in names:
        return Kind.DCP
    try:
        backend = json.loads((path / "metadata.json").read_text()).get("sharded_backend", "torch_dist")
    except (OSError, ValueError, AttributeError):
        return Kind.DCP
    if backend != "torch_dist":
        raise UnsupportedCheckpoint(
            f"{path}: unsupported, a Megatron checkpoint kept by '{backend}'; save with --dist-ckpt-format torch_dist"
        )
    return Kind.MEGATRON


def _refuse(path: Path, names: set[str]) -> None:
    """Name the frameworks whose folders are known and not read, and what to do about them."""
    ends = ("mp_rank_00", "mp_rank_00_000")
    if any("zero_pp_rank" in n or n.endswith("_model_states.pt") for n in names) or "zero_to_fp32.py" in names:
        what = "DeepSpeed's; run its zero_to_fp32.py, or set stage3_gather_16bit_weights_on_model_save"
    elif names & set(ends):
        what = "Megatron's legacy format; save with --dist-ckpt-format torch_dist"
    elif "metadata.json" in names and any((path / n / ".zarray").exists() for n in names):
        what = "Megatron's zarr format; save with --dist-ckpt-format torch_dist"
    elif "_CHECKPOINT_METADATA" in names or any(n.endswith(".orbax-checkpoint") for n in names):
        what = "Orbax's; export it as safetensors"
    elif any(n.endswith((".gguf", ".msgpack", ".h5", ".nemo")) for n in names):
        what = "of GGUF, Flax, Keras or NeMo; export it as safetensors, or serve it and name its endpoint"
    elif strange := sorted(n for n in names if not n.startswith(".") and not n.endswith(_SIDE_ENDS)):
        what = f"of no kind known here (it holds {', '.join(strange[:3])}); export it as safetensors"
    else:
        return
    raise UnsupportedCheckpoint(f"{path}: unsupported, {what}")
