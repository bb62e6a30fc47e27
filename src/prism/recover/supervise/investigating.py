"""Runs `prism investigate` on the folder of an attempt that failed or hung, in parallel to the restart."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from pathlib import Path

_TIMEOUT_S = 600.0


def start_investigation(folder: Path) -> threading.Thread:
    """Write investigation.json and .html into the attempt's folder; the restart does not wait for it."""
    command = [sys.executable, "-P", "-m", "prism", "investigate", str(folder), "--output", str(folder), "--quiet"]

    def run() -> None:
        # If this fails or is slow, the job must not be affected.
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                ["nice", "-n", "10", *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
                check=False,
            )

    thread = threading.Thread(target=run, daemon=True, name="investigate")
    thread.start()
    return thread
