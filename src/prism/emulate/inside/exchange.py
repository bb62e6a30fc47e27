"""Real bytes between live ranks, through a small server that the launcher runs."""

from __future__ import annotations

import threading
from multiprocessing.connection import Client, Connection
from typing import Any

from prism.emulate.inside.plan import RunPlan


class ExchangeError(RuntimeError):
    """A live rank waited for bytes that never came: what would have been a hang."""


class Exchange:
    """One rank's end. Every thread has its own connection, so one that waits does not stop another that sends."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._local = threading.local()

    def post(self, channel: str, number: int, payload: bytes) -> None:
        """Leave a message in a channel."""
        self._ask("post", channel, number, payload)

    def get(self, channel: str, number: int, owner: int, where: str) -> bytes | None:
        """Wait for a message of rank `owner`; None where a recording has none.

        `where` is told to the user if it never comes.
        """
        payload: bytes | None = self._ask("get", channel, number, owner, where)
        return payload

    def touch(self, rank: int) -> None:
        """Say that this rank sends to or receives from `rank`, which therefore has to run."""
        self._ask("touch", rank)

    def meet(self, step: int) -> None:
        """Wait until every live rank has ended this step."""
        self._ask("meet", step)

    def arrive(self, meeting: str) -> None:
        """Say that this rank has come to a call that others take part in."""
        self._ask("arrive", meeting)

    def join(self, meeting: str, needed: int) -> bool:
        """Wait until that many have come; False where they do not, which is for the verifier to explain."""
        came: bool = self._ask("join", meeting, needed)
        return came

    def ask_peers(self, verb: str, *values: Any) -> Any:
        """Ask the virtual ranks that keep time for this one."""
        return self._ask(verb, *values)

    def _ask(self, verb: str, *values: Any) -> Any:
        connection = self._connect()
        connection.send((verb, *values))
        status, value = connection.recv()
        if status == "error":
            raise ExchangeError(value)
        return value

    def _connect(self) -> Connection:
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = Client(self._plan.address, authkey=self._plan.token.encode())
            connection.send(("hello", self._plan.rank))
            connection.recv()
            self._local.connection = connection
        return connection
