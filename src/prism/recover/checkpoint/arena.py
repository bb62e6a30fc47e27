"""Host memory that outlives the process: staged states in named files of /dev/shm, a few slots per rank.

The staged copy is what the writer process saves from, by reference, and what a restarted process restores
from when only the process died: a tmpfs file needs no one to hold it.
"""

from __future__ import annotations

import copy
import math
import mmap
import os
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict, unflatten_state_dict
from torch.distributed.tensor import DTensor

from prism.errors import BadConfigError
from prism.recover.manifest import Health

_ALIGN_BYTES = 512


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where one tensor's local part lies in a slot."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHeader:
    """What a whole slot holds; it is written after the copy and removed before the next."""

    step: int
    time_ns: int
    world_size: int
    health: Health
    places: dict[str, TensorPlace]
    leaves: dict[str, Any]  # everything that is not a tensor


class StagedState(dict[str, Any]):
    """A staged state dict; to another process it travels as the name of its slot, not as bytes."""

    def __init__(self, content: Mapping[str, Any], recipe: tuple[Any, ...]) -> None:
        super().__init__(content)
        self._recipe = recipe

    def __reduce__(self) -> tuple[Any, ...]:
        return (open_staged, self._recipe)


def open_staged(
    path: str,
    places: dict[str, TensorPlace],
    specs: dict[str, Any],
    leaves: dict[str, Any],
    paths: dict[str, Any],
) -> dict[str, Any]:
    """Map a slot and put the state dict together again, without copying."""
    memory = _map(path)
    flat = {name: _wrap(_view(memory, place), specs.get(name)) for name, place in places.items()}
    nested: dict[str, Any] = unflatten_state_dict({**flat, **leaves}, paths)
    return nested


class Slot:
    """One staged state: a data file and a header file."""

    def __init__(self, folder: Path, number: int) -> None:
        self.data_path = folder / f"slot-{number}.bin"
        self.header_path = folder / f"slot-{number}.header"
        self.busy = False  # its content is waiting to be written, or being written
        self.step = -1
        self._memory: mmap.mmap | None = None
        self._pinned = False

    def header(self) -> SlotHeader | None:
        """The header if the slot is whole."""
        try:
            found = pickle.loads(self.header_path.read_bytes())
        except (OSError, pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError):
            return None
        return found if isinstance(found, SlotHeader) else None

    def open_views(self, header: SlotHeader) -> dict[str, torch.Tensor]:
        """The tensors of a whole slot, mapped."""
        memory = _map(str(self.data_path))
        return {name: _view(memory, place) for name, place in header.places.items()}

    def reserve(self, num_bytes: int, *, pin: bool) -> mmap.mmap:
        """Memory for a state; grown once, then used again for every save."""
        if self._memory is not None and len(self._memory) >= num_bytes:
            return self._memory
        self.release()
        try:
            with self.data_path.open("wb") as handle:
                # Taken now: writing to pages that tmpfs cannot give would kill the process.
                os.posix_fallocate(handle.fileno(), 0, num_bytes)
        except OSError as error:
            self.data_path.unlink(missing_ok=True)
            free = shutil.disk_usage(self.data_path.parent).free
            raise BadConfigError(
                f"{self.data_path.parent}: {num_bytes:,} bytes wanted for staging, {free:,} free ({error.strerror}); "
                "enlarge /dev/shm, lower memory_budget_bytes or set memory_dir"
            ) from None
        self._memory = _map(str(self.data_path))
        if pin:
            code = torch.cuda.cudart().cudaHostRegister(_address(self._memory), num_bytes, 0)  # type: ignore[no-untyped-call]
            self._pinned = int(code) == 0
        return self._memory

    def release(self) -> None:
        """Give the memory back."""
        if self._memory is not None and self._pinned:
            torch.cuda.cudart().cudaHostUnregister(_address(self._memory))  # type: ignore[no-untyped-call]
        self._memory, self._pinned = None, False

    def remove(self) -> None:
        """Release the slot and delete its files."""
        self.release()
        self.header_path.unlink(missing_ok=True)
        self.data_path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """A copy that is about to happen: what goes where. Taken on the training thread, so that leaves are settled."""

    sources: dict[str, torch.Tensor]
    specs: dict[str, Any]
    leaves: dict[str, Any]
    paths: dict[str, Any]
    places: dict[str, TensorPlace]
    num_bytes: int
    ready: torch.cuda.Event | None  # the work that the copy must come after


