"""The API of checkpoints for a training loop: when to save, save, restore.

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

import itertools
import logging
import os
import secrets
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer

from prism.errors import BadConfigError
from prism.recover.catalog import Catalog, Retention
from prism.recover.checkpoint.inspection import find_not_finite
from prism.recover.checkpoint.layout import Staging, ValueCache, plan_staging
from prism.recover.checkpoint.memory import Memory, sweep_memory
from prism.recover.checkpoint.peers import PeerCopies, fetch_lost
from prism.recover.checkpoint.planning import SharePlan, plan_save, same_shape
from prism.recover.checkpoint.preemption import PreemptionNotice
from prism.recover.checkpoint.ranks import LaggedVote, Ranks
from prism.recover.checkpoint.restore import Restore, Restored
from prism.recover.checkpoint.slots import Slot, SlotHeader
from prism.recover.checkpoint.threads import TorchThread
from prism.recover.checkpoint.train_state import OptimizerState
from prism.recover.checkpoint.uploads import Uploads, Written, choose_threads
from prism.recover.checkpoint.writer import WriteJob, WriteOrder
from prism.recover.interval import IntervalConfig, SaveClock
from prism.recover.manifest import Health, Manifest
from prism.recover.progress import STORAGE, Progress, RunOrders

SaveReason = Literal["interval", "preemption"]
_log = logging.getLogger("prism.recover")
_NUMBERS = itertools.count(1)  # of orders, over all checkpointers of this process: they may share a writer


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
    writer_start_s: float = 120.0  # a process that is not ready by then is replaced by a thread
    overlap: bool = False  # save() returns at once; call wait_staged() before the state changes again
    peer_copies: bool = False  # a copy of each staged state on another host: twice the memory, and network
    watch_signals: bool = True
    read_only: bool = False  # for scripts that only restore: a save is refused, nothing is made or changed
    trusted: tuple[type, ...] = ()  # classes that values of the state may have beside plain ones


@dataclass(slots=True, kw_only=True)
class _Session:
    """What stays the same from the first save to the next restore."""

    epoch: int
    plan: SharePlan | None = None
    shape: Staging | None = None  # the state that the plan was made for


class Checkpointer:
    """One per rank. Every rank calls the same methods in the same order."""

    def __init__(self, config: CheckpointConfig, progress: Progress | None = None) -> None:
        self.config = config
        self.ranks = Ranks()
        self.progress = progress or Progress(self.ranks.rank, RunOrders.from_environment())
        self.orders = self.progress.orders
        self.ranks.on_first(lambda: Catalog.open(config.folder, read_only=config.read_only).folder)
        self.catalog = Catalog(config.folder)
        self.memory = Memory(config.memory_dir, self.catalog, self.ranks.rank, config.memory_budget_bytes)
        self.clock = SaveClock(config.interval, self.orders.num_failures, self.orders.uptime_s)
        self.preempted = False
        self.committed_step: int | None = None  # the newest step that this process knows to be committed
        self.last_error: str | None = None  # why the newest save failed
        self.notice = PreemptionNotice() if config.watch_signals and not config.read_only else None
        self._told_to_go = LaggedVote(self.ranks)
        self._uploads = Uploads(
            config.writer, config.writer_start_s, lambda: self.memory.folder / "writer.log", self._note_written
        )
        self._values = ValueCache(config.trusted)
        self._staging: _StagingThread | None = None
        self._peers: PeerCopies | None = None
        self._session: _Session | None = None
        self._restored: tuple[Restore, Restored | None] | None = None
        self._tolerated: frozenset[str] = frozenset()
        self._next_save: int | None = None
        _LIVING.add(self)
        if self.ranks.rank == 0 and not config.read_only:
            folders = {"folder": str(config.folder.resolve()), "memory": str(self.memory.run_folder)}
            self.progress.event("opened", **folders)

    def should_save(self, step: int) -> SaveReason | None:
        """Why a save is due now, or None. Call it once per step on every rank; all ranks get the same answer."""
        self.clock.step_done(time.monotonic())
        if self.notice is not None and self._told_to_go.ask(int(self.notice.given)):
            self.preempted = True
            return "preemption"
        if self._next_save is None:
            self._hold_memory()
            self._uploads.warm_up()  # so that the process has started by the first save
            own = self.config.interval_steps or self.clock.interval_steps
            self._next_save = step + self.ranks.from_first(own) - 1
        return "interval" if step >= self._next_save else None

    def save(self, step: int, state: Mapping[str, Any], health: Health | None = None) -> None:
        """Copy the state to host memory and return; a background process writes and verifies it."""
        start = time.monotonic()
        self.wait_staged()
        session = self._session or self._open_session()
        if self._peers is not None:
            self._peers.wait()  # the oldest slot may be the one that is being copied
        slot = self.memory.take_slot(self._wait_for_storage)
        plain = _plain(state)
        staging = plan_staging(plain, self._values.dump)
        self.memory.check_budget(staging.layout.num_bytes)
        token, interval = self._agree(session, plain, staging)
        header = SlotHeader(
            folder_id=self.memory.folder_id,
            token=token,
            step=step,
            epoch=session.epoch,
            time_ns=time.time_ns(),
            world_size=self.ranks.world_size,
            health=health or Health(),
            layout=staging.layout,
            tolerated=self._tolerated,
        )
        assert session.plan is not None
        order = self._order(header, slot)
        self._staging = _StagingThread(lambda: self._stage(staging, header, order, slot))
        self._staging.start()
        if not self.config.overlap:
            self.wait_staged()
        self.clock.save_done(time.monotonic() - start)
        self._next_save = step + interval

    def _wait_for_storage(self) -> None:
        """Wait, and report it: the supervisor would take a long silence for a hang, and a restart would wait again."""
        with self.progress.pause(STORAGE):
            self._uploads.wait_oldest_part()

    def wait_staged(self) -> None:
        """Wait until the state may change again."""
        staging, self._staging = self._staging, None
        if staging is not None:
            staging.finish()

    def wait_written(self) -> None:
        """Wait until everything saved so far is committed, or has failed; every rank learns which."""
        self.wait_staged()
        self._uploads.wait_all()
        told = self.ranks.gather((self.committed_step, self.last_error))
        self.committed_step = told[0][0]
        self.last_error = next((error for _, error in told if error is not None), None)

    @property
    def writing(self) -> bool:
        """Whether a write is in progress."""
        return self._uploads.busy

    @property
    def writer_fallback(self) -> str:
        """Why a thread writes although a process was configured; empty if a process writes."""
        return self._uploads.fallback

    def restore(self, state: dict[str, Any], up_to_step: int | None = None) -> Restored | None:
        """Load the newest good state, from memory where it is still there, else from storage; None: there is none.

        Nothing is changed or removed. If training goes on and saves, what was saved after this step is set aside then.
        """
        limit = up_to_step if up_to_step is not None else self.orders.resume_step
        search = Restore(
            catalog=self.catalog,
            memory=self.memory,
            ranks=self.ranks,
            trusted=self.config.trusted,
            use_memory=not self.config.read_only,  # a training run may be using it
            tell_broken=lambda step, why: self.progress.event("broken", step=step, why=why),
        )
        if self.config.peer_copies and not self.config.read_only and self.ranks.world_size > 1:
            fetch_lost(self.ranks, self.memory)
        wrapped = _wrap_optimizers(state)
        restored = search.newest(wrapped, limit)
        state.update({name: value for name, value in wrapped.items() if not isinstance(value, OptimizerState)})
        self._restored, self._session = (search, restored), None
        if not self.config.read_only:
            self._tolerated = find_not_finite(plan_staging(_plain(state), lambda name, value: b"").sources)
        if restored is not None and self.ranks.rank == 0:
            fields = {"step": restored.step, "source": restored.source, "seconds": round(restored.seconds, 3)}
            self.progress.event("restored", **fields)
        return restored

    def close(self, *, keep_memory: bool = False) -> None:
        """Finish the writes and free the memory, which is kept after a preemption or a failed save."""
        self.wait_written()
        if self._peers is not None:
            self._peers.wait()
        self._uploads.close()
        if self.notice is not None:
            self.notice.close()
        if self.preempted and self.ranks.rank == 0:
            self.progress.event("preempted", step=self.committed_step)
        if keep_memory or self.preempted or self.last_error is not None:
            self.memory.release()
        else:
            self.memory.remove()
        self._told_to_go.close()
        _LIVING.discard(self)

    def abandon(self) -> None:
        """Release it without communication, since other ranks may be gone. Staged states stay; the writer finishes."""
        self._uploads.abandon()
        self.memory.release()
        if self.notice is not None:
            self.notice.close()

    def _open_session(self) -> _Session:
        """Before the first save: become the owner of the folder, and set aside what the restore rejected."""
        if self.config.read_only:
            raise BadConfigError("this checkpointer is read_only; make one without it to save")
        self._hold_memory()
        session = _Session(epoch=self.ranks.on_first(self._take_over))
        if self.ranks.rank == 0 or os.environ.get("LOCAL_RANK") == "0":
            sweep_memory(self.config.memory_dir)
        if self.config.peer_copies and self._peers is None and self.ranks.world_size > 1:
            self._peers = PeerCopies(self.ranks, self.memory, self.orders.host)
        self._session = session
        return session

    def _hold_memory(self) -> None:
        trouble = self.memory.hold()
        if trouble is not None:
            _log.warning("%s; staged states are kept in %s instead", trouble, self.memory.run_folder)

    def _take_over(self) -> int:
        if self._restored is not None:
            search, restored = self._restored
            for entry in search.broken:
                if entry.path.exists():
                    self.catalog.set_aside(entry.path, "broken")
            self.catalog.discard_after(restored.step if restored is not None else -1)
        return self.catalog.take_over()

    def _agree(self, session: _Session, state: dict[str, Any], staging: Staging) -> tuple[int, int]:
        """A token for this save and the steps to the next, both rank 0's; a new plan if any rank's state changed."""
        first = self.ranks.rank == 0
        own = self.config.interval_steps or self.clock.interval_steps
        changed = not same_shape(session.shape, staging)
        votes = (int(changed), secrets.randbits(62) if first else 0, own if first else 0)
        replan, token, interval = self.ranks.largest(*votes)
        if replan:
            session.plan, session.shape = plan_save(state, self.ranks), staging
        return token, interval

    def _order(self, header: SlotHeader, slot: Slot) -> WriteOrder:
        manifest = Manifest(
            step=header.step,
            attempt=self.orders.attempt,
            world_size=header.world_size,
            time_ns=header.time_ns,
            health=header.health,
            files=(),
            epoch=header.epoch,
            token=header.token,
        )
        return WriteOrder(
            number=next(_NUMBERS),
            rank=self.ranks.rank,
            folder=self.catalog.folder.resolve(),
            written=self.catalog.writing_path(header.step, header.epoch, header.token).resolve(),
            proof=slot.proof_path,
            manifest=manifest,
            retention=self.config.retention,
            layout=header.layout,
            tolerated=header.tolerated,
            num_threads=choose_threads(os.cpu_count() or 1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1)),
        )

    def _stage(self, staging: Staging, header: SlotHeader, order: WriteOrder, slot: Slot) -> None:
        assert self._session is not None and self._session.plan is not None
        try:
            memory = slot.fill(staging)
        except BaseException:
            slot.busy = False
            raise
        slot.declare(header)
        if self._peers is not None:
            self._peers.send(slot, header)
        self._uploads.add(WriteJob(order=order, plan=self._session.plan, memory=memory), slot)

    def _note_written(self, written: Written) -> None:
        """Handle an answer of the writer; on rank 0 it is about all ranks."""
        self.last_error = written.error
        if written.error is None and self.ranks.rank == 0:
            self.committed_step = written.step
            self.clock.write_done(written.seconds)
        if self.ranks.rank != 0:
            return
        if written.error is not None:
            self.progress.event("save_failed", step=written.step, why=written.error)
            return
        health = written.health or Health()
        found = {"healthy": health.good, "doubtful": health.doubtful, "worst": health.worst}
        self.progress.event("saved", step=written.step, **found, seconds=round(written.seconds, 3))


_LIVING: weakref.WeakSet[Checkpointer] = weakref.WeakSet()


def abandon_checkpointers() -> None:
    """Release every checkpointer of this process, before its training starts again."""
    for one in list(_LIVING):
        one.abandon()
        _LIVING.discard(one)


class _StagingThread(TorchThread):
    """Copies to host memory; an error is raised again in the thread that waits for it."""

    def __init__(self, work: Any) -> None:
        super().__init__("prism-stage", lambda: None)
        self._work = work
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._failure = error

    def finish(self) -> None:
        """Wait for the end."""
        self.join()
        if self._failure is not None:
            raise self._failure


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    wrapped = _wrap_optimizers(state)
    return {name: value.state_dict() if isinstance(value, Stateful) else value for name, value in wrapped.items()}


def _wrap_optimizers(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: OptimizerState(value) if isinstance(value, Optimizer) else value for name, value in state.items()}
