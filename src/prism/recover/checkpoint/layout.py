"""The layout of a state dict in one contiguous buffer, and the copies in and out of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict, unflatten_state_dict
from torch.distributed.tensor import DTensor

from prism.errors import BadConfigError
from prism.recover.checkpoint.nested import with_keys_of
from prism.recover.checkpoint.safe_values import dump_value

_ALIGN_BYTES = 512


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """The place of one tensor's local part."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def num_elements(self) -> int:
        """Elements of the local part."""
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.offset + self.num_elements * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class ValuePlace:
    """The place of a value that is not a tensor."""

    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The places of all parts."""

    tensors: dict[str, TensorPlace]
    values: dict[str, ValuePlace]
    num_bytes: int

    def to_document(self) -> dict[str, Any]:
        """The layout as a JSON document."""
        tensors = {n: [str(p.dtype).removeprefix("torch."), list(p.shape), p.offset] for n, p in self.tensors.items()}
        values = {name: [place.offset, place.num_bytes] for name, place in self.values.items()}
        return {"tensors": tensors, "values": values, "num_bytes": self.num_bytes}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Layout:
        """Read it back; raises ValueError for a place outside the buffer or an unknown type."""
        num_bytes = int(document["num_bytes"])
        tensors = {str(name): _parse_place(parts, num_bytes) for name, parts in document["tensors"].items()}
        values = {str(name): ValuePlace(int(at), int(size)) for name, (at, size) in document["values"].items()}
        if any(min(v.offset, v.num_bytes) < 0 or v.offset + v.num_bytes > num_bytes for v in values.values()):
            raise ValueError("a value lies outside the slot")
        return cls(tensors=tensors, values=values, num_bytes=num_bytes)


def _parse_place(parts: Any, num_bytes: int) -> TensorPlace:
    name, shape, offset = parts
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no type of a tensor")
    place = TensorPlace(dtype, tuple(int(size) for size in shape), int(offset))
    if min((*place.shape, place.offset), default=0) < 0 or place.end > num_bytes:
        raise ValueError("a tensor lies outside the slot")
    return place


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """A planned copy: what goes where. Made on the training thread, so values that are not tensors are final."""

    sources: dict[str, torch.Tensor]
    values: dict[str, bytes]
    layout: Layout
    sharding: dict[str, Any] = field(repr=False)  # by name; a change needs a new plan of the save
    ready: torch.cuda.Event | None = None  # the copy must wait for it


class ValueCache:
    """Caches the bytes of values that are not tensors; most do not change from save to save."""

    def __init__(self, trusted: tuple[type, ...] = ()) -> None:
        self._trusted = trusted
        self._known: dict[str, tuple[Any, bytes]] = {}

    def dump(self, name: str, value: Any) -> bytes:
        """The bytes of a value."""
        known = self._known.get(name)
        if known is not None and type(known[0]) is type(value) and _same(known[0], value):
            return known[1]
        data = dump_value(name, value, self._trusted)
        self._known[name] = (copy.deepcopy(value), data)
        return data


def _same(one: Any, other: Any) -> bool:
    """Whether two values are certainly equal. True equals 1 in Python, so their texts must be equal too."""
    try:
        return bool(one == other) and repr(one) == repr(other)
    except (RuntimeError, ValueError, TypeError):  # arrays, for example, do not compare to a single bool
        return False


def plan_staging(state: Mapping[str, Any], dump: Callable[[str, Any], bytes] = dump_value) -> Staging:
    """Plan the layout of a state dict's local parts in one buffer."""
    flat, paths = flatten_state_dict(dict(state))
    sources: dict[str, torch.Tensor] = {}
    values: dict[str, bytes] = {}
    sharding: dict[str, Any] = {"": paths}
    tensors: dict[str, TensorPlace] = {}
    offset = 0
    for name, value in flat.items():
        if not isinstance(value, torch.Tensor):
            values[name] = dump(name, value)
            continue
        local = value.detach()
        if isinstance(local, DTensor):
            sharding[name] = local._spec
            local = local._local_tensor
        if local.layout is not torch.strided or local.is_quantized:
            raise BadConfigError(
                f"state '{name}' is a sparse or quantized tensor; save the dense tensors it consists of"
            )
        sources[name] = local
        tensors[name] = TensorPlace(local.dtype, tuple(local.shape), offset)
        offset = _aligned(tensors[name].end)
    places: dict[str, ValuePlace] = {}
    for name, data in values.items():
        places[name] = ValuePlace(offset, len(data))
        offset += len(data)
    ready = None
    if any(source.device.type == "cuda" for source in sources.values()):
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
    layout = Layout(tensors=tensors, values=places, num_bytes=max(_aligned(offset), _ALIGN_BYTES))
    return Staging(sources=sources, values=values, layout=layout, sharding=sharding, ready=ready)


def _aligned(offset: int) -> int:
    return (offset + _ALIGN_BYTES - 1) // _ALIGN_BYTES * _ALIGN_BYTES


def fill_state(
    state: Mapping[str, Any],
    tensor_of: Callable[[str], torch.Tensor | None],
    value_of: Callable[[str, Any], Any],
) -> dict[str, Any]:
    """Copy staged parts into a state dict of the same shape, in place, and return it with its values."""
    flat, paths = flatten_state_dict(dict(state))
    filled: dict[str, Any] = {}
    for name, value in flat.items():
        if not isinstance(value, torch.Tensor):
            filled[name] = value_of(name, value)
            continue
        local = value._local_tensor if isinstance(value, DTensor) else value
        staged = tensor_of(name)
        if staged is None or staged.shape != local.shape:
            raise KeyError(name)
        with torch.no_grad():
            local.copy_(staged)
        filled[name] = value
    nested: dict[str, Any] = with_keys_of(state, unflatten_state_dict(filled, paths))
    return nested
