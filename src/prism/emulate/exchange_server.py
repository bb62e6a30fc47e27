"""The launcher's end of the exchange: serves the requests of live ranks from one thread."""

from __future__ import annotations

import contextlib
import secrets
import selectors
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, Protocol

from prism.emulate.mailbox import Answer, Mailbox, Waiting
from prism.emulate.units import find_unit

_JOIN_S = 5.0  # ranks that have not reached a common call after this long are not waited for
_QUIET_S = 2.0  # if every rank waits and none asks for anything for this long, none can go on
_TICK_S = 0.1
_MANY_POLLS = 20


class Timekeeper(Protocol):
    """The virtual ranks, as live ones ask them."""

    def answer(self, rank: int, verb: str, values: Sequence[Any]) -> int | None:
        """A number of nanoseconds or of a ticket."""
        ...


class ExchangeServer:
    """Answers live ranks; `is_complete` says whether every rank that may be needed has been started."""

    def __init__(
        self,
        mailbox: Mailbox,
        is_complete: Callable[[], bool],
        *,
        peers: Timekeeper | None = None,
        steps: StepLimit | None = None,
        at_once: int = 1 << 30,
    ) -> None:
        self.mailbox = mailbox
        self.lock = threading.RLock()
        self.token = secrets.token_hex(16)
        self._folder = tempfile.TemporaryDirectory(prefix="prism-")
        self.address = str(Path(self._folder.name) / "exchange")
        self._is_complete = is_complete
        self._peers = peers
        self._steps = steps or StepLimit()
        self._arrived: Counter[str] = Counter()
        self._joining: list[tuple[str, int, float, Callable[[Answer], None]]] = []
        self._meeting: dict[int, list[Callable[[Answer], None]]] = {}
        self._steppers: set[int] = set()
        self._polls: Counter[int] = Counter()
        self._at_once = at_once
        self._queued: deque[tuple[int, Connection, Answer]] = deque()  # answers held back while enough ranks run
        self._has_met = False
        self._last_request = time.monotonic()
        self._ranks: dict[Connection, tuple[int, bool]] = {}
        self._listener = Listener(self.address, backlog=1024, authkey=self.token.encode())
        self._closed = False
        threading.Thread(target=self._serve, daemon=True).start()

    def started(self, rank: int) -> None:
        """A live rank was launched."""
        with self.lock:
            self.mailbox.started(rank)

    def ended(self, rank: int) -> None:
        """A live rank is over."""
        with self.lock:
            self._polls.pop(rank, None)
            self.mailbox.ended(rank, "gone")
            self._settle_meetings()

    def num_moving(self) -> int:
        """Ranks that run and neither wait nor ask the store the same again and again."""
        with self.lock:
            polling = {rank for rank, polls in self._polls.items() if polls > _MANY_POLLS}
            queued = {rank for rank, _, _ in self._queued}
            # Where nothing was asked for a while, a rank may wait for its own thread, which waits for another rank.
            quiet = time.monotonic() - self._last_request > _QUIET_S
            standing = self.mailbox.standing(any_thread=quiet)
            return self.mailbox.num_running - len(standing | polling | queued)

    def quiet_s(self) -> float:
        """Seconds since the last request."""
        with self.lock:
            return time.monotonic() - self._last_request

    def standing(self) -> set[int]:
        """Ranks of which some thread waits for other ranks."""
        with self.lock:
            return self.mailbox.standing(any_thread=True)

    def describe_waits(self) -> str:
        """Some of the waiting ranks, where each waits and for whom."""
        with self.lock:
            return self.mailbox.describe_waits()

    def _queue_answer(self, rank: int, connection: Connection, answer: Answer) -> None:
        """Answer a rank that waited once a core is free: the end of a collective would wake every rank at once."""
        self._queued.append((rank, connection, answer))

    def _send_queued(self) -> None:
        free = self._at_once - self.num_moving() if self._queued else 0
        for _ in range(min(free, len(self._queued))):
            _, connection, answer = self._queued.popleft()
            _reply(connection, answer)

    def wanted(self) -> list[int]:
        """Ranks that others wait for and that have not been started."""
        with self.lock:
            return self.mailbox.wanted()

    def close(self) -> None:
        """Stop serving."""
        self._closed = True
        self._listener.close()
        self._folder.cleanup()

    def _serve(self) -> None:
        socket = self._listener._listener._socket  # type: ignore[attr-defined]
        with selectors.DefaultSelector() as selector:
            with contextlib.suppress(ValueError):  # closed before this thread came to run
                selector.register(socket, selectors.EVENT_READ)
            while not self._closed:
                for key, _ in selector.select(_TICK_S):
                    if key.fileobj is socket:
                        self._accept(selector)
                    else:
                        self._read(selector, key.fileobj)  # type: ignore[arg-type]
                self._tick()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            connection = self._listener.accept()
        except Exception:  # a connection without the token, or the listener was closed
            return
        selector.register(connection, selectors.EVENT_READ)

    def _read(self, selector: selectors.BaseSelector, connection: Connection) -> None:
        try:
            verb, *values = connection.recv()
        except (EOFError, OSError):
            selector.unregister(connection)
            connection.close()
            return
        with self.lock:
            self._last_request = time.monotonic()
            if verb == "hello":
                self._ranks[connection] = (values[0], values[1])
                _reply(connection, ("ok", None))
            else:
                self._answer(connection, verb, values)
            self._send_queued()

    def _answer(self, connection: Connection, verb: str, values: list[Any]) -> None:
        rank, main = self._ranks[connection]
        reply = partial(_reply, connection)
        later = partial(self._queue_answer, rank, connection) if main else reply
        self._polls[rank] = self._polls[rank] + 1 if verb == "check" or (verb == "add" and values[1] == 0) else 0
        box = self.mailbox
        if verb in ("begin", "issue", "due"):
            # The virtual ranks may make the caller wait, which must not hold up the others.
            threading.Thread(target=self._ask_peers, args=(reply, rank, verb, values), daemon=True).start()
        elif verb == "post":
            reply(box.post(*values))
        elif verb == "give":
            reply(box.give(rank, *values))
        elif verb == "get":
            channel, number, owner, where, needed = values
            box.get(Waiting(rank, "get", channel, number, (owner,), where, main, later), needed=needed)
        elif verb == "collect":
            channel, number, members, where = values
            box.collect(Waiting(rank, "collect", channel, number, members, where, main, later))
        elif verb == "swap":
            channel, number, members, position, where = values
            box.collect(Waiting(rank, "collect", channel, number, members, where, main, later, position=position))
        elif verb == "key":
            key, where = values
            box.get_key(Waiting(rank, "key", key, 0, (), where, main, later))
        elif self.mailbox.is_alone and self._polls[rank] > _MANY_POLLS:
            reply(("needs", -1))
        elif verb in ("set", "add", "compare", "append", "delete", "check", "count"):
            reply(box.use_store(rank, verb, values))
        elif verb == "still":
            reply(("over" if box.is_enough(values[0]) else "ok", None))
        elif verb == "bye":
            reply(("ok", None))
            box.ended(rank, *values)
        else:
            self._keep_step(reply, rank, verb, values)

    def _ask_peers(self, reply: Callable[[Answer], None], rank: int, verb: str, values: list[Any]) -> None:
        reply(("ok", self._peers.answer(rank, verb, values) if self._peers is not None else None))

    # Ranks that run in step.

    def _keep_step(self, reply: Callable[[Answer], None], rank: int, verb: str, values: list[Any]) -> None:
        if verb == "arrive":
            self._arrived[values[0]] += 1
            reply(("ok", None))
            self._settle_joins()
        elif verb == "join":
            self._joining.append((values[0], values[1], time.monotonic() + _JOIN_S, reply))
            self._settle_joins()
        elif verb == "meet":
            step, sign = values
            self._steps.note(step, sign)
            self._steppers.add(rank)
            self._meeting.setdefault(step, []).append(reply)
            self._settle_meetings()

    def _settle_joins(self) -> None:
        now, left = time.monotonic(), []
        for meeting, needed, until, reply in self._joining:
            if self._arrived[meeting] >= needed or now > until:
                reply(("ok", self._arrived[meeting] >= needed))
            else:
                left.append((meeting, needed, until, reply))
        self._joining = left

    def _settle_meetings(self, at_least: int | None = None) -> None:
        """A rank that has ended is not waited for: scripts may stop at different steps."""
        # Ranks that take no step at all, such as an evaluator, are not at the first meeting, and not expected later.
        expected = self.mailbox.num_running if not self._has_met else self.mailbox.count_running(self._steppers)
        needed = expected if at_least is None else at_least
        for step in list(self._meeting):
            if len(self._meeting[step]) >= needed:
                self._has_met = True
                goes_on = self._steps.goes_on(step)
                for reply in self._meeting.pop(step):
                    reply(("ok", goes_on))

    def _tick(self) -> None:
        with self.lock:
            self._settle_joins()
            self._send_queued()
            if time.monotonic() - self._last_request <= _QUIET_S or not self._is_complete():
                return
            if self.mailbox.find_deadlock():
                self.mailbox.break_deadlock()
            elif self._meeting and self._num_met() + len(self.mailbox.standing()) >= self.mailbox.num_running:
                # Some ended an iteration that others cannot end without them: let them go on.
                self._settle_meetings(at_least=0)

    def _num_met(self) -> int:
        return sum(map(len, self._meeting.values()))


