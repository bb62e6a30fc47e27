"""The database of the history: its tables, how it is opened, and how another process reads it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from prism.errors import BadConfigError

_FILE = "history.sqlite"
_VERSION = 2  # of the tables below; a database of another version is rebuilt from the files
TABLES = """
CREATE TABLE source (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, path TEXT NOT NULL, signature INTEGER NOT NULL,
  gone_ns INTEGER, UNIQUE (kind, path));
CREATE TABLE entry (id INTEGER PRIMARY KEY, source INTEGER NOT NULL, kind TEXT NOT NULL, cluster TEXT NOT NULL,
  job TEXT NOT NULL, key TEXT NOT NULL, at_ns INTEGER NOT NULL, until_ns INTEGER NOT NULL, state TEXT NOT NULL,
  text TEXT NOT NULL, step_s REAL, num_steps INTEGER, gpus INTEGER, lost_gpu_s REAL, restarts INTEGER, goodput REAL,
  num_findings INTEGER, words TEXT NOT NULL);
CREATE INDEX entry_source ON entry (source);
CREATE INDEX entry_job ON entry (job, until_ns);
CREATE INDEX entry_kind ON entry (kind, until_ns);
CREATE INDEX entry_key ON entry (key, kind);
CREATE TABLE mention (host TEXT NOT NULL, entry INTEGER NOT NULL, PRIMARY KEY (host, entry)) WITHOUT ROWID;
CREATE INDEX mention_entry ON mention (entry);
CREATE TABLE member (cluster TEXT NOT NULL, endpoint TEXT NOT NULL, job TEXT NOT NULL,
  PRIMARY KEY (cluster, endpoint)) WITHOUT ROWID;
"""


class ReadableIndex(Protocol):
    """What queries run on."""

    lock: threading.Lock
    connection: sqlite3.Connection

    @property
    def version(self) -> int:
        """Grows with every change."""

    @property
    def num_waiting(self) -> int:
        """Sources that are not brought up to date yet."""


class IndexReader:
    """The index of another process, read only."""

    def __init__(self, state: Path, num_waiting: Callable[[], int]) -> None:
        self.lock = threading.Lock()
        self.connection = sqlite3.connect(state / _FILE, check_same_thread=False, timeout=5.0)
        self.connection.execute("PRAGMA query_only = ON")
        self.connection.create_aggregate("median", 1, Median)  # type: ignore[arg-type]
        self._num_waiting = num_waiting
        # A connection of its own: every answer reads the version, and must not wait for another query.
        self._watching = sqlite3.connect(state / _FILE, check_same_thread=False, timeout=5.0)

    @property
    def version(self) -> int:
        """Another number after every change by the other process."""
        return int(self._watching.execute("PRAGMA data_version").fetchone()[0])

    @property
    def num_waiting(self) -> int:
        """Sources that are not brought up to date yet."""
        return self._num_waiting()

    def close(self) -> None:
        """Close the file."""
        with self.lock:
            self.connection.close()
            self._watching.close()


class Median:
    """The median as an SQL aggregate, which SQLite lacks."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def step(self, value: float | None) -> None:
        """One row."""
        if value is not None:
            self.values.append(value)

    def finalize(self) -> float | None:
        """The median; None of no rows."""
        values = sorted(self.values)
        middle = len(values) // 2
        if not values:
            return None
        return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def forget_index(state: Path) -> None:
    """Delete the index; what people wrote is kept in other files and stay."""
    for name in ("", "-wal", "-shm"):
        (state / f"{_FILE}{name}").unlink(missing_ok=True)


def open_database(state: Path | None) -> sqlite3.Connection:
    """The database, rebuilt if it is damaged or of another version."""
    if state is None:
        return _prepare(sqlite3.connect(":memory:", check_same_thread=False))
    path = state / _FILE
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        for _ in range(2):
            with suppress(sqlite3.DatabaseError):
                return _prepare(sqlite3.connect(path, check_same_thread=False, timeout=5.0))
            forget_index(state)
    except (OSError, sqlite3.OperationalError) as error:
        raise BadConfigError(f"--state {state}: no index can be kept there ({error}); name another folder") from None
    raise BadConfigError(f"--state {state}: no index can be kept there; name another folder")


def _prepare(connection: sqlite3.Connection) -> sqlite3.Connection:
    try:
        _bring_up_to_date(connection)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _bring_up_to_date(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")  # the last second, if lost, is read from the files again
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != _VERSION:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in tables:
            connection.execute(f"DROP TABLE {name}")
        connection.executescript(TABLES)
        connection.execute(f"PRAGMA user_version = {_VERSION}")
    connection.execute("SELECT count(*) FROM source").fetchone()
    connection.create_aggregate("median", 1, Median)  # type: ignore[arg-type]
