"""Writes one rank's share of a checkpoint with torch's file writer, and verifies it before it counts.

Every byte is hashed on its way out, every file is forced to storage, read back and compared. Each rank then leaves a
small file that says what it wrote and what it found in its tensors; when rank 0's writer has seen them all, it writes
the metadata and gives the folder the name by which it is found. The writers talk through the folder alone, so a
trainer that is killed meanwhile changes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import itertools
import json
import mmap
import os
import shutil
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.storage import WriteResult

from prism.errors import PrismError
from prism.machine.files import hash_file, write_durably, write_private
from prism.recover.catalog import Catalog, Retention
from prism.recover.checkpoint.inspection import find_largest, judge_tensors, merge_health
from prism.recover.checkpoint.layout import Layout
from prism.recover.checkpoint.planning import SharePlan, StagedPlanner
from prism.recover.checkpoint.slots import Slot, SlotHeader, SlotProof, sum_bytes, view_bytes
from prism.recover.manifest import (
    FileSum,
    Health,
    Manifest,
    health_document,
    parse_file_sum,
    parse_health,
    parse_manifest,
)

PARTS_LIMIT_S = 600.0  # for the slowest rank's share
_PARTS = "part-"
_FAILED = "failed-"
_POLL_S = 0.05
_MAX_POLL_S = 1.0
_MAX_THREADS = 4
_CORES_PER_THREAD = 4
_NUMBERS = itertools.count(1)  # of orders, over all checkpointers of this process: they may share a writer


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOrder:
    """An order to write a staged state: where, what, and what to keep afterwards."""

    number: int
    rank: int
    folder: Path
    written: Path
    proof: Path
    manifest: Manifest  # without files
    retention: Retention
    layout: Layout
    tolerated: frozenset[str] = frozenset()  # tensors that were not finite when training began
    num_threads: int = 1

    def to_document(self) -> dict[str, Any]:
        """The order as a JSON document."""
        return {
            "number": self.number,
            "rank": self.rank,
            "folder": str(self.folder),
            "written": str(self.written),
            "proof": str(self.proof),
            "manifest": self.manifest.to_document(),
            "retention": asdict(self.retention),
            "layout": self.layout.to_document(),
            "tolerated": sorted(self.tolerated),
            "num_threads": self.num_threads,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> WriteOrder:
        """An order from a JSON document."""
        return cls(
            number=document["number"],
            rank=document["rank"],
            folder=Path(document["folder"]),
            written=Path(document["written"]),
            proof=Path(document["proof"]),
            manifest=parse_manifest(document["manifest"]),
            retention=Retention(**document["retention"]),
            layout=Layout.from_document(document["layout"]),
            tolerated=frozenset(document["tolerated"]),
            num_threads=document["num_threads"],
        )


def make_order(header: SlotHeader, slot: Slot, catalog: Catalog, *, rank: int, attempt: int) -> WriteOrder:
    """The order to write what a slot holds."""
    manifest = Manifest(
        step=header.step,
        attempt=attempt,
        world_size=header.world_size,
        time_ns=header.time_ns,
        health=header.health,
        files=(),
        epoch=header.epoch,
        token=header.token,
    )
    return WriteOrder(
        number=next(_NUMBERS),
        rank=rank,
        folder=catalog.folder.resolve(),
        written=catalog.writing_path(header.step, header.epoch, header.token).resolve(),
        proof=slot.proof_path,
        manifest=manifest,
        retention=Retention(),
        layout=header.layout,
        tolerated=header.tolerated,
        num_threads=choose_threads(os.cpu_count() or 1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1)),
    )


def choose_threads(num_cores: int, ranks_here: int) -> int:
    """Threads that write and hash one rank's state: few enough to leave most cores to training."""
    return max(1, min(_MAX_THREADS, num_cores // ranks_here // _CORES_PER_THREAD))


class HashedFile(io.RawIOBase):
    """A file that hashes what is written to it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._handle = path.open("wb")
        self._digest = hashlib.sha256()
        self.num_bytes = 0
        self.trouble: OSError | None = None  # torch hides it behind an error of its own about positions

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._digest.update(data)
        try:
            self._put(data)
        except OSError as error:
            self.trouble = OSError(error.errno, error.strerror, self._handle.name)
            raise self.trouble from None
        size = memoryview(data).nbytes
        self.num_bytes += size
        return size

    def _put(self, data: Any) -> None:
        self._handle.write(data)

    def tell(self) -> int:
        return self.num_bytes

    def fileno(self) -> int:
        self._handle.flush()
        return self._handle.fileno()

    def close(self) -> None:
        if not self.closed:
            self._handle.close()
        super().close()

    def sum_as(self, name: str) -> FileSum:
        """What was written, as the manifest records it."""
        return FileSum(name=name, num_bytes=self.num_bytes, sha256=self._digest.hexdigest())


class ProvingFileSystem(FileSystem):
    """torch's file system that hashes every file it writes, reads it back, and remembers the checksum."""

    def __init__(self) -> None:
        self.sums: dict[str, FileSum] = {}
        self.trouble: Exception | None = None

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase, None, None]:
        """Open a file. A written file is verified when it is closed, in the thread that wrote it."""
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        hashed = HashedFile(Path(path))
        try:
            with hashed:
                yield hashed
            written = hashed.sum_as(Path(path).name)
            if hash_file(Path(path), from_storage=True) != written.sha256:
                raise OSError(f"{path}: read back differently from what was written")
        except (OSError, RuntimeError) as error:
            # torch does not pass on errors of its writing threads.
            self.trouble = hashed.trouble or error
            raise self.trouble from None
        self.sums[written.name] = written

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Rename a file, and its checksum with it."""
        super().rename(path, new_path)
        if (found := self.sums.pop(Path(path).name, None)) is not None:
            name = Path(new_path).name
            self.sums[name] = replace(found, name=name)


class ProvenWriter(FileSystemWriter):
    """torch's file writer on a file system that verifies what it writes."""

    def __init__(self, folder: Path, num_threads: int) -> None:
        super().__init__(folder, sync_files=True, thread_count=num_threads, overwrite=False)
        self.fs: ProvingFileSystem = ProvingFileSystem()
        self.per_thread_copy_ahead = 0  # the state is in host memory already


class PartWriter:
    """Writes one rank's share, save after save."""

    def __init__(self) -> None:
        self._largest: dict[str, float] = {}

    def write(self, order: WriteOrder, plan: SharePlan, memory: mmap.mmap) -> Health:
        """Write, verify and describe this rank's share. If it fails, the other ranks find a note."""
        try:
            health = self._inspect(order, memory)
            proof = SlotProof(token=order.manifest.token, sums=sum_bytes(memory, order.layout.num_bytes), health=health)
            _leave_proof(order, proof)
            order.written.mkdir(exist_ok=True)
            _leave_part(order, _write_files(order, plan, memory) | {"health": health_document(health)})
        except Exception as error:
            if plan.share.storage_data is not None:
                for path in order.written.glob(f"{plan.share.storage_data.prefix}*"):
                    path.unlink(missing_ok=True)  # frees space for the note if the disk is full
            leave_failure(order, shorten(error))
            raise
        return health

    def _inspect(self, order: WriteOrder, memory: mmap.mmap) -> Health:
        tensors = ((name, view_bytes(memory, place)) for name, place in order.layout.tensors.items())
        largest = find_largest(tensors)
        health = judge_tensors(order.manifest.health, largest, self._largest, order.tolerated)
        if health.good and not health.doubtful:
            self._largest = largest
        return health


def _write_files(order: WriteOrder, plan: SharePlan, memory: mmap.mmap) -> dict[str, Any]:
    tensors = {name: view_bytes(memory, place) for name, place in order.layout.tensors.items()}
    writer = ProvenWriter(order.written, order.num_threads)
    with memoryview(memory) as data:
        results = writer.write_data(plan.share, StagedPlanner(order.layout, tensors, data)).value()
    if len(results) != len(plan.share.items):
        raise writer.fs.trouble or OSError(f"{order.written}: not every part of the state was written")
    return {
        "files": [asdict(file) for file in writer.fs.sums.values()],
        "results": [_result_document(result) for result in results],
    }


def _result_document(result: WriteResult) -> list[Any]:
    index, info = result.index, result.storage_data
    offset = None if index.offset is None else list(index.offset)
    return [index.fqn, offset, index.index, result.size_in_bytes, info.relative_path, info.offset, info.length]


def _parse_result(parts: list[Any]) -> WriteResult:
    fqn, offset, index, size, path, start, length = parts
    place = MetadataIndex(fqn, None if offset is None else torch.Size(offset), index)
    return WriteResult(index=place, size_in_bytes=size, storage_data=_StorageInfo(path, start, length))


def _leave_part(order: WriteOrder, document: dict[str, Any]) -> None:
    write_durably(order.written / f"{_PARTS}{order.rank:05d}.json", json.dumps(document))


def leave_failure(order: WriteOrder, why: str) -> None:
    """Leave a note that this rank's share failed; on a full disk an empty file with a special name."""
    with contextlib.suppress(OSError):
        order.written.mkdir(exist_ok=True)
        _leave_part(order, {"error": why})
        return
    with contextlib.suppress(OSError):
        (order.written / f"{_FAILED}{order.rank:05d}").touch()


def _leave_proof(order: WriteOrder, proof: SlotProof) -> None:
    """Beside the staged copy, if that still has its name: the owner may have given the memory back."""
    with contextlib.suppress(OSError):
        write_private(order.proof, proof.to_json())


def commit_when_whole(order: WriteOrder, plan: SharePlan, limit_s: Callable[[], float]) -> Health:
    """On rank 0: wait for every rank's note, then write metadata and manifest and give the folder its final name."""
    parts = _wait_for_parts(order, limit_s)
    failed = next((f"rank {rank}: {part['error']}" for rank, part in parts.items() if "error" in part), None)
    if failed is not None:
        raise OSError(failed)
    health = merge_health(parse_health(parts[rank]["health"]) for rank in sorted(parts))
    results = [[_parse_result(one) for one in parts[rank]["results"]] for rank in sorted(parts)]
    writer = ProvenWriter(order.written, 1)
    assert plan.metadata is not None
    writer.finish(replace(plan.metadata), results)
    files = {file.name: file for file in writer.fs.sums.values()}
    files |= {one["name"]: parse_file_sum(one) for part in parts.values() for one in part["files"]}
    missing = {str(one.storage_data.relative_path) for part in results for one in part} - files.keys()
    if missing:
        raise OSError(f"{order.written}: no checksum for {', '.join(sorted(missing))}")
    for rank in parts:
        (order.written / f"{_PARTS}{rank:05d}.json").unlink()
    catalog = Catalog(order.folder)
    catalog.commit(order.written, replace(order.manifest, files=tuple(files.values()), health=health))
    catalog.retain(order.retention)
    _mark_committed(order)
    return health


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJob:
    """An order with all that it needs, wherever it is carried out."""

    order: WriteOrder
    plan: SharePlan
    memory: mmap.mmap

    def serve(self, writer: PartWriter, tell: Callable[..., None], limit_s: Callable[[], float]) -> None:
        """Perform the order and answer: when the share is written, and on rank 0 again when all is committed."""
        number, start = self.order.number, time.monotonic()
        try:
            health = writer.write(self.order, self.plan, self.memory)
        except Exception as error:  # the outermost loop of the writer: reported, and the next order may succeed
            tell(kind="part", number=number, error=shorten(error))
            if self.order.rank == 0:  # the others' shares are of no use without this one
                remove_written(self.order.written)
                tell(kind="commit", number=number, error=shorten(error))
            return
        tell(kind="part", number=number, health=health_document(health))
        if self.order.rank != 0:
            return
        try:
            health = commit_when_whole(self.order, self.plan, limit_s)
        except Exception as error:
            remove_written(self.order.written)
            tell(kind="commit", number=number, error=shorten(error))
        else:
            took = time.monotonic() - start
            tell(kind="commit", number=number, health=health_document(health), seconds=took)


def _wait_for_parts(order: WriteOrder, limit_s: Callable[[], float]) -> dict[int, dict[str, Any]]:
    """Every rank's note, by rank; returns as soon as one rank failed."""
    parts: dict[int, dict[str, Any]] = {}
    start, pause = time.monotonic(), _POLL_S
    while True:
        for path in order.written.glob(f"{_PARTS}*.json"):
            rank = int(path.stem.removeprefix(_PARTS))
            if rank not in parts:
                parts[rank] = json.loads(path.read_text())
        for path in order.written.glob(f"{_FAILED}*"):
            parts[int(path.name.removeprefix(_FAILED))] = {"error": "no room for its share, nor for a note of why"}
        if len(parts) == order.manifest.world_size or any("error" in part for part in parts.values()):
            return parts
        if not order.written.exists():
            raise OSError(f"{order.written}: removed by a later process")
        if time.monotonic() - start > limit_s():
            absent = sorted(set(range(order.manifest.world_size)) - parts.keys())
            raise OSError(f"ranks {absent[:8]} did not write their share in time")
        time.sleep(pause)
        pause = min(pause * 1.5, _MAX_POLL_S)


def _mark_committed(order: WriteOrder) -> None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        proof = SlotProof.from_json(order.proof.read_bytes())
        if proof.token == order.manifest.token:
            write_private(order.proof, replace(proof, committed=True).to_json())


def remove_written(path: Path) -> None:
    """Remove the files of a failed save, so that they do not fill the disk."""
    shutil.rmtree(path, ignore_errors=True)


def shorten(error: BaseException) -> str:
    """The error in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"no space left on the device of {error.filename or 'the checkpoint folder'}"
    if isinstance(error, (OSError, PrismError)) and text:
        return text[:300]
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
