"""torch's own file writer, made to prove what it wrote before the checkpoint counts.

Every byte is hashed on its way out, every file is forced to storage, read back and compared, and only then
does the folder get the name by which it is found. Runs in torch's background process.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import shutil
import signal
from collections.abc import Generator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from prism.recover.catalog import Catalog, Retention
from prism.recover.files import hash_file
from prism.recover.manifest import FileSum, Manifest

_NICENESS = 10  # at 19 a host whose cores are all busy would hardly write at all
_SUMS = "sums-"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOrder:
    """A checkpoint to write: its manifest without the files, where, and what to keep afterwards."""

    folder: Path
    written: Path
    manifest: Manifest
    retention: Retention
    trainer_pid: int
    trainer_cpus: frozenset[int]
    num_threads: int = 1


class HashedFile(io.RawIOBase):
    """A file that hashes what is written to it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._handle = path.open("wb")
        self._digest = hashlib.sha256()
        self.num_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._digest.update(data)
        self._handle.write(data)
        size = memoryview(data).nbytes
        self.num_bytes += size
        return size

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
        """Open a file; one that is written is proven when it is closed, in the thread that wrote it."""
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        try:
            with HashedFile(Path(path)) as stream:
                yield stream
            written = stream.sum_as(Path(path).name)
            if hash_file(Path(path), from_storage=True) != written.sha256:
                raise OSError(f"{path}: read back differently from what was written")
        except (OSError, RuntimeError) as error:
            self.trouble = error  # torch loses what its writing threads raise
            raise
        self.sums[written.name] = written

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Rename a file, and its checksum with it."""
        super().rename(path, new_path)
        if (found := self.sums.pop(Path(path).name, None)) is not None:
            name = Path(new_path).name
            self.sums[name] = replace(found, name=name)


class ProvenWriter(FileSystemWriter):
    """Writes aside, reads back, commits."""

    def __init__(self, order: CommitOrder) -> None:
        super().__init__(order.written, sync_files=True, thread_count=order.num_threads, overwrite=False)
        self.order = order
        self.fs: ProvingFileSystem = ProvingFileSystem()
        self.per_thread_copy_ahead = 0  # the state is in host memory already

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """In the background process: leave the cores to training, and let the trainer answer signals."""
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        if os.getpid() != self.order.trainer_pid:
            settle_background_process(self.order.trainer_cpus)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write and prove this rank's files, and leave their checksums for the coordinator."""
        results = super().write_data(plan, planner)
        if len(results.value()) != len(plan.items):
            raise self.fs.trouble or OSError(f"{self.order.written}: not every part of the state was written")
        prefix = cast(Any, plan.storage_data).prefix
        sums = [asdict(file) for file in self.fs.sums.values()]
        (self.order.written / f"{_SUMS}{prefix}.json").write_text(json.dumps(sums))
        return results

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator, after every rank has proven its files: metadata, manifest, final name, retention."""
        super().finish(metadata, results)
        files = list(self.fs.sums.values())
        for path in sorted(self.order.written.glob(f"{_SUMS}*.json")):
            files += [FileSum(**entry) for entry in json.loads(path.read_text())]
            path.unlink()
        files = list({file.name: file for file in files}.values())
        # From the results, not from the metadata: before torch 2.13 only a copy of it is filled.
        written = {str(result.storage_data.relative_path) for part in results for result in part}
        missing = written - {file.name for file in files}
        if missing:
            raise OSError(f"{self.order.written}: no checksum for {', '.join(sorted(missing))}")
        catalog = Catalog(self.order.folder)
        catalog.commit(self.order.written, replace(self.order.manifest, files=tuple(files)))
        catalog.retain(self.order.retention)


def settle_background_process(trainer_cpus: frozenset[int]) -> None:
    """Stay out of the trainer's way: low priority, other cores where it is bound to some, deaf to its signals."""
    if os.nice(0) < _NICENESS:
        os.nice(_NICENESS - os.nice(0))
    others = set(range(os.cpu_count() or 1)) - trainer_cpus
    if others:
        with contextlib.suppress(OSError):  # a container may allow none of them
            os.sched_setaffinity(0, others)
    torch.set_num_threads(1)
    torch.serialization.set_crc32_options(False)  # every byte is hashed here already
    logging.getLogger().setLevel(logging.WARNING)  # torch tells every request at INFO, into the trainer's log
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def remove_written(path: Path) -> None:
    """Remove what a failed save left behind, so that it does not fill the disk."""
    shutil.rmtree(path, ignore_errors=True)
