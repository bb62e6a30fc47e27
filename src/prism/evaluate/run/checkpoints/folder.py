"""A checkpoint on disk, looked at without loading it: is it whole, how large is it, which step is it."""

from __future__ import annotations

import json
import math
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism.errors import BadFileError
from prism.evaluate.run.checkpoints.dcp import check_whole, read_metadata
from prism.evaluate.run.checkpoints.kinds import Kind, find_kind, find_manifest
from prism.evaluate.schedule.trials import Checkpoint

INDEX_NAME = "model.safetensors.index.json"
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_STEP = re.compile(r"(?:step|iter|iteration|checkpoint|ckpt)[-_=]?(\d+)(?:-v\d+)?$|^(\d+)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shard:
    num_bytes: int
    parameters: int


def inspect_folder(folder: Path) -> Checkpoint:
    """The checkpoint in a folder (or one file); raises when a file is missing or not written to its end.

    UnsupportedCheckpoint is raised for one of a kind that is not read, BadFileError for one that is not whole (yet).
    """
    if not folder.exists():
        raise BadFileError(f"{folder}: no such checkpoint folder; check the path")
    kind, weights = find_kind(folder)
    step = find_step(folder.stem if folder.is_file() else folder.resolve().name)
    if kind is Kind.COMMITTED:
        return _inspect_committed(folder)
    if kind in (Kind.DCP, Kind.MEGATRON):
        size = check_whole(weights, read_metadata(weights))
        return _describe(folder, [_Shard(num_bytes=size, parameters=0)], step)
    if kind is Kind.TORCH:
        return _describe(folder, [_inspect_saved(path) for path in saved_paths(weights)], step)
    paths = [folder] if folder.is_file() else _shard_paths(folder)
    return _describe(folder, [_inspect_shard(path) for path in paths], step)


def saved_paths(weights: Path) -> list[Path]:
    """The files of torch.save that hold a model, all of them there."""
    if weights.is_file():
        return [weights]
    index = weights / "pytorch_model.bin.index.json"
    return _listed(weights, index) if index.is_file() else [weights / "pytorch_model.bin"]


def _inspect_saved(path: Path) -> _Shard:
    """A file of torch.save ends with the directory of its zip archive."""
    if not zipfile.is_zipfile(path):
        raise BadFileError(f"{path}: half written, or no file of torch.save; wait until it is whole or leave it out")
    return _Shard(num_bytes=path.stat().st_size, parameters=0)


def _describe(path: Path, shards: list[_Shard], step: int | None) -> Checkpoint:
    return Checkpoint(
        name=path.resolve().name,
        path=str(path),
        bytes=sum(shard.num_bytes for shard in shards),
        parameters=sum(shard.parameters for shard in shards),
        step=step,
    )


def _inspect_committed(folder: Path) -> Checkpoint:
    """A checkpoint whose manifest names every file with its length."""
    manifest = find_manifest(folder)
    assert manifest is not None, "find_kind has read it"
    for name, (length, _) in manifest.files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != length:
            raise BadFileError(f"{path}: not there in its full length of {length:,} bytes; the checkpoint is damaged")
    # Training states hold more than the model; how many parameters it has is not said.
    size = sum(length for length, _ in manifest.files.values())
    return _describe(folder, [_Shard(num_bytes=size, parameters=0)], manifest.step)


def find_step(name: str) -> int | None:
    """The training step that a folder's name ends with: step-400, global_step400, checkpoint_400 or 400."""
    found = _STEP.search(name)
    return int(found[1] or found[2]) if found else None


def _shard_paths(folder: Path) -> list[Path]:
    """Every weight file that the folder must hold."""
    index = folder / INDEX_NAME
    if not index.exists():
        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise BadFileError(f"{folder}: holds no *.safetensors file; is the checkpoint still being written?")
        return paths
    return _listed(folder, index)


def _listed(folder: Path, index: Path) -> list[Path]:
    """The files that an index names, all of them there."""
    names = _read_index(index)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise BadFileError(
            f"{folder}: half written, {len(missing)} of {len(names)} files of its index are missing "
            f"({missing[0]}); wait until it is whole or leave it out"
        )
    return [folder / name for name in names]


def _read_index(path: Path) -> list[str]:
    try:
        names = sorted({str(name) for name in json.loads(path.read_bytes())["weight_map"].values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadFileError(f"{path}: not a readable index of weights; write the checkpoint again") from None
    for name in names:
        if name != Path(name).name or name in ("", "."):
            raise BadFileError(f"{path}: names {name!r}, expected files of the same folder")
    return names


def _inspect_shard(path: Path) -> _Shard:
    """Compare a file's length with what its header promises, so that a half-written one is never loaded."""
    try:
        size = path.stat().st_size
        with path.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            header = json.loads(handle.read(length)) if 2 <= length <= min(size - 8, _MAX_HEADER_BYTES) else None
    except (OSError, ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise BadFileError(f"{path}: not a whole safetensors file (its header cannot be read); is it half written?")
    try:
        tensors = [_inspect_tensor(entry) for name, entry in header.items() if name != "__metadata__"]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise BadFileError(f"{path}: its header describes a tensor wrongly; write the checkpoint again") from None
    expected = 8 + length + max((end for end, _ in tensors), default=0)
    if size != expected:
        word = "half written" if size < expected else "longer than its header says"
        raise BadFileError(f"{path}: {word}, {size:,} of {expected:,} bytes; wait until it is whole or leave it out")
    return _Shard(num_bytes=size, parameters=sum(count for _, count in tensors))


def _inspect_tensor(entry: Any) -> tuple[int, int]:
    """Where a tensor's bytes end, and how many values it has."""
    start, end = (int(offset) for offset in entry["data_offsets"])
    shape = [int(extent) for extent in entry["shape"]]
    if not 0 <= start <= end or any(extent < 0 for extent in shape):
        raise ValueError(entry)
    return end, math.prod(shape)
