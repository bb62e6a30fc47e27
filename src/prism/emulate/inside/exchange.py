"""Real bytes between live ranks, through a small server that the launcher runs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from multiprocessing.connection import Client, Connection
from typing import Any

import torch
import torch.distributed as dist

from prism.emulate.inside.plan import RunPlan

_SHORT_WAIT_S = 0.5  # after it an unmeasured rank lets others have the memory that it does not use


class ExchangeError(RuntimeError):
    """A live rank waited for bytes that no rank sent: a real job would hang."""


class StoreTimeoutError(ExchangeError, dist.DistStoreError):
    """A key of the store was never written; programs that expect it catch torch's error."""


class CaptureDone(BaseException):
    """Enough iterations were seen; not an Exception, so that no handler of the program's swallows it."""


class NeedsOthersError(BaseException):
    """A rank that was to run alone cannot go on without another one."""


class Exchange:
    """One rank's end. Every thread has its own connection, so one that waits does not stop another that sends."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._local = threading.local()

    def post(self, channel: str, number: int, payload: bytes) -> None:
        """Leave a message in a channel."""
        self.ask("post", channel, number, payload)

    def get(self, channel: str, number: int, owner: int, where: str, *, needed: bool = True) -> bytes | None:
        """Wait for a message of rank `owner`; None where that one does not run and nothing was recorded of it.

        `where` is for the message to the user if there is none. Another rank is started only for bytes that are needed.
        """
        payload: bytes | None = self.ask("get", channel, number, owner, where, needed)
        return payload

    def give(self, channel: str, number: int, payload: bytes) -> None:
        """This rank's part of a collective."""
        self.ask("give", channel, number, payload)

    def collect(self, channel: str, number: int, members: Sequence[int], where: str) -> tuple[list[bytes], list[int]]:
        """Wait for all parts: the distinct ones, and which of them each member gave (-1: not known)."""
        parts: tuple[list[bytes], list[int]] = self.ask("collect", channel, number, members, where)
        return parts

    def swap(self, channel: str, number: int, members: Sequence[int], position: int, where: str) -> list[bytes | None]:
        """Wait for all parts of an all-to-all: what each member sends to this position (None: not known)."""
        shares: list[bytes | None] = self.ask("swap", channel, number, members, position, where)
        return shares

    def meet(self, step: int, sign: str) -> bool:
        """Wait until every live rank has ended this step; whether there is to be another one."""
        goes_on: bool = self.ask("meet", step, sign)
        return goes_on

    def arrive(self, meeting: str) -> None:
        """Say that this rank has reached a call that others take part in."""
        self.ask("arrive", meeting)

    def join(self, meeting: str, needed: int) -> bool:
        """Wait until that many ranks have reached it; False if they do not, which the verifier explains."""
        reached: bool = self.ask("join", meeting, needed)
        return reached

    def ask(self, verb: str, *values: Any) -> Any:
        """One request; an answer that says why it cannot be met is raised."""
        connection = self._connect()
        connection.send((verb, *values))
        if self._plan.steps and not connection.poll(_SHORT_WAIT_S):
            give_back_memory()
        status, value = connection.recv()
        if status == "error":
            raise ExchangeError(value)
        if status == "timeout":
            raise StoreTimeoutError(value)
        if status == "over":
            raise CaptureDone
        if status == "needs":
            raise NeedsOthersError
        return value

    def _connect(self) -> Connection:
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = Client(self._plan.address, authkey=self._plan.token.encode())
            connection.send(("hello", self._plan.rank, threading.current_thread() is threading.main_thread()))
            connection.recv()
            self._local.connection = connection
        return connection


def give_back_memory() -> None:
    """Return to the GPU what torch keeps of freed tensors: stages of a pipeline wait while the others are built."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