class StepLimit:
    """Decides after which iteration all ranks stop: when enough were seen to know the repeating unit."""

    def __init__(self, first: int = 0, fewest: int = 1, most: int = 1 << 30, budget_s: float = 1e9) -> None:
        self._first, self._fewest, self._most = first, fewest, most
        self._until = time.monotonic() + budget_s
        self._signs: dict[int, Counter[str]] = {}
        self._decided: dict[int, bool] = {}

    def note(self, step: int, sign: str) -> None:
        """What a rank called in this step."""
        self._signs.setdefault(step, Counter())[sign] += 1

    def goes_on(self, step: int) -> bool:
        """Whether another iteration is needed after this one; the same answer for every rank that asks."""
        if step not in self._decided:
            self._decided[step] = self._needs_more(step)
        return self._decided[step]

    def _needs_more(self, step: int) -> bool:
        count = step - self._first
        if count < self._fewest:
            return True
        if count >= self._most or time.monotonic() > self._until:
            return False
        signs = [tuple(sorted(self._signs.get(s, {}).items())) for s in range(self._first + 1, step + 1)]
        return find_unit(signs) is None


def _reply(connection: Connection, answer: Answer) -> None:
    try:
        connection.send(answer)
    except (OSError, ValueError):  # the rank is gone, which the launcher notices
        return
