"""Save, restore, and when: the small API that a training loop holds.

checkpointer = Checkpointer(CheckpointConfig(folder=Path("checkpoints")))
state = {"train": TrainState(model, optimizer), "position": position}
restored = checkpointer.restore(state)
for step in range(restored.step + 1 if restored else 0, total):
    ...
    if checkpointer.should_save(step):
        checkpointer.save(step, state, Health(loss=loss))
checkpointer.close()
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch.distributed.checkpoint.stateful import Stateful

from prism.recover.catalog import Catalog, Retention
from prism.recover.checkpoint.arena import SlotHeader, Staging, copy_into, plan_staging, write_header
from prism.recover.checkpoint.memory import Memory
from prism.recover.checkpoint.preemption import PreemptionNotice
from prism.recover.checkpoint.ranks import Ranks
from prism.recover.checkpoint.restore import Restored, restore_newest
from prism.recover.checkpoint.uploads import Upload, Uploads
from prism.recover.interval import IntervalConfig, SaveClock
from prism.recover.manifest import Health
from prism.recover.progress import Progress, RunOrders

SaveReason = Literal["interval", "preemption"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Where, how often and how much memory."""

    folder: Path
    interval_steps: int | None = None  # None: chosen from what saves and failures cost
    interval: IntervalConfig = field(default_factory=IntervalConfig)
    retention: Retention = field(default_factory=Retention)
    memory_budget_bytes: int | None = None  # for staged states of this rank; None: room for two
    memory_dir: Path = Path("/dev/shm")
    writer: Literal["process", "thread"] = "process"
    overlap: bool = False  # save() returns at once; call wait_staged() before the state changes again
    watch_signals: bool = True


class Checkpointer:
    """One per rank. Every rank calls the same methods in the same order."""

    def __init__(self, config: CheckpointConfig, progress: Progress | None = None) -> None:
        self.config = config
        self.ranks = Ranks()
        self.progress = progress or Progress(self.ranks.rank, RunOrders.from_environment())
        self.orders = self.progress.orders
        self.catalog = self.ranks.on_first(lambda: Catalog.open(config.folder)) or Catalog(config.folder)
        self.memory = Memory(config.memory_dir, config.folder, self.ranks.rank, config.memory_budget_bytes)
        self.clock = SaveClock(config.interval, self.orders.num_failures, self.orders.uptime_s)
        self.preempted = False
        self.notice = PreemptionNotice() if config.watch_signals else None
        self._uploads = Uploads(self.catalog, self.ranks, self.progress, self.clock, config.writer)
        self._stager = ThreadPoolExecutor(1, thread_name_prefix="prism-stage")
        self._staging: Future[None] | None = None
        self._next_save: int | None = None
        if self.ranks.rank == 0:
            self.catalog.take_over(self.orders.attempt)
            folders = {"folder": str(config.folder.resolve()), "memory": str(self.memory.folder.parent)}
            self.progress.event("opened", **folders)
        self.ranks.barrier()

    def should_save(self, step: int) -> SaveReason | None:
        """Ask once per step, on every rank: is a save due, and why. All ranks get the same answer."""
        self.clock.step_done(time.monotonic())
        if self.notice is not None and self.ranks.any_of_last_step(self.notice.given):
            self.preempted = True
            return "preemption"
        if self._next_save is None:
            self._next_save = step + self._agreed_interval() - 1
        return "interval" if step >= self._next_save else None

    def save(self, step: int, state: Mapping[str, Any], health: Health | None = None) -> None:
        """Stage the state to host memory and return; a background process writes and proves it."""
        start = time.monotonic()
        self.wait_staged()
        slot = self.memory.take_slot(self._uploads.wait_oldest)
        staging = plan_staging(_plain(state))
        self.memory.check_budget(staging.num_bytes)
        header = SlotHeader(
            step=step,
            time_ns=time.time_ns(),
            world_size=self.ranks.world_size,
            health=health or Health(),
            places=staging.places,
            leaves=staging.leaves,
        )
        upload = Upload(slot=slot, header=header, retention=self.config.retention, attempt=self.orders.attempt)
        self._staging = self._stager.submit(self._stage, staging, upload)
        if not self.config.overlap:
            self.wait_staged()
        self.clock.save_done(time.monotonic() - start)
        self._next_save = step + self._agreed_interval()

    def wait_staged(self) -> None:
        """Wait until the state may change again."""
        if self._staging is not None:
            self._staging.result()
            self._staging = None

    def wait_written(self) -> None:
        """Wait until everything saved so far is committed, or has failed."""
        self.wait_staged()
        self._uploads.wait_all()

    @property
    def committed_step(self) -> int | None:
        """The newest step that this process has seen committed."""
        return self._uploads.committed_step

    @property
    def last_error(self) -> str | None:
        """Why the newest save failed, or None."""
        return self._uploads.last_error

    def restore(self, state: dict[str, Any], up_to_step: int | None = None) -> Restored | None:
        """Load the newest good state, from memory where it is still there, else from storage; None: there is none."""
        limit = up_to_step if up_to_step is not None else self.orders.resume_step
        restored = restore_newest(self.catalog, self.memory, self.ranks, state, limit, self._tell_broken)
        if restored is not None and self.ranks.rank == 0:
            fields = {"step": restored.step, "source": restored.source, "seconds": round(restored.seconds, 3)}
            self.progress.event("restored", **fields)
        return restored

    def close(self, *, keep_memory: bool = False) -> None:
        """Finish the writes and give memory back; a preempted process leaves its memory for the next."""
        self.wait_written()
        self._uploads.close()
        self._stager.shutdown()
        if self.notice is not None:
            self.notice.close()
        if self.preempted and self.ranks.rank == 0:
            self.progress.event("preempted", step=self.committed_step)
        if not (keep_memory or self.preempted):
            self.memory.remove()
        self.ranks.close()

    def _stage(self, staging: Staging, upload: Upload) -> None:
        staged = copy_into(upload.slot, staging)
        write_header(upload.slot, upload.header)
        self._uploads.add(upload, staged)

    def _agreed_interval(self) -> int:
        own = self.config.interval_steps or self.clock.interval_steps
        return self.ranks.from_first(own)

    def _tell_broken(self, step: int, damage: str) -> None:
        self.progress.event("broken", step=step, why=damage)


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.state_dict() if isinstance(value, Stateful) else value for name, value in state.items()}
