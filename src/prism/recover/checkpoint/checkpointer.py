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

import logging
import os
import secrets
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from prism.errors import BadConfigError
from prism.recover.catalog import Catalog, Retention
from prism.recover.checkpoint.inspection import find_not_finite
from prism.recover.checkpoint.layout import Staging, ValueCache, plan_staging
from prism.recover.checkpoint.memory import Memory, sweep_memory
from prism.recover.checkpoint.peers import PeerCopies, fetch_lost
from prism.recover.checkpoint.planning import SharePlan, plan_save, same_shape
from prism.recover.checkpoint.preemption import PreemptionNotice
from prism.recover.checkpoint.ranks import LaggedVote, Ranks
from prism.recover.checkpoint.reports import Reports
from prism.recover.checkpoint.restore import Restore, Restored
from prism.recover.checkpoint.slots import Slot, SlotHeader
from prism.recover.checkpoint.threads import TorchThread
from prism.recover.checkpoint.train_state import OptimizerState, plain_state, wrap_optimizers
from prism.recover.checkpoint.uploads import Uploads, Written
from prism.recover.checkpoint.writer import WriteJob, WriteOrder, leave_failure, make_order, shorten
from prism.recover.interval import IntervalConfig, SaveClock
from prism.recover.manifest import Health
from prism.recover.progress import STORAGE, Progress, RunOrders

