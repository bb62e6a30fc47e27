"""What the command prints, shown in the supervisor's own terminal as it would be without a supervisor."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

_POLL_S = 0.2
_LAST_S = 5.0  # a terminal that takes nothing must not hold up the end


class Echo:
    """Copies what is added to the logs of a run's attempts, from now on; of several hosts line by line, with names."""

    def __init__(self, run_dir: Path, out: BinaryIO) -> None:
        self._attempts, self._out = run_dir / "attempts", out
        self._read = {path: path.stat().st_size for path in self._attempts.glob("*/*.log")}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="prism-echo", daemon=True)

    def __enter__(self) -> Echo:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join(_LAST_S)

    def _follow(self) -> None:
        try:
            while not self._ended.wait(_POLL_S):
                self.copy()
            self.copy(to_end=True)
        except (OSError, ValueError):
            return  # the terminal is gone; the job has nothing to do with that

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
                    self._out.write(b"".join(path.stem.encode() + b"  " + line for line in lines))
                else:
                    self._out.write(new)
                self._read[path] = self._read.get(path, 0) + len(new)
        self._out.flush()
