"""Several processes that answer, and one that keeps everything up to date and tells them what changed.

The keeper lists the folder, writes the index and sends alerts. It tells every worker which places changed; a worker
reads those again and reports that it has. Browsers are told of a change when every worker has read it, so
that any worker can answer their next request.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import Any

from prism.errors import PrismError
from prism.serve.folder import Folder
from prism.serve.history.database import IndexReader
from prism.serve.history.notes import Notes
from prism.serve.incidents import FollowedIncidents
from prism.serve.library import Library
from prism.serve.upkeep import Upkeep, log
from prism.serve.web.app import AppConfig, Backing, create_app
from prism.serve.web.server import ServerConfig, open_socket, run_server

_STOP_S = 10.0  # for a worker to end by itself
_LOOK_S = 0.2  # between checks of the workers
_SOON_S = 10.0  # a worker that ends so soon after its start never worked
_MOST_SOON = 3  # such ends before the service gives up
_SPAWN = multiprocessing.get_context("spawn")  # threads of Polars do not survive a fork


class WorkersEndedError(PrismError):
    """Workers end as soon as they are started."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Numbers that all processes share: sources still to be indexed, and the last change that each worker has read."""

    numbers: Any  # of int64: the sources that wait, then a number for each worker; -1 while it does not answer

    @classmethod
    def make(cls, num_workers: int) -> Shared:
        """Mark all workers as not answering yet."""
        return cls(RawArray("q", [0, *([-1] * num_workers)]))

    def version(self) -> int:
        """The last change that all workers which answer have read."""
        return min((number for number in self.numbers[1:] if number >= 0), default=0)

    def num_waiting(self) -> int:
        """Sources that wait to be indexed."""
        return int(self.numbers[0])


@dataclass(frozen=True, slots=True)
class Change:
    """The changes that the keeper found in one listing of the folder."""

    look: int
    places: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What one worker gets: its number, the pipe of changes, and the first listing."""

    number: int
    shared: Shared
    changes: Connection
    look: int

    def follow(self, library: Library) -> None:
        """Read again the places that the keeper names, until the keeper ends."""
        look = self.look
        while True:
            places: set[str] = set()
            try:
                while self.changes.poll(0.0 if places else 0.5):
                    change: Change = self.changes.recv()
                    look, places = change.look, places | change.places
                library.refresh(places)  # even without a place: of half-written files and killed supervisors
                self.shared.numbers[1 + self.number] = look
            except (EOFError, OSError):
                os.kill(os.getpid(), signal.SIGTERM)
                return
            except Exception:  # The outermost loop: one failure must not end the service.
                log.exception("following the folder went wrong; trying again")
                time.sleep(1.0)


def run_worker(app: AppConfig, server: ServerConfig, worker: Worker) -> None:
    """Serve until told to end; the main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the keeper alone ends the workers
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    logging.getLogger("prism.serve").addHandler(logging.StreamHandler())
    listener = open_socket(server.host, server.port, several=True)
    library = Library(Folder(app.folder, app.limits), app.looks)
    library.refresh()
    state = app.history.state
    assert state is not None
    incidents = FollowedIncidents(app.alerts, state)
    backing = Backing(
        library=library,
        index=IndexReader(state, worker.shared.num_waiting),
        notes=Notes(state),
        incidents=incidents,
        version=lambda: worker.shared.version() + incidents.version,
    )
    made = create_app(app, backing)
    worker.shared.numbers[1 + worker.number] = worker.look
    threading.Thread(target=worker.follow, args=(library,), daemon=True).start()
    run_server(made, server, listener)


@dataclass(slots=True)
class _Running:
    """A worker process, seen from the keeper."""

    process: BaseProcess
    changes: Connection
    since: float


