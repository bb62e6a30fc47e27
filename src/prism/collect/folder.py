"""A folder that flow files are dropped into: each is read once, when it is whole."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import polars as pl

from prism.collect.counts import SourceCounts
from prism.collect.flow_inputs import load_inputs
from prism.collect.tables import FlowOptions
from prism.errors import InputError
from prism.records import FLOWS
from prism.records.files import holds_records

_UNFINISHED = (".tmp", ".part", ".partial", ".current")
_LOOK_EVERY_S = 0.5
_MAX_NOTES = 20


class FolderSource:
    """Flow files in a folder, of any kind that `load_inputs` reads, in the order they were finished.

    A file counts as whole when its size and time stay the same between two looks half a second apart; hidden files
    and names that end in .tmp or .part (writers rename when done; nfcapd writes nfcapd.current) are left alone.
    """

    is_live = False  # files wait until they are read
    is_finished = False
    starts_over = False

    def __init__(
        self, folder: Path, position: dict[str, Any] | None = None, options: FlowOptions | None = None
    ) -> None:
        self.counts = SourceCounts()
        self._folder = folder
        self._options = options or FlowOptions(skip_bad_rows=True, samples=True)
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

    def save_position(self) -> dict[str, Any]:
        """The files already read that are still there."""
        return dict(self._read)

    def close(self) -> None:
        """Nothing is held."""

    def _next_whole(self) -> Path | None:
        now: dict[str, list[int]] = {}
        for path in self._folder.iterdir():
            if path.name.startswith(".") or path.name.endswith(_UNFINISHED) or ".current." in path.name:
                continue
            try:
                stat = path.stat()
            except OSError:
                continue  # taken away meanwhile
            now[path.name] = [stat.st_size, stat.st_mtime_ns]
        self._read = {name: mark for name, mark in self._read.items() if now.get(name) == mark}
        same = [n for n, mark in now.items() if self._seen.get(n) == mark and n not in self._read]
        self._seen = now
        for name in sorted(same, key=lambda n: (now[n][1], n)):
            if holds_records(self._folder / name):
                return self._folder / name
            self._pass_over(name)
        return None

    def _pass_over(self, name: str) -> None:
        """Say once of a file that it holds no flow records."""
        self._read[name] = self._seen[name]
        self.counts.dropped["files that hold no flow records"] += 1
        self._add_note(f"{self._folder / name}: neither its name nor its content is that of flow records; left out")

    def _add_note(self, line: str) -> None:
        if line not in self._notes:
            self._notes = [*self._notes, line][-_MAX_NOTES:]

    def _load(self, path: Path) -> pl.DataFrame:
        self._read[path.name] = self._seen[path.name]
        self.counts.received += 1
        self.counts.received_bytes += self._seen[path.name][0]
        try:
            found = load_inputs(path, self._options)
        except InputError as error:
            self.counts.malformed["files that cannot be read"] += 1
            self._add_note(str(error))
            return FLOWS.empty()
        for reason, num in found.report.skipped_rows.items():
            self.counts.dropped[f"rows: {reason}"] += num
        for line in found.report.notes:
            self._add_note(line)
        self.counts.flows += found.flows.height
        return found.flows
