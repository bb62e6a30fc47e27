"""The one sender of HTTP: messages wait on disk until their receiver takes them, each receiver's in order."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, NamedTuple

from prism.machine.requests import Receiver, encode, post, post_once

_LOCK_WAIT_S = 5.0  # for an earlier process that is ending
_TABLES = """
CREATE TABLE IF NOT EXISTS message (id INTEGER PRIMARY KEY AUTOINCREMENT, receiver TEXT NOT NULL, key TEXT NOT NULL,
  body BLOB NOT NULL, at_s REAL NOT NULL);
CREATE TABLE IF NOT EXISTS delivery (receiver TEXT PRIMARY KEY, at_s REAL NOT NULL, ok INTEGER, why TEXT NOT NULL,
  num_sent INTEGER NOT NULL, num_lost INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS taken (receiver TEXT NOT NULL, key TEXT NOT NULL, at_s REAL NOT NULL,
  PRIMARY KEY (receiver, key)) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderConfig:
    """How long a receiver may take, when a message is tried again, and when it is given up."""

    timeout_s: float = 5.0
    first_pause_s: float = 0.5  # after a failure; doubled after each further one
    longest_pause_s: float = 30.0
    oldest_s: float = 86_400.0  # a message that waited longer tells nothing any more
    most_waiting: int = 10_000  # of one receiver; the oldest go first
    # The receiver will never take such a body: too large, malformed, of a wrong type.
    refusals: tuple[int, ...] = (400, 413, 415, 422)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """How the last try to reach a receiver went; `ok` None before the first."""

    at_s: float = 0.0
    ok: bool | None = None
    why: str = ""
    num_sent: int = 0
    num_lost: int = 0  # refused, too old, or too many
    num_waiting: int = 0


class _Waiting(NamedTuple):
    id: int
    key: str
    body: bytes
    at_s: float


class Sender:
    """Queues messages for receivers and sends them, one thread for each receiver.

    With a `queue` file what waits survives a crash. If nothing can be written there, messages wait in memory, and
    `trouble` says so. A later message of the same `key` takes the place of one that still waits.
    """

    def __init__(
        self,
        receivers: tuple[Receiver, ...],
        queue: Path | None = None,
        config: SenderConfig | None = None,
        *,
        clock: Callable[[], float] = time.time,
        on_outcome: Callable[[str, str], None] = lambda receiver, why: None,
    ) -> None:
        self.receivers = {receiver.name: receiver for receiver in receivers}
        self.config, self.clock = config or SenderConfig(), clock
        self.outcomes: Counter[str] = Counter()  # sent, failed tries, dropped
        self.trouble = ""
        self._on_outcome = on_outcome
        self._changed = threading.Condition()
        self._stopping = False
        self._deliveries: dict[str, Delivery] = {}
        self._flying: dict[str, _Waiting] = {}  # what each thread is sending
        self._taken: set[tuple[str, str]] = set()  # keys of what is sent once
        self._next_id = 1
        self._lock_file: IO[bytes] | None = None
        self._disk = None if queue is None else self._open(queue)
        self._waiting: dict[str, list[_Waiting]] = {name: [] for name in self.receivers}
        self._restore()
        self._threads = [
            threading.Thread(target=self._work, args=(name,), name=f"prism-sender-{name}", daemon=True)
            for name in self.receivers
        ]
        for thread in self._threads:
            thread.start()

    def send(self, receiver: str, body: Any, *, key: str = "", once: bool = False) -> None:
        """Queue a message: it is on disk when this returns. `once`: nothing of this key is queued a second time."""
        if receiver not in self.receivers:
            return
        with self._changed:
            waiting = self._waiting[receiver]
            if once:
                if (receiver, key) in self._taken:
                    return
            elif key:
                self._drop(
                    receiver, [row for row in waiting if row.key == key and row is not self._flying.get(receiver)]
                )
            row = self._write(receiver, key, encode(body))
            waiting.append(row)
            if once:  # after the message: a crash in between leaves a message that waits, whose key is known
                self._taken.add((receiver, key))
                self._try("INSERT OR REPLACE INTO taken VALUES (?, ?, ?)", (receiver, key, row.at_s))
            over = len(waiting) - self.config.most_waiting
            if over > 0:
                self._lose(receiver, waiting[:over], "too many messages wait")
            self._changed.notify_all()

    def delivery(self, receiver: str) -> Delivery:
        """How it stands with a receiver."""
        with self._changed:
            last = self._deliveries.get(receiver, Delivery())
            return replace(last, num_waiting=len(self._waiting.get(receiver, ())))

    def post_now(self, receiver: str, body: Any) -> str:
        """Send one message at once, past those that wait: a test. "" if it was taken."""
        why = post_once(self.receivers[receiver], body, self.config.timeout_s)
        self._note(receiver, why)
        return why

    @property
    def num_waiting(self) -> int:
        """Messages that no receiver has taken yet."""
        with self._changed:
            return sum(map(len, self._waiting.values()))

    def drain(self, wait_s: float) -> bool:
        """Wait until everything is sent, but not longer than this; whether it was."""
        end = time.monotonic() + wait_s
        with self._changed:
            while any(self._waiting.values()) and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            return not any(self._waiting.values())

    def close(self, wait_s: float = 5.0) -> None:
        """Send what is queued, but do not wait longer than this; what is left stays on disk."""
        self.drain(wait_s)
        with self._changed:
            self._stopping = True
            left = sum(map(len, self._waiting.values()))
            if self._disk is None:
                self.outcomes["dropped"] += left
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=0.5)
        with self._changed:
            if self._disk is not None:
                self._disk.close()
                self._disk = None
            if self._lock_file is not None:
                self._lock_file.close()

    # ---- threads: one receiver each

    def _work(self, name: str) -> None:
        pause_s = self.config.first_pause_s
        while (row := self._next(name)) is not None:
            outcome = post(self.receivers[name], row.body, self.config.timeout_s)
            with self._changed:
                self._flying.pop(name, None)
                if self._stopping and outcome.why:
                    return
                self.outcomes["failed" if outcome.why else "sent"] += 1
            self._note(name, outcome.why)
            self._on_outcome(name, outcome.why)
            if not outcome.why:
                self._take_away(name, row)
                pause_s = self.config.first_pause_s
            elif outcome.code in self.config.refusals:
                with self._changed:
                    self._lose(name, [row], outcome.why)
            else:
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping, max(pause_s, min(outcome.retry_after_s, 300.0)))
                pause_s = min(2 * pause_s, self.config.longest_pause_s)

    def _next(self, name: str) -> _Waiting | None:
        """The message to send now; waits for one. None when the sender ends."""
        with self._changed:
            while not self._stopping:
                oldest_s = self.clock() - self.config.oldest_s
                old = [row for row in self._waiting[name] if row.at_s < oldest_s]
                if old:
                    self._lose(name, old, "waited too long")
                if self._waiting[name]:
                    self._flying[name] = self._waiting[name][0]
                    return self._waiting[name][0]
                self._changed.wait()
            return None

    def _take_away(self, name: str, row: _Waiting) -> None:
        with self._changed:
            self._drop(name, [row])
            self._changed.notify_all()

    def _note(self, name: str, why: str) -> None:
        with self._changed:
            before = self._deliveries.get(name, Delivery())
            now = replace(before, at_s=self.clock(), ok=not why, why=why, num_sent=before.num_sent + (not why))
            self._deliveries[name] = now
            self._keep_delivery(name)

    def _lose(self, name: str, rows: list[_Waiting], why: str) -> None:
        """Give messages up; that is counted, and shown beside the receiver."""
        self.outcomes["dropped"] += len(rows)
        before = self._deliveries.get(name, Delivery())
        self._deliveries[name] = replace(before, num_lost=before.num_lost + len(rows), why=before.why or why)
        self._drop(name, rows)
        self._keep_delivery(name)
        self._changed.notify_all()

    # ---- the disk

    def _open(self, path: Path) -> sqlite3.Connection | None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock_file = path.with_suffix(".lock").open("ab")
            _take_lock(self._lock_file, path)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            for _ in range(2):
                disk = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=5.0)
                try:
                    disk.execute("PRAGMA journal_mode = WAL")
                    disk.execute("PRAGMA synchronous = FULL")
                    disk.executescript(_TABLES)
                    disk.execute("SELECT count(*) FROM message").fetchone()
                    return disk
                except sqlite3.OperationalError:
                    disk.close()
                    raise
                except sqlite3.DatabaseError:  # not a database any more: keep it aside for a person to look at
                    disk.close()
                    path.replace(path.with_suffix(".damaged"))
                    for name in ("-wal", "-shm"):
                        path.with_name(path.name + name).unlink(missing_ok=True)
        except (OSError, sqlite3.Error) as error:
            self.trouble = f"{path}: messages wait in memory only ({error})"
        return None

    def _restore(self) -> None:
        if self._disk is None:
            return
        for id, receiver, key, body, at_s in self._disk.execute("SELECT * FROM message ORDER BY id"):
            if receiver in self._waiting:
                self._waiting[receiver].append(_Waiting(id, key, body, at_s))
            self._next_id = max(self._next_id, id + 1)
        oldest_s = self.clock() - self.config.oldest_s
        self._try("DELETE FROM taken WHERE at_s < ?", (oldest_s,))
        self._taken = set(self._disk.execute("SELECT receiver, key FROM taken").fetchall())
        self._taken |= {(name, row.key) for name, rows in self._waiting.items() for row in rows if row.key != ""}
        for name, at_s, ok, why, num_sent, num_lost in self._disk.execute("SELECT * FROM delivery"):
            self._deliveries[name] = Delivery(
                at_s=at_s, ok=None if ok is None else bool(ok), why=why, num_sent=num_sent, num_lost=num_lost
            )

    def _write(self, receiver: str, key: str, body: bytes) -> _Waiting:
        row = _Waiting(self._next_id, key, body, self.clock())
        self._next_id += 1
        self._try("INSERT INTO message VALUES (?, ?, ?, ?, ?)", (row.id, receiver, key, body, row.at_s))
        return row

    def _drop(self, receiver: str, rows: list[_Waiting]) -> None:
        gone = {row.id for row in rows}
        if gone:
            self._waiting[receiver][:] = [row for row in self._waiting[receiver] if row.id not in gone]
            for id in gone:
                self._try("DELETE FROM message WHERE id = ?", (id,))

    def _keep_delivery(self, name: str) -> None:
        row = self._deliveries[name]
        ok = None if row.ok is None else int(row.ok)
        values = (name, row.at_s, ok, row.why, row.num_sent, row.num_lost)
        self._try("INSERT OR REPLACE INTO delivery VALUES (?, ?, ?, ?, ?, ?)", values)

    def _try(self, statement: str, values: tuple[Any, ...]) -> None:
        """Write; on a full disk go on in memory and say so. What could not be deleted is sent once more at worst."""
        if self._disk is None:
            return
        try:
            self._disk.execute(statement, values)
            self.trouble = ""
        except sqlite3.Error as error:
            self.trouble = f"messages wait in memory only ({error}); free space on the disk of the state folder"


def read_deliveries(queue: Path) -> dict[str, Delivery]:
    """How it stands with each receiver of another process's queue; nothing where there is none yet."""
    with suppress(sqlite3.Error):
        disk = sqlite3.connect(f"file:{queue}?mode=ro", uri=True, timeout=1.0)
        try:
            waiting = dict(disk.execute("SELECT receiver, count(*) FROM message GROUP BY receiver").fetchall())
            return {
                name: Delivery(at_s=at_s, ok=None if ok is None else bool(ok), why=why, num_sent=sent, num_lost=lost,
                               num_waiting=waiting.get(name, 0))
                for name, at_s, ok, why, sent, lost in disk.execute("SELECT * FROM delivery")
            }  # fmt: skip
        finally:
            disk.close()
    return {}


def _take_lock(handle: IO[bytes], path: Path) -> None:
    """Wait for an earlier process that is ending; two at once would send every message twice."""
    end = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise OSError(f"another process sends from {path}; give each a folder of its own") from None
            time.sleep(0.1)
