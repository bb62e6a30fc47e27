"""Staged states on their way to storage, one at a time, through torch's own asynchronous save."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
import uuid
import warnings
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from torch.distributed.checkpoint import _async_process_executor as executor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse, async_save

from prism.recover.catalog import Catalog, Retention
from prism.recover.checkpoint.arena import Slot, SlotHeader, StagedState
from prism.recover.checkpoint.ranks import Ranks
from prism.recover.checkpoint.writer import CommitOrder, ProvenWriter, remove_written
from prism.recover.interval import SaveClock
from prism.recover.manifest import Manifest
from prism.recover.progress import Progress

_DEAD_WRITER = "background process is dead"
_LAST_WRITE_S = 30.0
_MAX_THREADS = 4
_CORES_PER_THREAD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A staged state to be written."""

    slot: Slot
    header: SlotHeader
    retention: Retention
    attempt: int


class AlreadyStaged(AsyncStager):
    """Hands torch the copy that the arena made, as the object that travels by name."""

    _synchronize_after_execute = False

    def __init__(self, staged: StagedState) -> None:
        self._staged = staged

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The copy; torch's own argument is a plain dict of the same."""
        return self._staged

    def synchronize_staging(self) -> None:
        """The copy is complete already."""
        return

    def close(self) -> None:
        """The arena owns the memory."""
        return


class Uploads:
    """The queue of writes. torch's writer process takes one request at a time, so this keeps them in order."""

    def __init__(
        self,
        catalog: Catalog,
        ranks: Ranks,
        progress: Progress,
        clock: SaveClock,
        writer: Literal["process", "thread"],
    ) -> None:
        self._catalog = catalog
        self._ranks = ranks
        self._progress = progress
        self._clock = clock
        self._writer = writer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prism-upload")
        self._pending: deque[Future[None]] = deque()
        self.committed_step: int | None = None
        self.last_error: str | None = None
        # Runs before multiprocessing's own exit, which would wait for ever for a child that ignores SIGTERM.
        atexit.register(end_writer_process)

    def add(self, upload: Upload, staged: StagedState) -> None:
        """Queue a staged state."""
        while self._pending and self._pending[0].done():
            self.wait_oldest()
        self._pending.append(self._thread.submit(self._write, upload, staged))

    def wait_oldest(self) -> None:
        """Wait for the write that was queued first."""
        if self._pending:
            self._pending.popleft().result()

    def wait_all(self) -> None:
        """Wait for every queued write."""
        while self._pending:
            self.wait_oldest()

    def close(self) -> None:
        """Stop the thread and the writer process."""
        self._thread.shutdown()
        atexit.unregister(end_writer_process)
        end_writer_process()

    def _write(self, upload: Upload, staged: StagedState) -> None:
        step = upload.header.step
        start = time.monotonic()
        error = self._save(upload, staged)
        errors = [e for e in self._ranks.gather(error, self._ranks.uploads) if e is not None]
        upload.slot.step = step
        upload.slot.busy = False
        self.last_error = errors[0] if errors else None
        if not errors:
            self.committed_step = step
            self._clock.write_done(time.monotonic() - start)
        elif any(_DEAD_WRITER in e for e in errors):
            # Someone killed a writer process (out of memory, most often); saves must go on without it.
            self._writer = "thread"
        if self._ranks.rank == 0:
            self._tell(upload, errors, time.monotonic() - start)

    def _save(self, upload: Upload, staged: StagedState) -> str | None:
        """Write one state; what went wrong, or None."""
        header = upload.header
        # The ranks must write into one folder, and no two tries into the same.
        token = self._token()
        written = self._catalog.writing_path(header.step, upload.attempt, token)
        manifest = Manifest(
            step=header.step,
            attempt=upload.attempt,
            world_size=header.world_size,
            time_ns=header.time_ns,
            health=header.health,
            files=(),
        )
        order = CommitOrder(
            folder=self._catalog.folder,
            written=written,
            manifest=manifest,
            retention=upload.retention,
            trainer_pid=os.getpid(),
            trainer_cpus=frozenset(os.sched_getaffinity(0)),
            num_threads=choose_threads(os.cpu_count() or 1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1)),
        )
        kind = AsyncCheckpointerType.PROCESS if self._writer == "process" else AsyncCheckpointerType.THREAD
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                response = async_save(
                    staged,
                    storage_writer=ProvenWriter(order),
                    process_group=self._ranks.uploads,
                    async_checkpointer_type=kind,
                    async_stager=AlreadyStaged(staged),
                )
            done = response.upload_completion if isinstance(response, AsyncSaveResponse) else response
            done.result()
        except (Exception, CheckpointException) as error:  # outermost loop of the upload thread: told, training goes on
            remove_written(written)
            return _shorten(error)
        return None

    def _token(self) -> str:
        tokens = self._ranks.gather(uuid.uuid4().hex[:8], self._ranks.uploads)
        return tokens[0]

    def _tell(self, upload: Upload, errors: list[str], seconds: float) -> None:
        step, health = upload.header.step, upload.header.health
        if errors:
            self._progress.event("save_failed", step=step, why=errors[0])
            return
        self._progress.event("saved", step=step, healthy=health.good, seconds=round(seconds, 3))


def choose_threads(num_cores: int, ranks_here: int) -> int:
    """Threads that write and hash one rank's state: few enough to leave most cores to training."""
    return max(1, min(_MAX_THREADS, num_cores // ranks_here // _CORES_PER_THREAD))


def end_writer_process() -> None:
    """Let torch's writer process finish what it is writing, then end it."""
    process = executor._CHECKPOINT_PROCESS
    if process is None:
        return
    executor._CHECKPOINT_PROCESS = None
    child = process._save_process
    with contextlib.suppress(OSError, ValueError):
        process._send(executor._CheckpointSaveProcessControlOpts.TERMINATE)
    child.join(_LAST_WRITE_S)
    if child.is_alive():
        child.kill()
        child.join()


def _shorten(error: BaseException) -> str:
    """One line that says why: torch's CheckpointException hides the cause of each rank under its own text."""
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict) and failures:
        rank, cause = next(iter(failures.items()))
        return f"rank {rank}: {_shorten(cause[0] if isinstance(cause, tuple) else cause)}"
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{type(error).__name__}: {text[:300]}"
