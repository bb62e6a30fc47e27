"""The index: rows of every source in SQLite, brought up to date file by file, and made anew at any time."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from prism.errors import BadConfigError, PrismError
from prism.serve.history.entries import Entry, list_entries
from prism.serve.library import Reading, Source

_VERSION = 2  # of the tables below; another version is made anew from the files
_TABLES = """
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
_SAME_JOB = 0.5  # share of the larger set of endpoints, as on the other pages
_BATCH = 500  # sources written in one transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryConfig:
    """Where the index lies and how long it remembers."""

    state: Path | None = None  # a folder for the index, annotations and silences; None: in memory, nothing is kept
    keep_days: float = 400.0
    clusters: bool = False  # whether each folder at the top of the served one is a cluster of that name
    name: str = ""  # of the one cluster, where they are not
    sample_s: float = 600.0  # rows of a watch, which overwrites its file, stay when they are this far apart


class HistoryIndex:
    """One writer, many readers, one connection behind a lock: each holds it for milliseconds."""

    def __init__(self, config: HistoryConfig, clock: Callable[[], int] = time.time_ns) -> None:
        self.config, self.clock = config, clock
        self.lock = threading.Lock()
        self.num_waiting = 0  # sources that are not brought up to date yet
        self.version = 0  # grows with every change
        self.connection = _open(config.state)
        rows = self.connection.execute("SELECT kind, path, signature FROM source WHERE gone_ns IS NULL")
        self._known: dict[tuple[str, str], int] = {(kind, path): signature for kind, path, signature in rows}

    def close(self) -> None:
        """Let go of the file."""
        with self.lock:
            self.connection.close()

    def forget(self) -> None:
        """Drop all rows; the next update reads every file again."""
        with self.lock, self.connection:
            for table in ("source", "entry", "mention", "member"):
                self.connection.execute(f"DELETE FROM {table}")
            self._known = {}
            self.version += 1

    def update(
        self,
        readings: Mapping[tuple[str, str], Reading],
        in_memory: Callable[[tuple[str, str]], Source | None] = lambda key: None,
    ) -> int:
        """Read what changed since the last time, forget what is long gone; how many sources were read."""
        now = {key: sign_files(reading) for key, reading in readings.items()}
        changed = [key for key, signature in now.items() if self._known.get(key) != signature]
        # By time: a job keeps the name of its first look, also when all is made anew.
        changed.sort(key=lambda key: max((file.mtime_ns for file in readings[key].files), default=0))
        self.num_waiting = len(changed)
        for begin in range(0, len(changed), _BATCH):
            part = changed[begin : begin + _BATCH]
            rows = [(key, now[key], _read(readings[key], in_memory(key))) for key in part]
            with self.lock, self.connection:
                for key, signature, entries in rows:
                    self._write(key, signature, entries)
                    self._known[key] = signature
                self.version += 1
            self.num_waiting -= len(part)
        self._note_gone([key for key in self._known if key not in now])
        return len(changed)

    def _write(self, key: tuple[str, str], signature: int, entries: Sequence[Entry]) -> None:
        run = self.connection.execute
        run(
            "INSERT INTO source (kind, path, signature) VALUES (?, ?, ?) "
            "ON CONFLICT (kind, path) DO UPDATE SET signature = excluded.signature, gone_ns = NULL",
            (*key, signature),
        )
        (source,) = run("SELECT id FROM source WHERE kind = ? AND path = ?", key).fetchone()
        self._delete_entries(source, keep_samples=_is_watch(key, entries), entries=entries)
        cluster = self._cluster_of(key[1])
        jobs: dict[str, str] = {}  # lasting names of this source's jobs
        for entry in entries:
            if entry.endpoints:
                name = jobs.get(entry.job) or self._find_job(cluster, entry, frozenset(jobs.values()))
                jobs[entry.job] = name
            else:
                name = entry.job
            self._insert(source, cluster, name, entry)

    def _insert(self, source: int, cluster: str, job: str, entry: Entry) -> None:
        words = " ".join((job, entry.key, entry.state, entry.text, *entry.hosts[:64])).lower()
        values = (
            source, entry.kind, cluster, job, entry.key, entry.at_ns, entry.until_ns, entry.state, entry.text,
            entry.step_s, entry.num_steps, entry.gpus, entry.lost_gpu_s, entry.restarts, entry.goodput,
            entry.num_findings, words,
        )  # fmt: skip
        done = self.connection.execute(f"INSERT INTO entry VALUES (NULL{', ?' * len(values)})", values)
        if entry.hosts:
            mentions = [(host, done.lastrowid) for host in entry.hosts if host]
            self.connection.executemany("INSERT OR IGNORE INTO mention VALUES (?, ?)", mentions)

    def _delete_entries(self, source: int, *, keep_samples: bool, entries: Sequence[Entry]) -> None:
        """Rows that a source said before; of a watch, rows of earlier looks at its jobs stay as its history."""
        since = min((e.until_ns for e in entries if e.kind == "look"), default=0) - int(self.config.sample_s * 1e9)
        kept = " AND NOT (kind = 'look' AND until_ns <= ?)" if keep_samples else " AND ? IS NOT NULL"
        found = f"SELECT id FROM entry WHERE source = ?{kept}"
        self.connection.execute(f"DELETE FROM mention WHERE entry IN ({found})", (source, since))
        self.connection.execute(f"DELETE FROM entry WHERE id IN ({found})", (source, since))

    def _find_job(self, cluster: str, entry: Entry, taken: frozenset[str]) -> str:
        """The lasting name of a job: that of the last look which shares half of its endpoints."""
        names = json.dumps(sorted(set(entry.endpoints)))
        found = self.connection.execute(
            "SELECT job, count(*) AS shared, "
            "  (SELECT count(*) FROM member AS own WHERE own.cluster = ?1 AND own.job = member.job) AS size "
            "FROM member WHERE cluster = ?1 AND endpoint IN (SELECT value FROM json_each(?2)) "
            "GROUP BY job ORDER BY shared DESC",
            (cluster, names),
        )
        larger = len(set(entry.endpoints))
        same = next((job for job, n, size in found if job not in taken and n >= _SAME_JOB * max(larger, size)), None)
        name = same or f"{entry.job}@{blake2b(names.encode(), digest_size=4).hexdigest()}"
        self.connection.execute("DELETE FROM member WHERE cluster = ? AND job = ?", (cluster, name))
        self.connection.execute(
            "INSERT OR REPLACE INTO member SELECT ?, value, ? FROM json_each(?)", (cluster, name, names)
        )
        return name

    def _cluster_of(self, path: str) -> str:
        first, slash, _ = path.partition("/")
        return first if self.config.clusters and slash else self.config.name

    def _note_gone(self, gone: list[tuple[str, str]]) -> None:
        """Rows of a file that is gone stay, as history, for as long as is asked for."""
        now = self.clock()
        oldest = now - int(self.config.keep_days * 86_400e9)
        with self.lock, self.connection:
            run = self.connection.execute
            for key in gone:
                run("UPDATE source SET gone_ns = ? WHERE kind = ? AND path = ?", (now, *key))
                del self._known[key]
            old = "SELECT id FROM entry WHERE until_ns < ?"
            run(f"DELETE FROM mention WHERE entry IN ({old})", (oldest,))
            dropped = run("DELETE FROM entry WHERE until_ns < ?", (oldest,)).rowcount
            run("DELETE FROM source WHERE gone_ns IS NOT NULL AND id NOT IN (SELECT source FROM entry)")
            self.version += bool(gone or dropped)


