"""A process that trains or waits as a spare. It trains when it is given a rank, and survives the death of others."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch._dynamo  # the first optimizer imports it, which takes most of a second; a spare can do so in advance
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore

from prism.recover.checkpoint.checkpointer import abandon_checkpointers
from prism.recover.checkpoint.inplace.board import MEMBER, STORE, Board
from prism.recover.checkpoint.inplace.connections import Connections
from prism.recover.checkpoint.inplace.phases import Phases

_log = logging.getLogger("prism.recover")
_POLL_S = 0.05
_INSIST_S = 1.0  # interval of requests to a training that does not stop
_LOST = "another rank was lost"
_GIVE_UP_S = 20.0  # after this the process is replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """This process's part in the training that begins."""

    rank: int
    world_size: int
    generation: int  # counted from 1; above 1 something has failed before


class RestartTraining(BaseException):
    """Raised inside the training when its world has changed; not an Exception, so that programs do not swallow it."""


def run_in_place(
    train: Callable[[Place], None], backend: str = "gloo", timeout: timedelta = timedelta(minutes=10)
) -> None:
    """Call `train` with a process group set up, and again in the same process whenever a rank was lost.

    Under another launcher (torchrun, say) it is called once, with the launcher's ranks.
    """
    address = os.environ.get(STORE)
    if address is None:
        dist.init_process_group(backend, timeout=timeout)
        train(Place(rank=dist.get_rank(), world_size=dist.get_world_size(), generation=1))
        dist.destroy_process_group()
        return
    sys.exit(Member(address, os.environ[MEMBER], backend, timeout).run(train))


class Member:
    """The loop around the training."""

    def __init__(self, address: str, name: str, backend: str, timeout: timedelta) -> None:
        self._address = address
        self._name = name
        self._backend = backend
        self._timeout = timeout
        self._board = Board(address)
        self._phases = Phases()
        if backend == "nccl" or "nccl" in backend:
            torch.cuda.current_stream()  # a spare is only of use with its device ready

    def run(self, train: Callable[[Place], None]) -> int:
        """Join and train until the job is over; returns the exit code."""
        self._board.append("joined", self._name)
        seen = 0
        while (code := self._board.ended()) is None:
            newest = self._board.newest()
            if newest == seen:
                time.sleep(_POLL_S)
                continue
            seen = newest
            members = self._board.generation(newest).members
            if self._name in members:
                place = Place(rank=members.index(self._name), world_size=len(members), generation=newest)
                self._phases.pass_by("called")
                self._train(train, place)
        return code

    def _train(self, train: Callable[[Place], None], place: Place) -> None:
        connections = Connections()
        watch = _Watch(self._address, place.generation, connections)
        failure, own = "", False
        try:
            failure, own = self._attempt(train, place, connections)
            watch.stop()
        except RestartTraining:  # raised while the attempt was already ending
            watch.stop()
            failure = failure or _LOST
        if failure:
            self._phases.pass_by("noticed")
            _log.info("generation %d ends on rank %d: %s", place.generation, place.rank, failure)
            report = {"member": self._name, "generation": place.generation, "why": failure, "own": own}
            self._board.append("failed", report)
        else:
            self._board.append(f"done-{place.generation}", self._name)
        _leave(connections)
        self._phases.pass_by("left")

    def _attempt(self, train: Callable[[Place], None], place: Place, connections: Connections) -> tuple[str, bool]:
        """Train; returns why it failed, if it did, and whether this rank was the cause."""
        try:
            with connections.recording_groups():
                self._connect(connections, place)
                self._phases.pass_by("connected")
                self._board.append(f"phases-{place.generation}", self._phases.report())
                train(place)
        except RestartTraining:
            return _LOST, False
        except Exception as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            return why, not _blames_peer(error)
        return "", False

    def _connect(self, connections: Connections, place: Place) -> None:
        os.environ |= {"RANK": str(place.rank), "WORLD_SIZE": str(place.world_size), "LOCAL_RANK": str(place.rank)}
        with connections.recorded():
            # A separate connection, so that waiting for a rank that has died can be ended too.
            store = PrefixStore(f"groups-{place.generation}", Board(self._address).store)
            dist.init_process_group(
                self._backend, store=store, rank=place.rank, world_size=place.world_size, timeout=self._timeout
            )
            # A rank that is done at once takes its connections with it, and others may still be making theirs.
            if store.add("connected", 1) == place.world_size:
                store.set("all connected", "")
            store.wait(["all connected"], self._timeout)


class _Watch(threading.Thread):
    """Waits for a newer generation, then ends the training wherever it is."""

    def __init__(self, address: str, generation: int, connections: Connections) -> None:
        super().__init__(name="prism-generation", daemon=True)
        self._board = Board(address)  # here: a socket that the thread opens would count as one of the group's
        self._generation = generation
        self._connections = connections
        self._trainer = threading.get_ident()
        self._done = threading.Event()
        self._lock = threading.Lock()
        self.start()

    def run(self) -> None:
        while not self._done.wait(_POLL_S):
            if self._board.newest() > self._generation or self._board.ended() is not None:
                break
        deadline = time.monotonic() + _GIVE_UP_S
        while not self._done.is_set():
            self._connections.shut_down()
            if self._done.wait(_INSIST_S):
                return
            with self._lock:
                if not self._done.is_set():
                    raised = ctypes.py_object(RestartTraining)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._trainer), raised)
            if time.monotonic() > deadline:
                os._exit(1)  # the launcher puts a spare in its place

    def stop(self) -> None:
        """The training has ended."""
        with self._lock:
            self._done.set()


def _blames_peer(error: Exception) -> bool:
    """Whether an error only reports that another rank is gone."""
    words = ("gloo", "nccl", "connection", "broken pipe", "timed out")
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in words)


def _leave(connections: Connections) -> None:
    """Destroy the process groups of the old generation; staged states stay, and their writers finish."""
    abandon_checkpointers()
    connections.shut_down()
    with contextlib.suppress(Exception):  # an aborted group may refuse
        dist.destroy_process_group()
    # Groups are numbered, and a group that was never finished keeps its number: a spare would wait under another one.
    distributed_c10d._world.group_count = 0
    gc.collect()  # groups that models and optimizers held
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
