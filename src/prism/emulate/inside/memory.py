# mypy: disable-error-code="no-untyped-call"
"""Peak memory: what the real allocator says on CUDA, an estimate by counted storages on CPU."""

from __future__ import annotations

import contextlib
import weakref
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from prism.emulate.inside.memory_peak import Peak

_ROUND = 512  # CUDA's caching allocator hands out multiples of this
_SMALL, _SMALL_BLOCK, _LARGE_BLOCK = 1 << 20, 2 << 20, 20 << 20  # c10/cuda/CUDACachingAllocator.cpp


class StorageCounter(TorchDispatchMode):
    """Counts the bytes of live storages as ops make them; slow, so it runs in the warm-up only."""

    def __init__(self) -> None:
        super().__init__()
        self.current = 0
        self.peak = 0
        self._sizes: dict[int, int] = {}
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> Any:
        """FSDP frees and takes memory by resizing storages, which no op shows."""
        counter, plain = self, self._resize

        def resize_(storage: Any, size: int) -> Any:
            result = plain(storage, size)
            counter.count_storage(storage)
            return result

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign,assignment]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_iter(result):
            # A distributed tensor holds its shard; ops on shards that it makes inside are not seen.
            held = getattr(leaf, "_local_tensor", leaf)
            held = getattr(held, "elem", held)
            if isinstance(held, torch.Tensor) and type(held) in (torch.Tensor, torch.nn.Parameter):
                self._count(held)
        return result

    def _count(self, tensor: torch.Tensor) -> None:
        with contextlib.suppress(RuntimeError, NotImplementedError):  # functional and fake tensors have no storage
            self.count_storage(tensor.untyped_storage())

    def count_storage(self, storage: Any) -> None:
        """Note what a storage holds now."""
        key = storage._cdata
        size = -(-storage.nbytes() // _ROUND) * _ROUND
        known = self._sizes.get(key)
        self._sizes[key] = size
        self._change(size - (known or 0))
        if known is None:
            weakref.finalize(storage, self._release, key)

    def note_scratch(self, size: int) -> None:
        """Memory that is taken now and given back at once."""
        self.peak = max(self.peak, self.current + size)

    def _release(self, key: int) -> None:
        self._change(-self._sizes.pop(key, 0))

    def _change(self, by: int) -> None:
        self.current += by
        self.peak = max(self.peak, self.current)


def reserve_estimate(allocated: int) -> int:
    """What the caching allocator would hold for this: whole blocks, without fragmentation."""
    block = _SMALL_BLOCK if allocated <= _SMALL else _LARGE_BLOCK
    return -(-allocated // block) * block


class MemoryMeter:
    """The peak of one process."""

    def __init__(self, *, track: bool) -> None:
        self._on_gpu = torch.cuda.is_available()
        self._counter = StorageCounter() if track and not self._on_gpu else None
        if self._counter is not None:
            self._counter.__enter__()
        self._counting = self._counter is not None

    def stop_counting(self) -> None:
        """Leave the slow mode; the peak stays."""
        if self._counter is not None and self._counting:
            self._counting = False
            self._counter.__exit__(None, None, None)

    def note_scratch(self, size: int) -> None:
        """A backend's own buffer of a call, which no op of the program shows."""
        if self._counter is not None and self._counting:
            self._counter.note_scratch(size)

    def read(self) -> Peak:
        """The peak so far."""
        if self._on_gpu:
            requested = torch.cuda.memory_stats()["requested_bytes.all.peak"]
            return Peak(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), "allocator", requested)
        peak = self._counter.peak if self._counter is not None else 0
        return Peak(peak, reserve_estimate(peak), "counted", peak)


def write_snapshot(path: Path) -> None:
    """The allocator's own snapshot, which pytorch.org/memory_viz opens."""
    if torch.cuda.is_available():
        torch.cuda.memory._dump_snapshot(str(path))