class Keeper:
    """Keeps everything up to date, tells the workers, and starts a worker that ended again."""

    def __init__(self, app: AppConfig, server: ServerConfig, num_workers: int) -> None:
        self.app, self.server = app, server
        self.shared = Shared.make(num_workers)
        self.look_number = 1
        library = Library(Folder(app.folder, app.limits), app.looks)
        self.upkeep = Upkeep.begin(library, app.history, app.alerts, app.look_every_s)
        self._workers: list[_Running | None] = [None] * num_workers
        self._num_soon = 0
        self._lock = threading.Lock()

    async def run(self, ready: Callable[[], None]) -> None:
        """Run until a signal to stop."""
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        tasks = self.upkeep.start(self._look)
        try:
            told = False
            while not stop.is_set():
                await asyncio.to_thread(self._watch_over)
                if not told and min(self.shared.numbers[1:]) >= 0:
                    told = True
                    ready()
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), _LOOK_S)
        finally:
            await asyncio.to_thread(self._stop)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.upkeep.index.close()
            self.upkeep.incidents.close()

    def _look(self) -> None:
        """List the folder, and tell the workers what changed."""
        library = self.upkeep.library
        before = library.snapshot.version
        library.refresh()
        self.shared.numbers[0] = self.upkeep.index.num_waiting
        if library.changed or library.snapshot.version != before:
            with self._lock:
                self.look_number += 1
                for running in filter(None, self._workers):
                    self._tell(running, Change(self.look_number, library.changed))

    def _tell(self, running: _Running, change: Change) -> None:
        """Send a change; a worker that receives nothing any more is ended and started again."""
        if not select.select([], [running.changes], [], 0)[1]:
            running.process.kill()
            return
        with suppress(OSError):  # It has just ended.
            running.changes.send(change)

    def _watch_over(self) -> None:
        """Start every worker that is not running."""
        for number, running in enumerate(self._workers):
            if running is not None and running.process.is_alive():
                continue
            if running is not None:
                self._note_end(number, running)
            ours, theirs = _SPAWN.Pipe()
            with self._lock:
                worker = Worker(number=number, shared=self.shared, changes=theirs, look=self.look_number)
                process = _SPAWN.Process(target=run_worker, args=(self.app, self.server, worker), daemon=True)
                process.start()
                self._workers[number] = _Running(process, ours, time.monotonic())
            theirs.close()

    def _note_end(self, number: int, running: _Running) -> None:
        self.shared.numbers[1 + number] = -1
        running.changes.close()
        log.error("worker %d ended with %s; it is started again", number, running.process.exitcode)
        self._num_soon = self._num_soon + 1 if time.monotonic() - running.since < _SOON_S else 0
        if self._num_soon >= _MOST_SOON:
            raise WorkersEndedError("workers end as soon as they are started; the reason is above")

    def _stop(self) -> None:
        """End the workers: ask them first, then kill them."""
        running = [one for one in self._workers if one is not None]
        for one in running:
            one.process.terminate()
        until = time.monotonic() + _STOP_S
        for one in running:
            one.process.join(max(0.0, until - time.monotonic()))
            if one.process.is_alive():
                one.process.kill()
                one.process.join()


def serve_with_workers(app: AppConfig, server: ServerConfig, num_workers: int, ready: Callable[[], None]) -> None:
    """Serve with several processes until stopped; `server.port` is a port that is kept for us."""
    share = replace(
        app.guard,
        most_wrong_tries=max(1, app.guard.most_wrong_tries // num_workers),
        most_writes=max(1, app.guard.most_writes // num_workers),
    )
    server = replace(server, most_connections=max(1, server.most_connections // num_workers))
    with tempfile.TemporaryDirectory(prefix="prism-serve-") as aside:
        history = replace(app.history, state=app.history.state or Path(aside))
        asyncio.run(Keeper(replace(app, guard=share, history=history), server, num_workers).run(ready))


def keep_port(host: str, port: int) -> socket.socket:
    """Reserve a port without listening, so that the workers can share it; a port in use is refused."""
    with open_socket(host, port, listen=False) as probe:
        port = probe.getsockname()[1]
    return open_socket(host, port, several=True, listen=False)
