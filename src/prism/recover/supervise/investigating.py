"""Runs `prism investigate` on the folders of attempts that failed or hung, beside the restart."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

_TIMEOUT_S = 300.0
_LAST_WAIT_S = 60.0  # at the end of a run that failed, for the folder of its last attempt


class Investigations:
    """One at a time, each with a limit; none outlives the supervisor."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._deadline = 0.0

    def start(self, folder: Path) -> bool:
        """Write investigation.json and .html into a folder; False if another one is still at work."""
        if self._process is not None and self._process.poll() is None:
            if time.monotonic() < self._deadline:
                return False
            self._end()
        command = [sys.executable, "-P", "-m", "prism", "investigate", str(folder), "--output", str(folder), "--quiet"]
        quiet = subprocess.DEVNULL
        with contextlib.suppress(OSError):  # the job must not be affected
            self._process = subprocess.Popen(["nice", "-n", "10", *command], stdin=quiet, stdout=quiet, stderr=quiet)
            self._deadline = time.monotonic() + _TIMEOUT_S
        return True

    def close(self, *, wait: bool) -> None:
        """End what is at work; with `wait`, after a limited time."""
        if self._process is not None and wait:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LAST_WAIT_S)
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
