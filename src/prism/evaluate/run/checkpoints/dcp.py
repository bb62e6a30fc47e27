"""torch.distributed.checkpoint folders (FSDP2, torchtitan, Megatron's torch_dist): shards joined into whole tensors."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prism.errors import BadFileError
from prism.evaluate.run.checkpoints.pickles import PLAIN, Reader, Standin
from prism.evaluate.run.checkpoints.tensors import DTYPES, Array, Tensor, read_saved

METADATA = ".metadata"
SHARD_END = ".distcp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One box of a tensor, and where it lies."""

    file: str
    start: int
    length: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShardedTensor:
    """A tensor, and the boxes that it is made of."""

    tensor: Tensor
    shards: tuple[Shard, ...]


def _join(folder: Path, dtype: str, shape: tuple[int, ...], shards: Sequence[Shard]) -> Array:
    """All shards put together; one that is whole is mapped and not copied."""
    if len(shards) == 1 and shards[0].sizes == shape:
        return _read(folder, shards[0])
    whole = np.empty(shape, DTYPES[dtype][0])
    filled = 0
    for shard in shards:
        whole[tuple(slice(o, o + n) for o, n in zip(shard.offsets, shard.sizes, strict=True))] = _read(folder, shard)
        filled += int(np.prod(shard.sizes, dtype=np.int64))
    if filled != whole.size:
        raise BadFileError(f"{folder}: shards give {filled:,} of {whole.size:,} values of a tensor; save it again")
    return whole


def _read(folder: Path, shard: Shard) -> Array:
    tensor = read_saved(folder / shard.file, shard.start, shard.length)
    if not isinstance(tensor, Tensor) or tensor.shape != shard.sizes:
        raise BadFileError(f"{folder / shard.file}: a shard is not what the metadata says; save it again")
    return tensor.array()


def read_metadata(folder: Path) -> dict[str, ShardedTensor]:
    """All tensors of a folder; nothing in its pickle is run."""
    path = folder / METADATA
    try:
        with path.open("rb") as handle:
            document = Reader(handle, PLAIN).load()
        places: dict[tuple[str, tuple[int, ...]], Standin] = {}
        for index, info in document.fields["storage_data"].items():
            places[index.fields["fqn"], tuple(index.fields.get("offset") or ())] = info
        return {
            str(name): _describe(folder, str(name), entry, places)
            for name, entry in document.fields["state_dict_metadata"].items()
            if "chunks" in entry.fields
        }
    except FileNotFoundError:
        raise BadFileError(f"{folder}: half written, no {METADATA} yet, which is saved last; wait for it") from None
    except (OSError, pickle.UnpicklingError, KeyError, TypeError, AttributeError, ValueError, EOFError) as error:
        raise BadFileError(f"{path}: not readable as metadata of a distributed checkpoint ({error!r})") from None


def check_whole(folder: Path, tensors: dict[str, ShardedTensor]) -> int:
    """The bytes of all tensors; raises where a shard's file is missing or too short."""
    ends: dict[str, int] = {}
    for shard in (shard for tensor in tensors.values() for shard in tensor.shards):
        ends[shard.file] = max(ends.get(shard.file, 0), shard.start + shard.length)
    for name, end in ends.items():
        if not (folder / name).is_file() or (folder / name).stat().st_size < end:
            raise BadFileError(f"{folder / name}: half written, {end:,} bytes are expected; wait until it is whole")
    return sum(shard.length for tensor in tensors.values() for shard in tensor.shards)


def _describe(folder: Path, name: str, entry: Standin, places: dict[Any, Standin]) -> ShardedTensor:
    properties = entry.fields["properties"]  # it pickles itself as a tuple
    words = [word for word in (*properties.args, *properties.fields.values()) if isinstance(word, str)]
    dtype = next((word for word in words if word in DTYPES), "")
    if dtype not in DTYPES:
        raise ValueError(f"tensor {name} has type {dtype!r}")
    shards = []
    for chunk in entry.fields["chunks"]:
        offsets, sizes = tuple(chunk.fields["offsets"]), tuple(chunk.fields["sizes"])
        info = places.get((name, offsets)) or places[name, ()]
        file = str(info.fields["relative_path"])
        if file != Path(file).name:
            raise ValueError(f"it names {file!r}, expected files of the same folder")
        if info.fields.get("transform_descriptors"):
            raise ValueError("its shards are compressed, which is not supported")
        shards.append(
            Shard(
                file=file,
                start=int(info.fields["offset"]),
                length=int(info.fields["length"]),
                offsets=offsets,
                sizes=sizes,
            )
        )
    shape = tuple(entry.fields["size"])
    return ShardedTensor(Tensor(dtype, shape, lambda: _join(folder, dtype, shape, shards)), tuple(shards))
