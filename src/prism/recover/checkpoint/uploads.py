"""Sends staged states to the writer and handles its answers."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

import prism
from prism.machine.files import open_private
from prism.recover.checkpoint.planning import SharePlan
from prism.recover.checkpoint.slots import Slot
from prism.recover.checkpoint.threads import TorchThread
from prism.recover.checkpoint.writer import PARTS_LIMIT_S, PartWriter, WriteJob
from prism.recover.checkpoint.writer_process import MESSAGE_BYTES, pack_delivery
from prism.recover.manifest import Health, parse_health
from prism.recover.progress import ATTEMPT_KEY

_log = logging.getLogger("prism.recover")
_BOOT = (
    "import json, sys; sys.path[:0] = json.loads(sys.argv.pop()); "
    "from prism.recover.checkpoint.writer_process import main; main()"
)
_NOT_FOR_IT = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_EXIT_WAIT_S = {"process": 15.0, "thread": 60.0}
_END_WAIT_S = 10.0
_SLICE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The result of one save, as far as this rank knows; on rank 0 of the whole checkpoint."""

    step: int
    health: Health | None = None
    error: str | None = None
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Open:
    """An order without a final answer."""

    job: WriteJob
    slot: Slot


class Uploads:
    """The queue of writes. Orders are sent to the writer at once, so that they outlive this process."""

    def __init__(
        self,
        mode: Literal["process", "thread"],
        start_limit_s: float,
        log_path: Callable[[], Path],
        tell: Callable[[Written], None],
    ) -> None:
        self.mode = mode
        self.fallback = ""  # why a thread writes although a process was configured
        self._start_limit_s = start_limit_s
        self._log_path = log_path
        self._tell = tell
        self._changed = threading.Condition()
        self._open: dict[int, _Open] = {}
        self._process: WriterProcess | None = None
        self._queue: queue.SimpleQueue[WriteJob | None] | None = None
        self._thread: TorchThread | None = None
        self._sent_plan: SharePlan | None = None
        atexit.register(self._finish_at_exit)

    def warm_up(self) -> None:
        """Start the writer process before there is something to write."""
        with self._changed:
            if self.mode == "process" and self._process is None:
                self._start_process()

    def add(self, job: WriteJob, slot: Slot) -> None:
        """Send a staged state to the writer."""
        with self._changed:
            self._open[job.order.number] = _Open(job=job, slot=slot)
            if self.mode == "process" and self._process is None:
                self._start_process()
            if self.mode == "thread":
                self._queue_up(job)
                return
            assert self._process is not None
            fresh = self._sent_plan is not job.plan
            self._sent_plan = job.plan
        if not self._process.send(job, slot, with_plan=fresh):
            self._fall_back("the writer process has ended")

    @property
    def busy(self) -> bool:
        """Whether an order has no final answer."""
        return bool(self._open)

    def wait_oldest_part(self) -> None:
        """Wait until the oldest write no longer needs its slot."""
        with self._changed:
            busy = [entry for entry in self._open.values() if entry.slot.busy]
            # In slices: an exception that another thread raises here is seen only between two waits.
            while busy and not self._changed.wait_for(lambda: not busy[0].slot.busy, _SLICE_S):
                pass

    def wait_all(self, limit_s: float | None = None) -> None:
        """Wait for every answer."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open, limit_s)

    def close(self) -> None:
        """Release the writer after all writes have ended."""
        atexit.unregister(self._finish_at_exit)
        if self._process is not None:
            self._process.end()
        if self._queue is not None and self._thread is not None:
            self._queue.put(None)
            self._thread.join(_END_WAIT_S)

    def abandon(self) -> None:
        """Let the writer finish by itself, without waiting for it."""
        atexit.unregister(self._finish_at_exit)
        with self._changed:
            process, self._process = self._process, None
        if process is not None:
            process.listen(lambda **answer: None, lambda why: None)
            _IDLE.append(process)

    def _finish_at_exit(self) -> None:
        """For a program that ends without close(): wait a limited time; a process may continue after it."""
        self.wait_all(_EXIT_WAIT_S[self.mode])

    # -- the process

    def _start_process(self) -> None:
        try:
            self._process = _take_idle() or WriterProcess.start(self._log_path(), self._start_limit_s)
        except (OSError, ValueError) as error:
            self._become_thread(f"the writer process cannot be started ({error})")
            return
        self._process.listen(self._take, self._fall_back)

    def _fall_back(self, why: str) -> None:
        """Continue without the process: a thread writes the open orders and all later ones."""
        with self._changed:
            process, self._process = self._process, None
            if process is None or process.ended:
                return
            process.kill()
            self._become_thread(why)
            for entry in list(self._open.values()):
                self._queue_up(entry.job)

    def _become_thread(self, why: str) -> None:
        self.mode, self.fallback = "thread", why
        _log.warning("%s; checkpoints are written by a thread from now on, which slows steps during a write", why)

    # -- the thread

    def _queue_up(self, job: WriteJob) -> None:
        if self._queue is None:
            jobs: queue.SimpleQueue[WriteJob | None] = queue.SimpleQueue()
            jobs.put(job)  # before the thread starts: a thread that is told to stop finishes its queue
            self._queue = jobs
            self._thread = TorchThread("prism-writer", self._write_in_thread, jobs, stop=lambda: jobs.put(None))
            self._thread.start()
        else:
            self._queue.put(job)

    def _write_in_thread(self, jobs: queue.SimpleQueue[WriteJob | None]) -> None:
        writer = PartWriter()
        while (job := jobs.get()) is not None:
            job.serve(writer, self._take, lambda: PARTS_LIMIT_S)

    # -- answers

    def _take(
        self,
        *,
        kind: str,
        number: int,
        error: str | None = None,
        health: dict[str, Any] | None = None,
        seconds: float = 0.0,
    ) -> None:
        entry = self._open.get(number)
        if entry is None:
            return
        order = entry.job.order
        last = kind == "commit" or order.rank != 0
        if last:
            told = None if health is None else parse_health(health)
            self._tell(Written(step=order.manifest.step, health=told, error=error, seconds=seconds))
        with self._changed:
            if kind == "part":  # when the commit is reported, the slot may hold a later state
                entry.slot.step, entry.slot.busy = order.manifest.step, False
            if last:
                self._open.pop(number, None)
            self._changed.notify_all()


_IDLE: list[WriterProcess] = []  # of trainings that ended in this process; booting another takes seconds


def _take_idle() -> WriterProcess | None:
    while _IDLE:
        process = _IDLE.pop()
        if process.alive:
            return process
    return None


class WriterProcess:
    """The process that writes for this rank, and the socket to it."""

    def __init__(
        self, process: subprocess.Popen[bytes], connection: socket.socket, log: Path, start_limit_s: float
    ) -> None:
        self._reader = threading.Thread(
            target=self._read_answers, args=(start_limit_s,), name="prism-writer", daemon=True
        )
        self._process = process
        self._connection = connection
        self._log = log
        self._answered: Callable[..., None] = lambda **answer: None
        self._lost: Callable[[str], None] = lambda why: None
        self.ended = False

    @property
    def alive(self) -> bool:
        """Whether it can still be used."""
        return not self.ended and self._process.poll() is None

    def listen(self, answered: Callable[..., None], lost: Callable[[str], None]) -> None:
        """Set who receives the answers, and who is notified when there will be no more."""
        self._answered, self._lost = answered, lost
        if not self._reader.is_alive() and not self.ended:
            with contextlib.suppress(RuntimeError):  # it has run before
                self._reader.start()

    def _read_answers(self, start_limit_s: float) -> None:
        if self._receive(start_limit_s) is None:
            self._lost(f"the writer process did not start within {start_limit_s:g} s; see {self._log}")
            return
        while (answer := self._receive(None)) is not None:
            self._answered(**answer)
        if not self.ended:
            self._lost("the writer process has ended")

    @classmethod
    def start(cls, log: Path, start_limit_s: float) -> WriterProcess:
        """Start it without the user's program, apart from the trainer's terminal, session and signals."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        # The paths of this Prism and torch, without the script's folder, whose files may have any names.
        paths = [str(Path(module.__file__ or "").parents[1]) for module in (prism, torch)]
        command = [sys.executable, "-P", "-c", _BOOT, str(there.fileno()), str(os.getpid()), cpus, json.dumps(paths)]
        # A supervisor ends every process with the attempt's key; this one must be able to finish.
        environment = {k: v for k, v in os.environ.items() if k != ATTEMPT_KEY}
        environment |= {"CUDA_VISIBLE_DEVICES": "", "PRISM_ROLE": "writer"}  # no rank, and no user of a GPU
        log.unlink(missing_ok=True)
        output = open_private(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        blocked = signal.pthread_sigmask(
            signal.SIG_BLOCK, _NOT_FOR_IT
        )  # inherited, so that signals are ignored from the start
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[there.fileno()],
                start_new_session=True,
            )
        except BaseException:
            here.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            os.close(output)
            there.close()
        return cls(process, here, log, start_limit_s)

    def send(self, job: WriteJob, slot: Slot, *, with_plan: bool) -> bool:
        """Send an order with its staged bytes as open files; False if the process is gone."""
        order = pack_delivery(job.order, job.plan.to_bytes() if with_plan else b"")
        try:
            staged = slot.open_bytes()
            try:
                socket.send_fds(self._connection, [b"order"], [order, staged])
            finally:
                os.close(staged)
        except OSError:
            return False
        finally:
            os.close(order)
        return True

    def _receive(self, limit_s: float | None) -> dict[str, Any] | None:
        """The next answer; None if the process is gone, or silent for too long."""
        try:
            self._connection.settimeout(limit_s)
            data = self._connection.recv(MESSAGE_BYTES)
        except OSError:
            return None
        answer: dict[str, Any] | None = json.loads(data) if data else None
        return answer

    def end(self) -> None:
        """Close the socket, upon which the process ends, and reap it."""
        self.ended = True
        with contextlib.suppress(OSError):  # it may have gone first
            self._connection.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(_END_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # A thread that still runs while the interpreter ends can abort the process.
        if self._reader.is_alive() and self._reader is not threading.current_thread():
            self._reader.join(_END_WAIT_S)
        self._connection.close()

    def kill(self) -> None:
        """Kill a process that cannot be used."""
        self._process.kill()
        self.end()
