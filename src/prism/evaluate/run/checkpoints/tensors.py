"""Tensors of files that `torch.save` wrote, mapped and not copied; nothing in those files is run."""

from __future__ import annotations

import errno
import io
import pickle
import struct
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prism.errors import BadFileError
from prism.evaluate.run.checkpoints.pickles import PLAIN, Reader, Standin

Array = NDArray[Any]

# By torch's name: numpy's type of the same size (bfloat16 and float8 as plain bits) and safetensors' name.
DTYPES: dict[str, tuple[str, str]] = {
    "float32": ("<f4", "F32"), "float64": ("<f8", "F64"), "float16": ("<f2", "F16"), "bfloat16": ("<u2", "BF16"),
    "int64": ("<i8", "I64"), "int32": ("<i4", "I32"), "int16": ("<i2", "I16"), "int8": ("i1", "I8"),
    "uint8": ("u1", "U8"), "bool": ("?", "BOOL"), "float8_e4m3fn": ("u1", "F8_E4M3"), "float8_e5m2": ("u1", "F8_E5M2"),
}  # fmt: skip
_STORAGES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool",
}  # fmt: skip
_LOCAL_HEADER = 30  # bytes before the name and the extra field of a zip entry


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that is read from a file, or computed from others, when `array` is called."""

    dtype: str  # torch's name
    shape: tuple[int, ...]
    array: Callable[[], Array]


@dataclass(frozen=True, slots=True)
class _Storage:
    start: int
    dtype: str


class _Stretch(io.FileIO):
    """A stretch of a file as a file."""

    def __init__(self, path: Path, start: int, length: int) -> None:
        super().__init__(path)
        self._start, self._end = start, start + length
        self.seek(0)

    def seek(self, offset: int, whence: int = 0) -> int:
        at = {0: self._start, 1: super().tell(), 2: self._end}[whence] + offset
        if at < self._start:
            raise OSError(errno.EINVAL, "before the start")
        return super().seek(at) - self._start

    def tell(self) -> int:
        return super().tell() - self._start

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._end - super().tell())
        return super().read(left if size is None or size < 0 else min(size, left))


def read_saved(path: Path, start: int = 0, length: int | None = None) -> Any:
    """What `torch.save` put into a file, or into a stretch of it; tensors as `Tensor`, unknown classes as stand-ins."""
    size = path.stat().st_size - start if length is None else length
    try:
        with _Stretch(path, start, size) as stretch, zipfile.ZipFile(stretch) as archive:
            pickled = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            folder = pickled.removesuffix("data.pkl")
            starts = {i.filename: i.header_offset for i in archive.infolist() if i.compress_type == zipfile.ZIP_STORED}

            def open_storage(pid: Any) -> _Storage:
                _, kind, key, *_ = pid
                name = kind if isinstance(kind, str) else kind.kind.rsplit(".", 1)[-1]
                return _Storage(_data_start(path, start + starts[f"{folder}data/{key}"]), _STORAGES.get(name, ""))

            with archive.open(pickled) as handle:
                return Reader(handle, _known(path), open_storage).load()
    except (zipfile.BadZipFile, StopIteration, EOFError):
        raise BadFileError(f"{path}: half written, or written by a torch before 1.6; wait or save it again") from None
    except (pickle.UnpicklingError, KeyError, ValueError, TypeError, AttributeError, IndexError, struct.error) as error:
        raise BadFileError(f"{path}: cannot be read as torch.save writes ({error}); save it again") from None


def _known(path: Path) -> dict[str, Any]:
    def rebuild(storage: _Storage, offset: int, shape: Any, stride: Any, *more: Any) -> Tensor:
        dtype = next((word for word in more if isinstance(word, str) and word in DTYPES), storage.dtype)
        if dtype not in DTYPES:
            raise ValueError(f"tensors of type '{dtype or 'unknown'}'")
        kind = np.dtype(DTYPES[dtype][0])
        start = storage.start + offset * kind.itemsize
        return Tensor(dtype, tuple(shape), lambda: _map(path, start, kind, tuple(shape), stride))

    def unwrap(tensor: Any, *more: Any) -> Any:
        return tensor

    return PLAIN | {
        "torch._utils._rebuild_tensor_v2": rebuild,
        "torch._utils._rebuild_tensor_v3": rebuild,
        "torch._utils._rebuild_parameter": unwrap,
        "torch._utils._rebuild_parameter_with_state": unwrap,
        "torch._tensor._rebuild_from_type_v2": lambda make, kind, args, state: make(*args),
    }


def _map(path: Path, start: int, kind: np.dtype[Any], shape: tuple[int, ...], stride: Sequence[int]) -> Array:
    """Values that begin at a byte of a file; `stride` counts values."""
    if 0 in shape:
        return np.empty(shape, kind)
    reach = sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True)) + 1
    flat = np.memmap(path, np.uint8, "r", offset=start, shape=(reach * kind.itemsize,)).view(kind)
    return np.lib.stride_tricks.as_strided(flat, shape, [step * kind.itemsize for step in stride], writeable=False)


def _data_start(path: Path, header: int) -> int:
    """Where the bytes of a stored zip entry begin."""
    with path.open("rb") as handle:
        handle.seek(header)
        head = handle.read(_LOCAL_HEADER)
    name_length, extra_length = struct.unpack("<HH", head[26:30])
    return header + _LOCAL_HEADER + int(name_length) + int(extra_length)


def find_tensors(document: Any, prefix: str = "") -> dict[str, Tensor]:
    """All tensors of nested mappings, by their path."""
    if isinstance(document, Tensor):
        return {prefix: document}
    held = document.fields if isinstance(document, Standin) else document
    found: dict[str, Tensor] = {}
    for key, value in held.items() if isinstance(held, dict) else ():
        found |= find_tensors(value, f"{prefix}.{key}" if prefix else str(key))
    return found