def sign_files(reading: Reading) -> int:
    """A number that is another when a file of a source was changed, replaced or added."""
    parts = (f"{file.path}\0{file.num_bytes}\0{file.mtime_ns}\0{file.inode}" for file in reading.files)
    digest = blake2b("\n".join(parts).encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def _is_watch(key: tuple[str, str], entries: Sequence[Entry]) -> bool:
    return key[0] == "state.json" and any(entry.kind == "look" for entry in entries)


def _read(reading: Reading, source: Source | None) -> list[Entry]:
    """The rows of a source; none where it cannot be read, which the pages say from the snapshot."""
    try:
        return list_entries(source if source is not None else reading.read())
    except PrismError:
        return []


def forget_index(state: Path) -> None:
    """Delete the index; what people wrote lies beside it and stays."""
    for name in ("", "-wal", "-shm"):
        (state / f"history.sqlite{name}").unlink(missing_ok=True)


def _open(state: Path | None) -> sqlite3.Connection:
    """The database, made anew where it is damaged or of another version."""
    if state is None:
        return _prepare(sqlite3.connect(":memory:", check_same_thread=False))
    path = state / "history.sqlite"
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
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")  # a lost second is read from the files again
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != _VERSION:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in tables:
            connection.execute(f"DROP TABLE {name}")
        connection.executescript(_TABLES)
        connection.execute(f"PRAGMA user_version = {_VERSION}")
    connection.execute("SELECT count(*) FROM source").fetchone()
    connection.create_aggregate("median", 1, _Median)  # type: ignore[arg-type]
    return connection


class _Median:
    """SQLite has none of its own."""

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
