"""The launcher's end of the exchange: a mailbox between live ranks, which knows who waits for whom."""

from __future__ import annotations

import secrets
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, Protocol

_JOIN_S = 5.0  # ranks in step that have not met after this long never will

Posts = dict[str, dict[int, bytes]]
"""Messages by channel and number."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a live rank is stuck in: a message of a channel, by its number."""

    channel: str
    number: int
    owner: int
    where: str


class Timekeeper(Protocol):
    """The virtual ranks, as live ones ask them."""

    def answer(self, rank: int, verb: str, values: Sequence[Any]) -> int | None:
        """A number of nanoseconds or of a ticket."""
        ...


class ExchangeServer:
    """Serves every live rank from threads; `on_touch` is asked to start a rank that somebody needs."""

    def __init__(
        self, on_touch: Callable[[int], bool], timeout_s: float, posts: Posts | None = None,
        peers: Timekeeper | None = None,
    ) -> None:  # fmt: skip
        self._peers = peers
        self.token = secrets.token_hex(16)
        self._folder = tempfile.TemporaryDirectory(prefix="prism-")
        self.address = str(Path(self._folder.name) / "exchange")
        self._on_touch = on_touch
        self._timeout_s = timeout_s
        # Posts of an earlier run stand in for ranks that do not run now: they are replayed.
        self._replays = posts is not None
        self.posts: Posts = posts if posts is not None else {}
        self._change = threading.Condition()
        self._waiting: dict[int, Waiting] = {}
        self._running: set[int] = set()
        self._met: Counter[int] = Counter()
        self._arrived: Counter[str] = Counter()
        self._listener = Listener(self.address, authkey=self.token.encode())
        threading.Thread(target=self._accept, daemon=True).start()

    def started(self, rank: int) -> None:
        """A live rank was launched."""
        with self._change:
            self._running.add(rank)

    def ended(self, rank: int) -> None:
        """A live rank is over; whoever waits for it learns so."""
        with self._change:
            self._running.discard(rank)
            self._waiting.pop(rank, None)
            self._change.notify_all()

    def close(self) -> None:
        """Stop serving."""
        self._listener.close()
        self._folder.cleanup()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except (OSError, EOFError):
                return
            except Exception:  # a stranger without the token: refuse and go on
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        rank = -1
        try:
            while True:
                verb, *values = connection.recv()
                if verb == "hello":
                    rank = values[0]
                    connection.send(("ok", None))
                else:
                    connection.send(self._answer(rank, verb, values))
        except (EOFError, OSError):
            return

    def _answer(self, rank: int, verb: str, values: list[Any]) -> tuple[str, Any]:
        if verb == "post":
            with self._change:
                channel, number, payload = values
                self.posts.setdefault(channel, {})[number] = payload
                self._change.notify_all()
            return "ok", None
        if verb == "touch":
            self._on_touch(values[0])
            return "ok", None
        if verb == "meet":
            return self._meet(values[0])
        if verb in ("begin", "issue", "due"):
            return "ok", self._peers.answer(rank, verb, values) if self._peers is not None else None
        if verb == "arrive":
            with self._change:
                self._arrived[values[0]] += 1
                self._change.notify_all()
            return "ok", None
        if verb == "join":
            with self._change:
                came = self._change.wait_for(lambda: self._arrived[values[0]] >= values[1], _JOIN_S)
            return "ok", came
        return self._get(rank, Waiting(*values))

    def _get(self, rank: int, waiting: Waiting) -> tuple[str, Any]:
        if self._replays:
            return "ok", self._replay(waiting)
        with self._change:
            known = waiting.owner in self._running or self._has(waiting)
        if not known:
            self._on_touch(waiting.owner)
        until = time.monotonic() + self._timeout_s
        with self._change:
            self._waiting[rank] = waiting
            try:
                while not self._has(waiting):
                    problem = self._find_problem(rank, waiting, until)
                    if problem:
                        return "error", problem
                    self._change.wait(0.5)
                return "ok", self.posts[waiting.channel][waiting.number]
            finally:
                self._waiting.pop(rank, None)

    def _has(self, waiting: Waiting) -> bool:
        return waiting.number in self.posts.get(waiting.channel, {})

    def _replay(self, waiting: Waiting) -> bytes | None:
        """The recorded message, or the last one of its channel: later iterations say what earlier ones said."""
        said = self.posts.get(waiting.channel)
        return said.get(waiting.number, said[max(said)]) if said else None

    def _find_problem(self, rank: int, waiting: Waiting, until: float) -> str | None:
        """Why the bytes will not come, in the user's words; None while they still may."""
        here = f"rank {rank} waits at {waiting.where} for rank {waiting.owner}"
        if waiting.owner not in self._running:
            return f"{here}, which has ended without sending or does not exist"
        ring = self._find_ring(rank)
        if ring:
            return "deadlock: " + "; ".join(
                f"rank {r} waits at {self._waiting[r].where} for rank {self._waiting[r].owner}" for r in ring
            )
        if time.monotonic() > until:
            return f"{here}, which did not come in {self._timeout_s:g} s"
        return None

    def _find_ring(self, rank: int) -> list[int]:
        """Ranks that wait for each other in a ring through `rank`, where none has what the next wants."""
        path, at = [rank], self._waiting[rank].owner
        while at != rank:
            stuck = self._waiting.get(at)
            if stuck is None or self._has(stuck) or at in path:
                return []
            path.append(at)
            at = stuck.owner
        return path

    def _meet(self, step: int) -> tuple[str, Any]:
        with self._change:
            self._met[step] += 1
            self._change.notify_all()
            # A rank that has ended is not waited for: scripts may stop at different steps.
            while self._met[step] < len(self._running):
                if not self._change.wait(self._timeout_s):
                    break
        return "ok", None