def plan_staging(state: Mapping[str, Any]) -> Staging:
    """Lay the local parts of a state dict out in one run of bytes."""
    flat, paths = flatten_state_dict(dict(state))
    sources: dict[str, torch.Tensor] = {}
    specs: dict[str, Any] = {}
    leaves: dict[str, Any] = {}
    places: dict[str, TensorPlace] = {}
    offset = 0
    for name, value in flat.items():
        if not isinstance(value, torch.Tensor):
            leaves[name] = copy.deepcopy(value)
            continue
        local = value.detach()
        if isinstance(local, DTensor):
            specs[name] = local._spec
            local = local._local_tensor
        sources[name] = local
        places[name] = TensorPlace(local.dtype, tuple(local.shape), offset)
        used = local.numel() * local.element_size()
        offset += (used + _ALIGN_BYTES - 1) // _ALIGN_BYTES * _ALIGN_BYTES
    ready = None
    if any(source.device.type == "cuda" for source in sources.values()):
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
    num_bytes = max(offset, _ALIGN_BYTES)
    return Staging(
        sources=sources, specs=specs, leaves=leaves, paths=paths, places=places, num_bytes=num_bytes, ready=ready
    )


def copy_into(slot: Slot, staging: Staging) -> StagedState:
    """Copy a state into a slot. On a GPU the copies go over a stream of their own, into pinned memory."""
    devices = {source.device for source in staging.sources.values() if source.device.type == "cuda"}
    memory = slot.reserve(staging.num_bytes, pin=bool(devices))
    views = {name: _view(memory, place) for name, place in staging.places.items()}
    if staging.ready is not None:
        stream = _side_stream(next(iter(devices)))
        stream.wait_event(staging.ready)
        with torch.cuda.stream(stream):
            for name, source in staging.sources.items():
                views[name].copy_(source, non_blocking=True)
        stream.synchronize()
    else:
        for name, source in staging.sources.items():
            views[name].copy_(source)
    flat = {name: _wrap(view, staging.specs.get(name)) for name, view in views.items()}
    nested = unflatten_state_dict({**flat, **staging.leaves}, staging.paths)
    recipe = (str(slot.data_path), staging.places, staging.specs, staging.leaves, staging.paths)
    return StagedState(nested, recipe)


def write_header(slot: Slot, header: SlotHeader) -> None:
    """Declare a slot whole."""
    aside = slot.header_path.with_suffix(".tmp")
    aside.write_bytes(pickle.dumps(header))
    aside.replace(slot.header_path)


def load_slot(slot: Slot, header: SlotHeader, state: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a slot's tensors into a state dict of the same shape, in place, and return it with its leaves."""
    flat, paths = flatten_state_dict(dict(state))
    views = slot.open_views(header)
    filled: dict[str, Any] = {}
    for name, value in flat.items():
        if not isinstance(value, torch.Tensor):
            filled[name] = header.leaves.get(name, value)
            continue
        local = value._local_tensor if isinstance(value, DTensor) else value
        if name not in views or views[name].shape != local.shape:
            raise KeyError(name)
        with torch.no_grad():
            local.copy_(views[name])
        filled[name] = value
    nested: dict[str, Any] = unflatten_state_dict(filled, paths)
    return nested


_SIDE_STREAMS: dict[torch.device, torch.cuda.Stream] = {}


def _side_stream(device: torch.device) -> torch.cuda.Stream:
    if device not in _SIDE_STREAMS:
        _SIDE_STREAMS[device] = torch.cuda.Stream(device=device)  # type: ignore[no-untyped-call]
    return _SIDE_STREAMS[device]


def _map(path: str) -> mmap.mmap:
    """Map a file so that writes to it are seen by others."""
    with Path(path).open("r+b") as handle:
        return mmap.mmap(handle.fileno(), 0)


def _address(memory: mmap.mmap) -> int:
    return torch.frombuffer(memory, dtype=torch.uint8).data_ptr()


def _view(memory: mmap.mmap, place: TensorPlace) -> torch.Tensor:
    """A tensor over its own bytes and no others: of a part of a larger storage torch would write a copy."""
    count = math.prod(place.shape)
    if count == 0:
        return torch.empty(place.shape, dtype=place.dtype)
    return torch.frombuffer(memory, dtype=place.dtype, count=count, offset=place.offset).reshape(place.shape)


def _wrap(view: torch.Tensor, spec: Any) -> torch.Tensor:
    return view if spec is None else DTensor(view, spec, requires_grad=False)  # type: ignore[no-untyped-call]
