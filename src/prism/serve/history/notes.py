"""What people write: annotations, and what they did with incidents, in a file that a rebuild does not touch."""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

_MOST_NOTES = 10_000
_MOST_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """A remark on a moment of a job, of a host, or of the whole cluster ("" for both)."""

    id: str
    at_ns: int
    text: str
    author: str = ""
    job: str = ""
    host: str = ""
    written_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What a person did with an incident: took it up, or closed it."""

    id: str
    incident: str
    what: Literal["acknowledged", "closed"]
    author: str = ""
    written_ns: int = 0


class Notes:
    """Appends lines and reads them back; the last line of an id counts, and a line with `deleted` ends it."""

    def __init__(self, state: Path | None, clock: Callable[[], int] = time.time_ns) -> None:
        self.path = None if state is None else state / "notes.jsonl"
        self.clock = clock
        self.version = 0
        self._lock = threading.Lock()
        self._lines: dict[str, dict[str, Any]] = {}
        self._offset = 0  # of the file, as far as it was read
        self.catch_up()

    def catch_up(self) -> int:
        """Read lines that this or another process added since; return the number of all lines."""
        with self._lock:
            for line in self._read():
                self._apply(line)
            return self.version

    def annotations(self, job: str = "", host: str = "") -> list[Annotation]:
        """Remarks, newest moment first; with a job or a host only theirs and those on everything."""
        found = [Annotation(**fields) for fields in self._all("annotation")]
        kept = [
            a for a in found if not (job or host) or a.job == job != "" or a.host == host != "" or not a.job + a.host
        ]
        return sorted(kept, key=lambda note: -note.at_ns)

    def acts(self) -> list[Act]:
        """What people did with incidents, in order."""
        return [Act(**fields) for fields in self._all("act")]

    def annotate(self, **fields: Any) -> Annotation:
        """Write a remark down."""
        note = Annotation(id=secrets.token_hex(8), written_ns=self.clock(), **fields)
        self._write({"note": "annotation", **asdict(note)})
        return note

    def act(self, incident: str, what: Literal["acknowledged", "closed"], author: str) -> Act:
        """Write down what a person did with an incident; who keeps the incidents reads it from here."""
        act = Act(id=secrets.token_hex(8), written_ns=self.clock(), incident=incident, what=what, author=author)
        self._write({"note": "act", **asdict(act)})
        return act

    def delete(self, id: str) -> bool:
        """End a remark; whether there was one."""
        self.catch_up()
        with self._lock:
            known = id in self._lines
        if known:
            self._write({"id": id, "deleted": True, "written_ns": self.clock()})
        return known

    def _all(self, kind: str) -> list[dict[str, Any]]:
        self.catch_up()
        with self._lock:
            lines = [line for line in self._lines.values() if line["note"] == kind]
        return [{name: value for name, value in line.items() if name != "note"} for line in lines]

    def _write(self, line: dict[str, Any]) -> None:
        with self._lock:
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                with os.fdopen(descriptor, "wb") as handle:
                    handle.write(json.dumps(line).encode() + b"\n")
                    handle.flush()
                    os.fsync(handle.fileno())
            else:
                self._apply(line)
        self.catch_up()

    def _apply(self, line: dict[str, Any]) -> None:
        self.version += 1
        if line.get("deleted"):
            self._lines.pop(line["id"], None)
        else:
            self._lines[line["id"]] = line
            while len(self._lines) > _MOST_NOTES:
                del self._lines[next(iter(self._lines))]

    def _read(self) -> list[dict[str, Any]]:
        """Complete lines that were not read yet, without those that are not ours or that a crash left incomplete."""
        if self.path is None or not self.path.exists() or self.path.stat().st_size <= self._offset:
            return []
        with self.path.open("rb") as handle:
            handle.seek(self._offset)
            fresh = handle.read(_MOST_BYTES)
        fresh = fresh[: fresh.rfind(b"\n") + 1]
        self._offset += len(fresh)
        found = []
        for text in fresh.splitlines():
            try:
                line = json.loads(text)
                shape = {"annotation": Annotation, "act": Act}.get(line.get("note"))
                if shape is not None:
                    shape(**{name: value for name, value in line.items() if name != "note"})
                if shape is not None or line.get("deleted"):
                    found.append(line)
            except (ValueError, TypeError, AttributeError, RecursionError):
                continue
        return found
