"""Incidents on disk: one writer, every change flushed before anybody is told, and a disk that may be full."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

from prism.errors import BadConfigError
from prism.incidents.incident import Incident

INCIDENTS_FILE = "incidents.sqlite"
_TABLES = """
CREATE TABLE IF NOT EXISTS incident (id TEXT PRIMARY KEY, document TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS version (one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL);
INSERT OR IGNORE INTO version VALUES (1, 0);
"""


class IncidentStore:
    """Keeps the newest form of each incident. In memory only where there is no folder, or no room in it."""

    def __init__(self, state: Path | None) -> None:
        self.trouble = ""
        self._unsaved: dict[str, Incident] = {}
        self._gate = threading.Lock()
        self._lock_file: IO[bytes] | None = None
        self._disk = sqlite3.connect(":memory:", check_same_thread=False) if state is None else self._open(state)
        self._disk.executescript(_TABLES)

    def load(self) -> list[Incident]:
        """Everything that was stored."""
        return _read_all(self._disk)

    def save(self, incidents: Iterable[Incident]) -> bool:
        """Flush these, and what could not be before; whether they are on disk."""
        with self._gate:
            self._unsaved |= {one.id: one for one in incidents}
            if not self._unsaved:
                return True
            rows = [(one.id, json.dumps(one.to_json())) for one in self._unsaved.values()]
            try:
                with self._disk:
                    self._disk.execute("UPDATE version SET number = number + 1")
                    self._disk.executemany("INSERT OR REPLACE INTO incident VALUES (?, ?)", rows)
            except sqlite3.Error as error:
                self.trouble = f"incidents are kept in memory only ({error}); free space on the disk of --state"
                return False
            self._unsaved, self.trouble = {}, ""
            return True

    def close(self) -> None:
        """Close the file, and let another process write."""
        with self._gate:
            self._disk.close()
            if self._lock_file is not None:
                self._lock_file.close()

    def _open(self, state: Path) -> sqlite3.Connection:
        path = state / INCIDENTS_FILE
        try:
            state.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock_file = path.with_suffix(".lock").open("ab")
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            for _ in range(2):
                disk = sqlite3.connect(path, check_same_thread=False, timeout=5.0)
                try:
                    disk.execute("PRAGMA journal_mode = WAL")
                    disk.execute("PRAGMA synchronous = FULL")
                    disk.executescript(_TABLES)
                    _read_all(disk)
                    return disk
                except sqlite3.OperationalError:
                    disk.close()
                    raise
                except (sqlite3.DatabaseError, ValueError, TypeError, KeyError):  # kept for a person to look at
                    disk.close()
                    path.replace(path.with_suffix(".damaged"))
                    for name in ("-wal", "-shm"):
                        path.with_name(path.name + name).unlink(missing_ok=True)
        except BlockingIOError:
            raise BadConfigError(f"--state {state}: another prism serve writes there; name another folder") from None
        except (OSError, sqlite3.Error) as error:
            raise BadConfigError(f"--state {state}: no incidents can be kept there ({error})") from None
        raise BadConfigError(f"--state {state}: no incidents can be kept there; name another folder")


class IncidentReader:
    """The incidents of another process's store."""

    def __init__(self, state: Path) -> None:
        self._path = state / INCIDENTS_FILE
        self._known: tuple[int, list[Incident]] = (-1, [])
        self.version = 0
        self._gate = threading.Lock()
        self._disk: sqlite3.Connection | None = None

    def load(self) -> list[Incident]:
        """As they are now; those of the last time where the file is away."""
        with self._gate, suppress(sqlite3.Error):
            if self._disk is None:
                self._disk = sqlite3.connect(
                    f"file:{self._path}?mode=ro", uri=True, timeout=1.0, check_same_thread=False
                )
            self.version = int(self._disk.execute("SELECT number FROM version").fetchone()[0])
            if self.version != self._known[0]:
                self._known = self.version, _read_all(self._disk)
        return self._known[1]


def _read_all(disk: sqlite3.Connection) -> list[Incident]:
    rows = disk.execute("SELECT document FROM incident ORDER BY rowid").fetchall()
    return [Incident.from_json(json.loads(text)) for (text,) in rows]
