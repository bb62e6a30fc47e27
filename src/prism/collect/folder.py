"""A folder that flow files are dropped into: each is read once, when it is whole."""

from __future__ import annotations

import time
from pathlib import Path

import polars as pl

from prism.collect.counts import SourceCounts
from prism.errors import InputError
from prism.records import FLOWS, FlowOptions, load_flows

_ENDINGS = (".parquet", ".pq")
_LOOK_EVERY_S = 0.5
_MAX_NOTES = 20


class FolderSource:
    """Parquet files in a folder, in the order they were finished.

    A file counts as whole when its size and time stay the same between two looks half a second apart; hidden files
    and names that do not end in .parquet (writers rename from .tmp when done) are left alone.
    """

    is_live = False  # files wait until they are read
    is_finished = False

    def __init__(self, folder: Path, position: dict[str, list[int]] | None = None) -> None:
        self.counts = SourceCounts()
        self._folder = folder
        self._read: dict[str, list[int]] = dict(position or {})  # name -> size, time of change
        self._seen: dict[str, list[int]] = {}
        self._notes: list[str] = []

    @property
    def notes(self) -> tuple[str, ...]:
        """Files that could not be read, the latest."""
        return tuple(self._notes)

    def poll(self, timeout_s: float) -> pl.DataFrame:
        """FLOWS of one file that has become whole."""
        ready = self._next_whole()
        if ready is None:
            time.sleep(min(timeout_s, _LOOK_EVERY_S))
            ready = self._next_whole()
        return FLOWS.empty() if ready is None else self._load(ready)

    def save_position(self) -> dict[str, list[int]]:
        """The files already read that are still there."""
        return dict(self._read)

    def close(self) -> None:
        """Nothing is held."""

    def _next_whole(self) -> Path | None:
        now: dict[str, list[int]] = {}
        for path in self._folder.iterdir():
            if path.name.startswith(".") or not path.name.endswith(_ENDINGS):
                continue
            try:
                stat = path.stat()
            except OSError:
                continue  # taken away meanwhile
            now[path.name] = [stat.st_size, stat.st_mtime_ns]
        self._read = {name: mark for name, mark in self._read.items() if now.get(name) == mark}
        same = [n for n, mark in now.items() if self._seen.get(n) == mark and n not in self._read]
        self._seen = now
        if not same:
            return None
        return self._folder / min(same, key=lambda n: (now[n][1], n))

    def _load(self, path: Path) -> pl.DataFrame:
        self._read[path.name] = self._seen[path.name]
        self.counts.received += 1
        self.counts.received_bytes += self._seen[path.name][0]
        try:
            found = load_flows(path, FlowOptions(skip_bad_rows=True))
        except InputError as error:
            self.counts.malformed["files that cannot be read"] += 1
            self._notes = [*self._notes, str(error)][-_MAX_NOTES:]
            return FLOWS.empty()
        for reason, num in found.report.skipped_rows.items():
            self.counts.dropped[f"rows: {reason}"] += num
        self.counts.flows += found.flows.height
        return found.flows
