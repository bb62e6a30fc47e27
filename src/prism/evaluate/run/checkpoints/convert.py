"""A checkpoint of another kind as the folder that Hugging Face reads: converted once, kept, and found again."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from prism.errors import BadFileError
from prism.evaluate.run.checkpoints.dcp import METADATA, read_metadata
from prism.evaluate.run.checkpoints.folder import saved_paths
from prism.evaluate.run.checkpoints.kinds import Kind, find_kind
from prism.evaluate.run.checkpoints.names import rename
from prism.evaluate.run.checkpoints.tensors import DTYPES, Tensor, find_tensors, read_saved
from prism.evaluate.run.loading.source import SIDE_FILES
from prism.evaluate.run.models.lora import ADAPTER_FILE, check_base, find_base
from prism.machine.files import write_durably

_CONVERTED = (Kind.DCP, Kind.MEGATRON, Kind.TORCH, Kind.LORA)
_WRITE_BYTES = 64 << 20


def make_readable(path: Path, assets: Path | None, base: Path | None, cache: Path) -> Path:
    """The folder to load a checkpoint from: itself, or its conversion below `cache`.

    `assets` holds config.json and tokenizer where they do not lie beside the weights, `base` the model of an adapter.
    """
    kind, weights = find_kind(path)
    if kind is Kind.COMMITTED and (path / METADATA).is_file() and (assets or (path.parent / "config.json").is_file()):
        kind = Kind.DCP  # Prism's own checkpointer writes distributed checkpoints
    if kind not in _CONVERTED:
        return path
    side = _find_side(path, weights, assets) if kind is not Kind.LORA else path
    target = cache / _key(weights, side, base)
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{target.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            aside = cache / f"{target.name}.converting"
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
            try:
                _fill(aside, kind, weights, side, base)
            except BaseException:
                shutil.rmtree(aside, ignore_errors=True)
                raise
            aside.rename(target)
    return target


def _fill(target: Path, kind: Kind, weights: Path, side: Path, base: Path | None) -> None:
    if kind is Kind.LORA:
        _copy_adapter(target, weights, base)
        return
    config = _read_config(side)
    tensors = read_weights(kind, weights)
    write_tensors(target / "model.safetensors", rename(tensors, config, weights))
    for name in SIDE_FILES:
        if (side / name).is_file():
            shutil.copyfile(side / name, target / name)


def read_weights(kind: Kind, weights: Path) -> Mapping[str, Tensor]:
    """All tensors of a checkpoint, by the names that its framework gave them."""
    if kind in (Kind.DCP, Kind.MEGATRON):
        return {name: sharded.tensor for name, sharded in read_metadata(weights).items()}
    found: dict[str, Tensor] = {}
    for path in saved_paths(weights):
        document = read_saved(path)
        inner = next(
            (document[k] for k in ("state_dict", "model") if isinstance(document, dict) and k in document), document
        )
        found |= find_tensors(inner)
    return found


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, one tensor in memory at a time."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        kind, word = DTYPES[tensor.dtype]
        size = int(np.prod(tensor.shape, dtype=np.int64)) * np.dtype(kind).itemsize
        header[name] = {"dtype": word, "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as handle:
        handle.write(struct.pack("<Q", len(text)) + text)
        for name, tensor in tensors.items():
            values = np.ascontiguousarray(tensor.array())
            if values.shape != tuple(tensor.shape):
                raise BadFileError(f"{path}: tensor {name} is {values.shape}, expected {tensor.shape}")
            flat: Any = memoryview(values.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
            for start in range(0, len(flat), _WRITE_BYTES):
                handle.write(flat[start : start + _WRITE_BYTES])


def _copy_adapter(target: Path, source: Path, base: Path | None) -> None:
    """An adapter's files, with its base model named by a path that is here."""
    for path in source.iterdir():
        if path.name.startswith("adapter_") or path.name in SIDE_FILES:
            shutil.copyfile(path, target / path.name)
    document = json.loads((source / ADAPTER_FILE).read_text())
    named = find_base(source) if base is None else check_base(base, source / ADAPTER_FILE)
    write_durably(target / ADAPTER_FILE, json.dumps({**document, "base_model_name_or_path": str(named.resolve())}))


def _find_side(path: Path, weights: Path, assets: Path | None) -> Path:
    """Where config.json and the tokenizer are: named, beside the weights, or in a folder above."""
    near = [weights, weights.parent, path, path.parent]
    chosen = [assets] if assets is not None else [p for p in near if p.is_dir()]
    for folder in chosen:
        if (folder / "config.json").is_file():
            return folder
    where = assets or path
    raise BadFileError(
        f"{where}: no config.json, so the model's shape is not known; "
        "name a folder with it and the tokenizer in the checkpoint's 'assets'"
    )


def _read_config(folder: Path) -> Mapping[str, Any]:
    try:
        document = json.loads((folder / "config.json").read_text())
        return {**document, **document.get("text_config", {})} if isinstance(document, dict) else {}
    except (OSError, ValueError) as error:
        raise BadFileError(f"{folder / 'config.json'}: not readable ({error})") from None


def _key(weights: Path, side: Path, base: Path | None) -> str:
    """Changes with any file that a conversion is made of."""
    files = [weights] if weights.is_file() else sorted(p for p in weights.iterdir() if p.is_file())
    files += [side / name for name in SIDE_FILES if (side / name).is_file()]
    stats = [[str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns] for p in files]
    return hashlib.sha256(json.dumps([stats, str(base)]).encode()).hexdigest()[:20]