SaveReason = Literal["interval", "preemption"]
_log = logging.getLogger("prism.recover")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """What this rank brings to a save."""

    plain: dict[str, Any]
    staging: Staging
    slot: Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class _Agreed:
    """What the ranks have agreed on for a save."""

    possible: bool
    token: int
    interval: int


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
        self._staging: TorchThread | None = None
        self._peers: PeerCopies | None = None
        self._session: _Session | None = None
        self._restored: tuple[Restore, Restored | None] | None = None
        self._tolerated: frozenset[str] = frozenset()
        self._next_save: int | None = None
        self._lost_ranks = False  # the ranks can no longer agree, so nothing more is saved
        self._reports = Reports(self.progress)
        _LIVING.add(self)
        if self.ranks.rank == 0 and not config.read_only:
            folders = {"folder": str(config.folder.resolve()), "memory": str(self.memory.run_folder)}
            self.progress.event("opened", **folders)

    def should_save(self, step: int) -> SaveReason | None:
        """Why a save is due now, or None. Call it once per step on every rank; all ranks get the same answer."""
        self.clock.step_done(time.monotonic())
        if self._lost_ranks:
            return None
        try:
            return self._find_reason(step)
        except Exception as error:  # a checkpointer does not end a training
            self._lose_ranks(step, error)
            return None

    def _find_reason(self, step: int) -> SaveReason | None:
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
        """Copy the state to host memory and return; a background process writes and verifies it.

        It never raises because of memory, disks, or other ranks: such a save is skipped and reported.
        """
        if self.config.read_only:
            raise BadConfigError("this checkpointer is read_only; make one without it to save")
        if self._lost_ranks:
            return
        start = time.monotonic()
        self.wait_staged()
        try:
            session = self._session or self._open_session()  # fails on every rank or on none
            interval = self._begin(step, state, health or Health(), session)
        except Exception as error:
            self._lose_ranks(step, error)
            return
        if not self.config.overlap:
            self.wait_staged()
        self.clock.save_done(time.monotonic() - start)
        self._next_save = step + interval

    def _begin(self, step: int, state: Mapping[str, Any], health: Health, session: _Session) -> int:
        """Start to stage the state if every rank can; returns the steps until the next save."""
        prepared = self._prepare(state)
        trouble = prepared if isinstance(prepared, Exception) else None
        if trouble is not None:
            self._skip(step, trouble)
        agreed = self._agree(session, None if isinstance(prepared, Exception) else prepared)
        if not agreed.possible:
            if not isinstance(prepared, Exception):
                prepared.slot.busy = False
                self.last_error = f"step {step}: another rank could not stage its state"
            return agreed.interval
        assert not isinstance(prepared, Exception)
        staging, slot = prepared.staging, prepared.slot
        header = SlotHeader(
            folder_id=self.memory.folder_id,
            token=agreed.token,
            step=step,
            epoch=session.epoch,
            time_ns=time.time_ns(),
            world_size=self.ranks.world_size,
            health=health,
            layout=staging.layout,
            tolerated=self._tolerated,
        )
        order = make_order(header, slot, self.catalog, rank=self.ranks.rank, attempt=self.orders.attempt)
        order = replace(order, retention=self.config.retention)
        self._staging = TorchThread("prism-stage", self._stage, staging, header, order, slot)
        self._staging.start()
        return agreed.interval

    def _prepare(self, state: Mapping[str, Any]) -> _Prepared | Exception:
        """What this rank needs for a save, or why it cannot have it. The ranks agree on it afterwards."""
        slot = None
        try:
            if self._peers is not None:
                self._peers.wait()  # the oldest slot may be the one that is being copied
            plain = plain_state(state)
            staging = plan_staging(plain, self._values.dump)
            slot = self.memory.take_slot(self._wait_for_storage)
            on_gpu = any(source.device.type == "cuda" for source in staging.sources.values())
            self.memory.reserve(slot, staging.layout.num_bytes, pin=on_gpu)
        except Exception as error:
            if slot is not None:
                slot.busy = False
            return error
        if slot.spilled:
            self._reports.tell_once(f"a staged state does not fit into memory: {slot.spilled}")
        return _Prepared(plain=plain, staging=staging, slot=slot)

    def _skip(self, step: int, error: Exception) -> None:
        """Report that this save is left out."""
        self.last_error = self._reports.tell_skipped(step, error)

    def _lose_ranks(self, step: int, error: Exception) -> None:
        """No more saves by this process: the ranks cannot agree any longer, mostly because one of them is gone."""
        self._lost_ranks = True
        self._skip(step, error)

    def _wait_for_storage(self) -> None:
        """Wait, and report it: the supervisor would take a long silence for a hang, and a restart would wait again."""
        with self.progress.pause(STORAGE):
            self._uploads.wait_oldest_part()

    def wait_staged(self) -> None:
        """Wait until the state may change again."""
        staging, self._staging = self._staging, None
        if staging is not None:
            staging.join()

    def wait_written(self) -> None:
        """Wait until everything saved so far is committed, or has failed; every rank learns which."""
        self.wait_staged()
        self._uploads.wait_all()
        if self._lost_ranks:
            return
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
        wrapped = wrap_optimizers(state)
        restored = search.newest(wrapped, limit)
        state.update({name: value for name, value in wrapped.items() if not isinstance(value, OptimizerState)})
        self._restored, self._session = (search, restored), None
        if not self.config.read_only:
            self._tolerated = find_not_finite(plan_staging(plain_state(state), lambda name, value: b"").sources)
        if restored is not None and self.ranks.rank == 0:
            fields = {"step": restored.step, "source": restored.source, "seconds": round(restored.seconds, 3)}
            self.progress.event("restored", **fields)
        return restored

    def close(self, *, keep_memory: bool = False) -> None:
        """Finish the writes and free the memory, which is kept after a preemption or a failed save. Never raises."""
        self._try(self.wait_written)
        if self._peers is not None:
            self._try(self._peers.wait)
        self._try(self._uploads.close)
        if self.notice is not None:
            self._try(self.notice.close)
        if self.preempted and self.ranks.rank == 0:
            self.progress.event("preempted", step=self.committed_step)
        kept = keep_memory or self.preempted or self.last_error is not None
        self._try(self.memory.release if kept else self.memory.remove)
        self._try(self._told_to_go.close)
        _LIVING.discard(self)

    def _try(self, work: Callable[[], object]) -> None:
        """Clean-up must not turn a training that is finished into one that failed."""
        try:
            work()
        except Exception as error:
            self.last_error = self.last_error or shorten(error)
            _log.warning("while the checkpointer was closed: %s", shorten(error))

    def abandon(self) -> None:
        """Release it without communication, since other ranks may be gone. Staged states stay; the writer finishes."""
        self._uploads.abandon()
        self.memory.release()
        if self.notice is not None:
            self.notice.close()

    def _open_session(self) -> _Session:
        """Before the first save: become the owner of the folder, and set aside what the restore rejected."""
        self._hold_memory()
        session = _Session(epoch=self.ranks.on_first(self._take_over))
        if self.ranks.rank == 0 or os.environ.get("LOCAL_RANK") == "0":
            self._try(lambda: sweep_memory(self.config.memory_dir))
        if self.config.peer_copies and self._peers is None and self.ranks.world_size > 1:
            self._peers = PeerCopies(self.ranks, self.memory, self.orders.host)
        self._session = session
        return session

    def _hold_memory(self) -> None:
        try:
            trouble = self.memory.hold()
        except OSError as error:
            self._reports.tell_once(f"{self.config.memory_dir}: cannot hold staged states ({error.strerror or error})")
            return
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

    def _agree(self, session: _Session, prepared: _Prepared | None) -> _Agreed:
        """Whether all ranks can save; rank 0's token and interval; a new plan if any rank's state changed."""
        first = self.ranks.rank == 0
        if first and prepared is not None:
            self._make_folder_again(session.epoch)
        own = self.config.interval_steps or self.clock.interval_steps
        changed = prepared is not None and not same_shape(session.shape, prepared.staging)
        votes = (int(prepared is None), int(changed), secrets.randbits(62) if first else 0, own if first else 0)
        impossible, replan, token, interval = self.ranks.largest(*votes)
        if replan and not impossible:
            assert prepared is not None
            session.plan, session.shape = plan_save(prepared.plain, self.ranks), prepared.staging
        return _Agreed(possible=not impossible, token=token, interval=interval)

    def _make_folder_again(self, epoch: int) -> None:
        """Somebody may have deleted the folder of checkpoints; without it every later save would fail."""
        try:
            if self.catalog.make_again(self.memory.folder_id, epoch):
                self._reports.tell_once(f"{self.config.folder}: was gone; it was made again, empty")
        except OSError as error:
            self._reports.tell_once(f"{self.config.folder}: cannot be made again ({error.strerror or error})")

    def _stage(self, staging: Staging, header: SlotHeader, order: WriteOrder, slot: Slot) -> None:
        assert self._session is not None and self._session.plan is not None
        try:
            memory = slot.fill(staging)
        except Exception as error:
            slot.busy = False
            self._skip(header.step, error)
            leave_failure(order, shorten(error))  # or the others would wait for this rank's share
            return
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
        if self.ranks.rank == 0:
            self._reports.tell_written(written)


_LIVING: weakref.WeakSet[Checkpointer] = weakref.WeakSet()


def abandon_checkpointers() -> None:
    """Release every checkpointer of this process, before its training starts again."""
    for one in list(_LIVING):
        one.abandon()
        _LIVING.discard(one)
