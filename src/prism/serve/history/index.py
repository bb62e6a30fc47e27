"""The index: rows of every source in SQLite, brought up to date file by file, and made anew at any time."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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
_STORED = (
    "key", "at_ns", "until_ns", "state", "text", "step_s", "num_steps", "gpus", "lost_gpu_s", "restarts", "goodput",
    "num_findings",
)  # fields of an entry, in the order of the columns between `job` and `words`  # fmt: skip
_SAME_JOB = 0.5  # share of the larger set of endpoints, as on the other pages
_BATCH = 500  # sources written in one transaction
_CLEAN_NS = 600 * 10**9  # between looks for rows that are older than is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryConfig:
    """Where the index lies and how long it remembers."""

    state: Path | None = None  # a folder for the index, annotations and silences; None: in memory, nothing is kept
    keep_days: float = 400.0
    clusters: bool = False  # whether each folder at the top of the served one is a cluster of that name
    name: str = ""  # of the one cluster, where they are not
    sample_s: float = 600.0  # rows of a watch, which overwrites its file, stay when they are this far apart


@dataclass(slots=True)
class _Rows:
    """Rows that are written together."""

    sources: list[tuple[int, str, str, int]] = field(default_factory=list)
    entries: list[tuple[object, ...]] = field(default_factory=list)
    mentions: list[tuple[str, int]] = field(default_factory=list)


class HistoryIndex:
    """One writer, many readers, one connection behind a lock: each holds it for milliseconds."""

    def __init__(self, config: HistoryConfig, clock: Callable[[], int] = time.time_ns) -> None:
        self.config, self.clock = config, clock
        self.lock = threading.Lock()
        self.num_waiting = 0  # sources that are not brought up to date yet
        self.version = 0  # grows with every change
        self.connection = _open(config.state)
        self._seen: Mapping[tuple[str, str], Reading] = {}  # of the last update
        self._cleaned_ns: int | None = None
        run = self.connection.execute
        rows = run("SELECT kind, path, signature, id FROM source WHERE gone_ns IS NULL")
        self._known: dict[tuple[str, str], int] = {}  # signatures of the sources whose files are there
        self._ids: dict[tuple[str, str], int] = {}
        for kind, path, signature, number in rows:
            self._known[kind, path], self._ids[kind, path] = signature, number
        (self._last_source,) = run("SELECT coalesce(max(id), 0) FROM source").fetchone()
        (self._last_entry,) = run("SELECT coalesce(max(id), 0) FROM entry").fetchone()

    def close(self) -> None:
        """Let go of the file."""
        with self.lock:
            self.connection.close()

    def forget(self) -> None:
        """Drop all rows; the next update reads every file again."""
        with self.lock, self.connection:
            for table in ("source", "entry", "mention", "member"):
                self.connection.execute(f"DELETE FROM {table}")
            self._known, self._ids, self._seen = {}, {}, {}
            self.version += 1

    def update(
        self,
        readings: Mapping[tuple[str, str], Reading],
        in_memory: Callable[[tuple[str, str]], Source | None] = lambda key: None,
    ) -> int:
        """Read what changed since the last time, forget what is long gone; how many sources were read."""
        looked_at = {key: sign_files(r) for key, r in readings.items() if self._seen.get(key) is not r}
        changed = [key for key, signature in looked_at.items() if self._known.get(key) != signature]
        # By time: a job keeps the name of its first look, also when all is made anew.
        changed.sort(key=lambda key: readings[key].changed_ns)
        self.num_waiting = len(changed)
        for begin in range(0, len(changed), _BATCH):
            part = changed[begin : begin + _BATCH]
            read = [(key, _read(readings[key], in_memory(key))) for key in part]
            with self.lock, self.connection:
                rows = _Rows()
                for key, entries in read:
                    self._write(key, looked_at[key], entries, rows)
                self._insert(rows)
                self._known.update((key, looked_at[key]) for key in part)
                self.version += 1
            self.num_waiting -= len(part)
        self._seen = readings
        self._note_gone([key for key in self._known if key not in readings])
        return len(changed)

    def _write(self, key: tuple[str, str], signature: int, entries: Sequence[Entry], rows: _Rows) -> None:
        source = self._ids.get(key)
        if source is None:
            found = self.connection.execute("SELECT id FROM source WHERE kind = ? AND path = ?", key).fetchone()
            source = self._ids[key] = found[0] if found else self._last_source + 1
            self._last_source = max(self._last_source, source)
            is_new = found is None
        else:
            is_new = False
        if not is_new:
            self._delete_entries(source, keep_samples=_is_watch(key, entries), entries=entries)
        rows.sources.append((source, *key, signature))
        cluster = self._cluster_of(key[1])
        jobs: dict[str, str] = {}  # lasting names of this source's jobs
        for entry in entries:
            name = entry.job
            if entry.endpoints:
                name = jobs.get(entry.job) or self._find_job(cluster, entry, frozenset(jobs.values()))
                jobs[entry.job] = name
            self._add(rows, source, (cluster, name), entry)

    def _add(self, rows: _Rows, source: int, job: tuple[str, str], entry: Entry) -> None:
        """Note one entry, of a job of a cluster, to be inserted."""
        self._last_entry += 1
        hosts = dict.fromkeys(filter(None, entry.hosts))
        words = " ".join((job[1], entry.key, entry.state, entry.text, *entry.hosts[:64])).lower()
        rows.entries.append(
            (self._last_entry, source, entry.kind, *job, *(getattr(entry, name) for name in _STORED), words)
        )
        rows.mentions += [(host, self._last_entry) for host in hosts]

    def _insert(self, rows: _Rows) -> None:
        many = self.connection.executemany
        many(
            "INSERT INTO source (id, kind, path, signature) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (kind, path) DO UPDATE SET signature = excluded.signature, gone_ns = NULL",
            rows.sources,
        )
        many(f"INSERT INTO entry VALUES ({', '.join('?' * (len(_STORED) + 6))})", rows.entries)
        many("INSERT INTO mention VALUES (?, ?)", rows.mentions)

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
        if not gone and self._cleaned_ns is not None and 0 <= now - self._cleaned_ns < _CLEAN_NS:
            return
        self._cleaned_ns = now
        oldest = now - int(self.config.keep_days * 86_400e9)
        with self.lock, self.connection:
            run = self.connection.execute
            for key in gone:
                run("UPDATE source SET gone_ns = ? WHERE kind = ? AND path = ?", (now, *key))
                del self._known[key], self._ids[key]
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
        # Read once: a hundred thousand runs that are remembered to be read on from where they were would fill memory.
        return list_entries(source if source is not None else reading.read_once())
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
