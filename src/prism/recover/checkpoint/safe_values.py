"""Values from files and other processes, read without running anything that they name.

torch's distributed checkpoints hold two kinds of pickle: `.metadata`, and one small file part per value that is not
a tensor. The first is read by an unpickler that knows only the classes of torch's own metadata, the second by
`torch.load(weights_only=True)` with a few harmless classes of numpy and Python added.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import io
import pathlib
import pickle
from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem

from prism.errors import BadConfigError, BadFileError
from prism.recover.checkpoint.nested import set_value

_DCP = "torch.distributed.checkpoint"
_METADATA_NAMES: dict[str, tuple[str, ...]] = {
    f"{_DCP}.metadata": (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    f"{_DCP}.filesystem": ("_StorageInfo", "_StoragePrefix"),
    f"{_DCP}.planner": ("BytesIOWriteData", "SavePlan", "TensorWriteData", "WriteItem", "WriteItemType"),
    "torch": ("Size",),
    "torch.serialization": ("_get_layout",),
    "pathlib": ("PosixPath", "PurePosixPath"),
    "collections": ("OrderedDict",),
}
_PLAIN = (int, float, str, bool, bytes, complex, type(None))


def _take_member(kind: Any, name: Any) -> Enum:
    """What `getattr` may do here: Python 3.11.2, for one, pickles a member of an enumeration as its attribute."""
    if isinstance(kind, type) and issubclass(kind, Enum) and isinstance(name, str) and name in kind.__members__:
        return kind[name]
    raise pickle.UnpicklingError(f"takes {name} of {kind}, and only members of enumerations may be taken")


class MetadataUnpickler(pickle.Unpickler):
    """Builds torch's own metadata classes and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """The class of that name, if it is on the list."""
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        if (module, name) == ("builtins", "getattr"):
            return _take_member
        module = "pathlib" if module == "pathlib._local" else module  # where Python 3.13 says that paths are
        if name not in _METADATA_NAMES.get(module, ()):
            raise pickle.UnpicklingError(f"names {module}.{name}, which no checkpoint's metadata needs")
        return getattr(importlib.import_module(module), name)


def unpickle_metadata(data: bytes) -> Any:
    """Read pickled metadata or a save plan; raises UnpicklingError on anything else."""
    classes = [_resolve(module, name) for module, names in _METADATA_NAMES.items() for name in names]
    before = [dict(vars(one)) for one in classes if isinstance(one, type)]
    try:
        found = MetadataUnpickler(io.BytesIO(data)).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise pickle.UnpicklingError(f"{type(error).__name__}: {str(error)[:200]}") from None
    finally:
        tampered = _undo_changes([one for one in classes if isinstance(one, type)], before)
    if tampered:
        raise pickle.UnpicklingError("changes classes of torch")
    return found


def _undo_changes(classes: list[type], before: list[dict[str, Any]]) -> bool:
    """Put attributes back that a pickle has set on a class itself: its BUILD instruction can."""
    tampered = False
    for one, old in zip(classes, before, strict=True):
        for name, value in dict(vars(one)).items():
            if name not in old or old[name] is not value:
                tampered = True
                if name in old:
                    setattr(one, name, old[name])
                else:
                    delattr(one, name)
    return tampered


def _resolve(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name, None)


class SafeReader(FileSystemReader):
    """torch's reader without its unpickling, and only for files that the manifest lists."""

    def __init__(self, path: pathlib.Path, files: frozenset[str]) -> None:
        super().__init__(path)
        self._files = files
        self._metadata: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The checkpoint's metadata, built from known classes; read once."""
        if self._metadata is None:
            self._metadata = self._read()
        return self._metadata

    def _read(self) -> Metadata:
        path = pathlib.Path(self.path) / ".metadata"
        try:
            found = unpickle_metadata(path.read_bytes())
        except (OSError, pickle.UnpicklingError) as error:
            raise BadFileError(f"{path}: not the metadata of a checkpoint ({error}); do not use this folder") from None
        if not isinstance(found, Metadata):
            raise BadFileError(f"{path}: not the metadata of a checkpoint; do not use this folder")
        outside = {str(info.relative_path) for info in (found.storage_data or {}).values()} - self._files
        if outside:
            raise BadFileError(f"{path}: refers to '{min(outside)}', which the manifest does not list")
        if found.storage_meta is None:
            found.storage_meta = StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class SafeLoadPlanner(DefaultLoadPlanner):
    """torch's plan of a load; values that are not tensors are read without running what they name."""

    def __init__(self, trusted: tuple[type, ...] = ()) -> None:
        super().__init__()
        self._trusted = trusted

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Put one value in its place."""
        read = load_value(value.getvalue(), self._trusted)
        set_value(self.original_state_dict, self.mappings[read_item.dest_index.fqn], read)


def load_value(data: bytes, trusted: tuple[type, ...] = ()) -> Any:
    """One value as `torch.save` wrote it; raises BadFileError if it names a class that is not trusted."""
    try:
        with _harmless(trusted):
            return torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:  # zip and pickle errors of many kinds
        text = " ".join(str(error).split())
        raise BadFileError(f"a value that is not a tensor cannot be read safely ({text[-300:]})") from None


def dump_value(name: str, value: Any, trusted: tuple[type, ...] = ()) -> bytes:
    """A value as torch's checkpoints hold it; refuses one that could not be read back safely."""
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise BadConfigError(f"state '{name}' holds a {_odd_type(value)}, which cannot be saved ({error})") from None
    data = buffer.getvalue()
    if not _is_plain(value):
        try:
            load_value(data, trusted)
        except BadFileError:
            raise BadConfigError(
                f"state '{name}' holds a {_odd_type(value)}, which cannot be read back without running code; "
                "save plain values (numbers, text, lists, dicts, tensors) or list its class in CheckpointConfig.trusted"
            ) from None
    return data


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple, set):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(_is_plain(k) and _is_plain(v) for k, v in value.items())
    return type(value) in _PLAIN


def _odd_type(value: Any) -> str:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, set)) else ()
    odd = next((v for v in inner if not _is_plain(v)), None)
    return _odd_type(odd) if odd is not None else f"{type(value).__module__}.{type(value).__qualname__}"


@contextlib.contextmanager
def _harmless(trusted: tuple[type, ...]) -> Iterator[None]:
    with torch.serialization.safe_globals([*_numpy_classes(), *_PYTHON_CLASSES, *trusted]):
        yield


_PYTHON_CLASSES: list[Any] = [
    collections.deque,
    range,
    slice,
    (pathlib.PosixPath, "pathlib.PosixPath"),
    (pathlib.PosixPath, "pathlib._local.PosixPath"),  # Python 3.13 names it so.
]


def _numpy_classes() -> list[Any]:
    """What arrays, random states and numbers of numpy are rebuilt with."""
    multiarray = np._core.multiarray  # type: ignore[attr-defined]
    names = ("_reconstruct", "scalar")
    dtypes = [getattr(np.dtypes, name) for name in np.dtypes.__all__ if "Object" not in name and "Void" not in name]
    return [np.ndarray, np.dtype, *(getattr(multiarray, name) for name in names), *dtypes]
