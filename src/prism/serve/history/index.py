"""The index: rows of every source in SQLite, updated file by file; it can be rebuilt at any time."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import cast

from prism.errors import PrismError
from prism.serve.history.database import open_database
from prism.serve.history.entries import Entry, list_entries
from prism.serve.recognise import Key, Reading
from prism.serve.snapshot import Source

_STORED = (
    "key", "at_ns", "until_ns", "state", "text", "step_s", "num_steps", "gpus", "lost_gpu_s", "restarts", "goodput",
    "num_findings",
)  # fields of an entry, in the order of the columns between `job` and `words`  # fmt: skip
_SAME_JOB = 0.5  # share of the larger set of endpoints, as on the other pages
_BATCH = 500  # sources written in one transaction
_CLEAN_NS = 600 * 10**9  # between checks for rows past their retention


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryConfig:
    """Where the index lies and how long it remembers."""

    state: Path | None = (
        None  # a folder for the index, incidents and what people write; None: in memory, nothing is kept
    )
    keep_days: float = 400.0
    clusters: bool = False  # whether each folder at the top of the served one is a cluster of that name
    name: str = ""  # the name of the only cluster, if they are not
    sample_s: float = 600.0  # a watch overwrites its file; its rows stay if they are at least this far apart


@dataclass(slots=True)
class _Rows:
    """Rows that are written together."""

    sources: list[tuple[int, str, str, int]] = field(default_factory=list)
    entries: list[tuple[object, ...]] = field(default_factory=list)
    mentions: list[tuple[str, int]] = field(default_factory=list)


class HistoryIndex:
    """One writer and many readers share one connection under a lock, each for milliseconds."""

    def __init__(self, config: HistoryConfig, clock: Callable[[], int] = time.time_ns) -> None:
        self.config, self.clock = config, clock
        self.lock = threading.Lock()
        self.num_waiting = 0
        self.version = 0
        self.connection = open_database(config.state)
        self._seen: Mapping[Key, Reading] | None = None  # of the last update
        self._cleaned_ns: int | None = None
        run = self.connection.execute
        (self._last_source,) = run("SELECT coalesce(max(id), 0) FROM source").fetchone()
        (self._last_entry,) = run("SELECT coalesce(max(id), 0) FROM entry").fetchone()

    def close(self) -> None:
        """Let go of the file."""
        with self.lock:
            self.connection.close()

    def update(self, readings: Mapping[Key, Reading], load: Callable[[Reading], Source]) -> int:
        """Read what changed, and drop rows past their retention; return how many sources were read."""
        changed = self._find_changed(readings)
        # In order of time, so that a job keeps the name of its first look after a rebuild, too.
        changed.sort(key=lambda reading: reading.changed_ns)
        self.num_waiting = len(changed)
        for begin in range(0, len(changed), _BATCH):
            part = changed[begin : begin + _BATCH]
            read = [(reading, _read(reading, load)) for reading in part]
            with self.lock, self.connection:
                rows = _Rows()
                for reading, entries in read:
                    self._write(reading, entries, rows)
                self._insert(rows)
                self.version += 1
            self.num_waiting -= len(part)
        self._note_gone(self._find_gone(readings))
        self._seen = readings
        return len(changed)

    def _find_changed(self, readings: Mapping[Key, Reading]) -> list[Reading]:
        """Readings whose files changed since they were indexed, by the signatures in the database."""
        seen = self._seen or {}
        changed = []
        with self.lock:
            for key, reading in readings.items():
                if seen.get(key) is not reading:
                    known = self._find_source(key)
                    if known is None or known[1] != sign_files(reading):
                        changed.append(reading)
        return changed

    def _find_source(self, key: Key) -> tuple[int, int | None] | None:
        """The number of a source and the signature of its files; no signature if they were gone."""
        asked = "SELECT id, CASE WHEN gone_ns IS NULL THEN signature END FROM source WHERE kind = ? AND path = ?"
        return cast(tuple[int, int | None] | None, self.connection.execute(asked, key).fetchone())

    def _find_gone(self, readings: Mapping[Key, Reading]) -> list[Key]:
        if self._seen is not None:
            return [key for key in self._seen if key not in readings]
        with self.lock:
            rows = self.connection.execute("SELECT kind, path FROM source WHERE gone_ns IS NULL")
            return [key for key in rows if key not in readings]

    def _write(self, reading: Reading, entries: Sequence[Entry], rows: _Rows) -> None:
        key = reading.key
        found = self._find_source(key)
        source = found[0] if found is not None else self._last_source + 1
        self._last_source = max(self._last_source, source)
        if found is not None:
            self._delete_entries(source, keep_samples=reading.reader == "watched", entries=entries)
        rows.sources.append((source, *key, sign_files(reading)))
        cluster = self._cluster_of(key[1])
        jobs: dict[str, str] = {}  # lasting names of this source's jobs
        for entry in entries:
            name = entry.job
            if entry.endpoints:
                name = jobs.get(entry.job) or self._find_job(cluster, entry, frozenset(jobs.values()))
                jobs[entry.job] = name
            self._add(rows, source, (cluster, name), entry)

    def _add(self, rows: _Rows, source: int, job: tuple[str, str], entry: Entry) -> None:
        """Queue one entry of a job of a cluster for insertion."""
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
        """Delete the earlier rows of a source; a watch keeps the rows of earlier looks as its history."""
        newest = min((e.until_ns for e in entries if e.kind == "look"), default=1 << 62)  # none: the file is broken now
        since = newest - int(self.config.sample_s * 1e9)
        kept = " AND NOT (kind = 'look' AND until_ns <= ?)" if keep_samples else " AND ? IS NOT NULL"
        found = f"SELECT id FROM entry WHERE source = ?{kept}"
        self.connection.execute(f"DELETE FROM mention WHERE entry IN ({found})", (source, since))
        self.connection.execute(f"DELETE FROM entry WHERE id IN ({found})", (source, since))

    def _find_job(self, cluster: str, entry: Entry, taken: frozenset[str]) -> str:
        """The lasting name of a job: the name of the last look that shares half of its endpoints."""
        names = json.dumps(sorted(set(entry.endpoints)))
        found = self.connection.execute(
            "SELECT job, count(*) AS shared, "
            "  (SELECT count(*) FROM member AS own WHERE own.cluster = :cluster AND own.job = member.job) AS size "
            "FROM member WHERE cluster = :cluster AND endpoint IN (SELECT value FROM json_each(:names)) "
            "GROUP BY job ORDER BY shared DESC",
            {"cluster": cluster, "names": names},
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

    def _note_gone(self, gone: list[Key]) -> None:
        """Mark the sources of files that are gone; their rows stay until their retention ends."""
        now = self.clock()
        if not gone and self._cleaned_ns is not None and 0 <= now - self._cleaned_ns < _CLEAN_NS:
            return
        self._cleaned_ns = now
        oldest = now - int(self.config.keep_days * 86_400e9)
        with self.lock, self.connection:
            run = self.connection.execute
            for key in gone:
                run("UPDATE source SET gone_ns = ? WHERE kind = ? AND path = ?", (now, *key))
            old = "SELECT id FROM entry WHERE until_ns < ?"
            run(f"DELETE FROM mention WHERE entry IN ({old})", (oldest,))
            dropped = run("DELETE FROM entry WHERE until_ns < ?", (oldest,)).rowcount
            run("DELETE FROM source WHERE gone_ns IS NOT NULL AND id NOT IN (SELECT source FROM entry)")
            self.version += bool(gone or dropped)


def sign_files(reading: Reading) -> int:
    """A number that changes when a file of a source is changed, replaced or added."""
    parts = (f"{file.path}\0{file.num_bytes}\0{file.mtime_ns}\0{file.inode}" for file in reading.files)
    digest = blake2b("\n".join(parts).encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def _read(reading: Reading, load: Callable[[Reading], Source]) -> list[Entry]:
    """The rows of a source; none if it cannot be read, which the snapshot reports."""
    try:
        return list_entries(load(reading))
    except PrismError:
        return []
