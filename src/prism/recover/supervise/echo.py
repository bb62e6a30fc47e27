"""Writes what the command prints to the supervisor's standard output, as it would be without a supervisor."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol

_POLL_S = 0.2
_STALLED_S = 5.0  # a terminal or pipe that accepts nothing for so long must not delay the end


class Output(Protocol):
    """A byte stream. It should not buffer: what it holds back when its reader goes would fail at the program's end."""

    def write(self, data: bytes, /) -> int | None: ...


class Echo:
    """Copies what is added to the logs of a run's attempts, from now on; of several hosts line by line, with names."""

    def __init__(self, run_dir: Path, out: Output, say: Callable[[str], None] = lambda line: None) -> None:
        self._attempts, self._out, self._say = run_dir / "attempts", out, say
        self._num_written = 0
        self._read = {path: path.stat().st_size for path in self._attempts.glob("*/*.log")}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="prism-echo", daemon=True)

    def __enter__(self) -> Echo:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        written = -1
        while self._thread.is_alive() and written != self._num_written:
            written = self._num_written
            self._thread.join(_STALLED_S)

    def _follow(self) -> None:
        try:
            while not self._ended.wait(_POLL_S):
                self.copy()
            self.copy(to_end=True)
        except OSError as error:  # the terminal or pipe is gone, or the disk is full; the job goes on
            self._say(f"standard output cannot be written ({error.strerror}); see {self._attempts}/*/*.log")

    def copy(self, *, to_end: bool = False) -> None:
        """Show what is new; of several hosts only whole lines, unless the run has ended."""
        for folder in sorted(self._attempts.glob("*"))[-2:]:  # an attempt may still print while the next is prepared
            logs = sorted(folder.glob("*.log"))
            for path in logs:
                with path.open("rb") as log:
                    log.seek(self._read.get(path, 0))
                    new = log.read()
                if len(logs) > 1:
                    new = new if to_end else new[: new.rfind(b"\n") + 1]
                    lines = new.splitlines(keepends=True)
                    self._write(b"".join(path.stem.encode() + b"  " + line for line in lines))
                else:
                    self._write(new)
                self._read[path] = self._read.get(path, 0) + len(new)

    def _write(self, data: bytes) -> None:
        while data:
            written = self._out.write(data) or 0  # a signal can cut a write short
            self._num_written += written
            data = data[written:]
