"""Host memory that outlives the process: staged states in named files of /dev/shm, a few slots per rank.

A slot is three files in a folder that only this user can enter: the bytes, a header in JSON that is written after the
copy, and a proof that the writer adds later, with checksums and what it found in the tensors. A tmpfs file needs no
process to hold it, so the next process can restore from it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import mmap
import os
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from prism.errors import PrismError
from prism.machine.files import open_private, read_private, write_private
from prism.records.documents import convert, to_plain
from prism.recover.checkpoint.layout import Layout, Staging, TensorPlace, fill_state
from prism.recover.checkpoint.safe_values import load_value
from prism.recover.manifest import Health, health_document, parse_health

_SCHEMA = "prism.staged/1"
_CHUNK_BYTES = 64 << 20
_HASH_THREADS = 4
_CGROUP = Path("/sys/fs/cgroup")


class StagingError(PrismError):
    """A state cannot be copied to where it is written from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHeader:
    """Describes a complete slot; written after the copy and removed before the next."""

    folder_id: str  # of the checkpoint folder that the state belongs to
    token: int  # random, the same on every rank of one save
    step: int
    epoch: int
    time_ns: int
    world_size: int
    health: Health
    layout: Layout
    tolerated: frozenset[str] = frozenset()  # tensors that were not finite when training began

    def to_json(self) -> str:
        """The content of the header file."""
        numbers = {name: getattr(self, name) for name in ("token", "step", "epoch", "time_ns", "world_size")}
        described: dict[str, Any] = {"health": health_document(self.health), "layout": self.layout.to_document()}
        described["tolerated"] = sorted(self.tolerated)
        return json.dumps({"schema": _SCHEMA, "folder_id": self.folder_id, **numbers, **described}, allow_nan=False)

    @classmethod
    def from_json(cls, text: bytes) -> SlotHeader:
        """Read a header; raises ValueError, KeyError or TypeError if it is malformed."""
        document = json.loads(text)
        if document["schema"] != _SCHEMA:
            raise ValueError(f"schema {document['schema']!r}")
        numbers = {k: int(document[k]) for k in ("token", "step", "epoch", "time_ns", "world_size")}
        return cls(
            folder_id=str(document["folder_id"]),
            health=parse_health(document["health"]),
            layout=Layout.from_document(document["layout"]),
            tolerated=frozenset(map(str, document["tolerated"])),
            **numbers,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotProof:
    """The writer's results for a slot: checksums of its bytes, and the health of its tensors."""

    token: int
    sums: tuple[str, ...]
    health: Health
    committed: bool = False  # on storage too; only rank 0 knows

    def to_json(self) -> str:
        """The content of the proof file."""
        return json.dumps(to_plain(self))

    @classmethod
    def from_json(cls, text: bytes) -> SlotProof:
        """Read a proof; raises ValueError if it is malformed."""
        return convert(json.loads(text), cls)


class Slot:
    """One staged state of one rank. A writer can still read its bytes after the file is removed."""

    def __init__(self, folder: Path, number: int) -> None:
        self.data_path = folder / f"slot-{number}.data"
        self.header_path = folder / f"slot-{number}.json"
        self.proof_path = folder / f"slot-{number}.proof"
        self.busy = False
        self.step = -1
        self.spilled = ""  # why its bytes are in a file on disk, if they are
        self._memory: mmap.mmap | None = None
        self._descriptor: int | None = None
        self._pinned = False

    def header(self) -> SlotHeader | None:
        """The header, if the slot is complete, ours, and as long as the header says."""
        try:
            found = SlotHeader.from_json(read_private(self.header_path))
            if self.data_path.lstat().st_size < found.layout.num_bytes:
                return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return found

    def proof(self, header: SlotHeader) -> SlotProof | None:
        """The writer's results for this state, if it has finished."""
        try:
            found = SlotProof.from_json(read_private(self.proof_path))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return found if found.token == header.token else None

    def open_bytes(self) -> int:
        """The staged bytes as an open file, which the caller closes; they stay readable when their name is gone."""
        assert self._descriptor is not None
        return os.dup(self._descriptor)

    def map_bytes(self) -> mmap.mmap:
        """The bytes of a whole slot, for reading."""
        descriptor = open_private(self.data_path, os.O_RDONLY)
        try:
            return mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)  # torch wants memory that could be written
        finally:
            os.close(descriptor)

    def clear(self) -> None:
        """Mark the slot as empty before it is filled again."""
        self.header_path.unlink(missing_ok=True)
        self.proof_path.unlink(missing_ok=True)

    def reserve(self, num_bytes: int, *, pin: bool, spill: tuple[Path, ...] = (), in_memory: bool = True) -> mmap.mmap:
        """Memory for a state, reused for every save of this process; a file in a `spill` folder if it does not fit."""
        if self._memory is not None and len(self._memory) >= num_bytes:
            return self._memory
        self.release()
        try:
            self.data_path.unlink(missing_ok=True)  # a writer of an earlier process may still read the old bytes
            self._allocate(self._open_in_memory(num_bytes, in_memory=in_memory), num_bytes)
        except OSError as error:
            self.release()
            with contextlib.suppress(OSError):
                self.data_path.unlink(missing_ok=True)
            self.spilled = f"{self.data_path.parent}: {tell_lack(num_bytes, error)}"
            self._spill(num_bytes, spill)
        assert self._memory is not None
        if pin and not self.spilled:
            code = torch.cuda.cudart().cudaHostRegister(_address(self._memory), num_bytes, 0)  # type: ignore[no-untyped-call]
            self._pinned = int(code) == 0
        return self._memory

    def _open_in_memory(self, num_bytes: int, *, in_memory: bool) -> int:
        if not in_memory:
            raise OSError(errno.EDQUOT, "more than memory_budget_bytes")
        # Measured before: where the container's limit is lower than /dev/shm, taking the pages would kill the process.
        if measure_free_memory(self.data_path.parent) < num_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return open_private(self.data_path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def _allocate(self, descriptor: int, num_bytes: int) -> None:
        self._descriptor = descriptor
        # Reserved now: a write to a page that tmpfs cannot provide would kill the process.
        os.posix_fallocate(descriptor, 0, num_bytes)
        self._memory = mmap.mmap(descriptor, 0)

    def _spill(self, num_bytes: int, folders: tuple[Path, ...]) -> None:
        """Use a file without a name on a disk: it can be written from, but no later process restores from it."""
        why = self.spilled
        for folder in folders:
            try:
                with tempfile.TemporaryFile(dir=folder) as handle:
                    self._allocate(os.dup(handle.fileno()), num_bytes)
            except OSError as error:
                self.release()
                why += f"; {folder}: {tell_lack(num_bytes, error)}"
            else:
                self.spilled = f"{why}; staged on disk in {folder} instead"
                return
        self.spilled = ""
        raise StagingError(f"no room to stage the state: {why}; enlarge /dev/shm or set memory_dir")

    def release(self) -> None:
        """Free the memory."""
        if self._memory is not None and self._pinned:
            torch.cuda.cudart().cudaHostUnregister(_address(self._memory))  # type: ignore[no-untyped-call]
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._memory, self._descriptor, self._pinned, self.spilled = None, None, False, ""

    def remove(self) -> None:
        """Release the slot and delete its files."""
        self.release()
        self.clear()
        self.data_path.unlink(missing_ok=True)

    def declare(self, header: SlotHeader) -> None:
        """Mark the slot as complete. If that is not possible, it can be written, but not restored from."""
        if not self.spilled:
            with contextlib.suppress(OSError):
                write_private(self.header_path, header.to_json())

    def fill(self, staging: Staging) -> mmap.mmap:
        """Copy a state into the reserved slot; from a GPU on a separate stream, into pinned memory."""
        memory = self._memory
        assert memory is not None
        views = {name: view_bytes(memory, place) for name, place in staging.layout.tensors.items()}
        for name, data in staging.values.items():
            place = staging.layout.values[name]
            memory[place.offset : place.offset + place.num_bytes] = data
        if staging.ready is None:
            for name, source in staging.sources.items():
                views[name].copy_(source)
            return memory
        device = next(one.device for one in staging.sources.values() if one.device.type == "cuda")
        stream = _side_stream(device)
        stream.wait_event(staging.ready)
        with torch.cuda.stream(stream):
            for name, source in staging.sources.items():
                views[name].copy_(source, non_blocking=True)
        stream.synchronize()
        return memory

    def load(self, header: SlotHeader, state: Mapping[str, Any], trusted: tuple[type, ...] = ()) -> dict[str, Any]:
        """Copy the slot's parts into a state dict of the same shape, in place, and return it with its values."""
        memory = self.map_bytes()
        tensors, values = header.layout.tensors, header.layout.values

        def value_of(name: str, default: Any) -> Any:
            if name not in values:
                return default
            place = values[name]
            return load_value(memory[place.offset : place.offset + place.num_bytes], trusted)

        return fill_state(state, lambda name: view_bytes(memory, tensors[name]) if name in tensors else None, value_of)


def measure_free_memory(folder: Path) -> int:
    """Bytes that can be taken in a folder of host memory: by its file system, by the machine and by the container."""
    free = [shutil.disk_usage(folder).free]
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free.append(int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024)
    with contextlib.suppress(OSError, ValueError):  # "max" is no number: without a limit
        used = int((_CGROUP / "memory.current").read_text()) - _count_reclaimable()
        free.append(int((_CGROUP / "memory.max").read_text()) - used)
    return min(free)


def _count_reclaimable() -> int:
    """Bytes of the container that the kernel gives back when they are needed: cached files."""
    pairs = (line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    return sum(int(value) for name, value in pairs if name in ("inactive_file", "active_file"))


def tell_lack(num_bytes: int, error: OSError) -> str:
    """What was asked for, and why it was not given."""
    return f"{num_bytes:,} bytes wanted ({error.strerror or error})"


_SIDE_STREAMS: dict[torch.device, torch.cuda.Stream] = {}


def _side_stream(device: torch.device) -> torch.cuda.Stream:
    if device not in _SIDE_STREAMS:
        _SIDE_STREAMS[device] = torch.cuda.Stream(device=device)  # type: ignore[no-untyped-call]
    return _SIDE_STREAMS[device]


def view_bytes(memory: mmap.mmap, place: TensorPlace) -> torch.Tensor:
    """A tensor whose storage is exactly its own bytes: of a part of a storage torch would write a copy."""
    if place.num_elements == 0:
        return torch.empty(place.shape, dtype=place.dtype)
    flat = torch.frombuffer(memory, dtype=place.dtype, count=place.num_elements, offset=place.offset)
    return flat.reshape(place.shape)


def sum_bytes(memory: mmap.mmap, num_bytes: int) -> tuple[str, ...]:
    """SHA-256 of every 64 MiB, several in parallel: hashing releases the interpreter's lock."""
    with memoryview(memory) as whole, ThreadPoolExecutor(_HASH_THREADS) as pool:
        parts = [whole[at : min(at + _CHUNK_BYTES, num_bytes)] for at in range(0, num_bytes, _CHUNK_BYTES)]
        sums = tuple(pool.map(lambda part: hashlib.sha256(part).hexdigest(), parts))
        for part in parts:
            part.release()
        return sums


def _address(memory: mmap.mmap) -> int:
    return torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
