"""A journal of intended and completed submissions, so that a dispatcher that is killed submits no job twice."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from prism.errors import BadConfigError, BadFileError

State = Literal["intent", "placed", "void"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line: a job is to be submitted to a cluster, was accepted there, or was certainly not accepted."""

    mark: str
    state: State
    cluster: str
    job: str = ""
    at_s: float = 0.0
    why: str = ""


class DispatchJournal:
    """An append-only file of lines, owned by one dispatcher at a time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "placements.jsonl"
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise BadConfigError(
                f"{folder}: another dispatcher has this journal; stop it, or name another --state"
            ) from None
        self.entries: dict[str, Entry] = {}
        self._load()

    def __enter__(self) -> DispatchJournal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._file)

    def write(self, entry: Entry) -> None:
        """Returns when the line is on the disk."""
        line = json.dumps({name: getattr(entry, name) for name in Entry.__slots__})
        os.write(self._file, line.encode() + b"\n")
        os.fsync(self._file)
        self.entries[entry.mark] = entry

    def _load(self) -> None:
        text = self.path.read_bytes()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):  # nothing was done yet for a line that a crash cut off
            os.ftruncate(self._file, whole)
        for number, line in enumerate(text[:whole].splitlines(), 1):
            try:
                entry = Entry(**json.loads(line))
                if entry.state not in ("intent", "placed", "void"):
                    raise ValueError(entry.state)
            except (ValueError, TypeError) as error:
                raise BadFileError(
                    f"{self.path} line {number}: not a line of a dispatcher ({error!r:.60}); set the file aside"
                ) from None
            self.entries[entry.mark] = entry
