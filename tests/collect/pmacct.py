"""Real daemons of pmacct, and one that replays a capture."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# pmacctd reads a capture this long after its start, whether its plugins have started by then or not; what it reads
# before they have is lost. A busy machine needs longer than an idle one.
WAITS_S = (2, 10, 60, 300)


@contextlib.contextmanager
def running(program: str, folder: Path, *config: str) -> Iterator[int]:
    """Run a daemon of pmacct with the lines of its configuration; the number of its session."""
    path = folder / f"{program}.conf"
    path.write_text("\n".join(("daemonize: false", *config)) + "\n")
    daemon = subprocess.Popen(
        [program, "-f", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield daemon.pid
    finally:
        os.killpg(daemon.pid, signal.SIGKILL)  # with its plugins, which SIGTERM may wait long for
        daemon.wait()


def replaying(folder: Path, capture: Path, wait_s: int, *config: str) -> contextlib.AbstractContextManager[int]:
    """Run pmacctd over a capture."""
    return running("pmacctd", folder, f"pcap_savefile: {capture}", f"pcap_savefile_wait: {wait_s}", *config)


def comes_true(is_so: Callable[[], bool], daemon: int, wait_s: int) -> bool:
    """Wait for what pmacctd should do, until it and its plugins have ended, or for as long as that may take."""
    end = time.monotonic() + 600 + 2 * wait_s
    while time.monotonic() < end and is_alive(daemon):
        if is_so():
            return True
        time.sleep(0.05)
    return any(is_so() for _ in range(50))  # what was sent last may still be on its way


def is_alive(session: int) -> bool:
    """Whether any process of a session has not ended."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended just now
            state, *_, own = path.read_text().rpartition(")")[2].split()[:4]
            if int(own) == session and state not in "ZX":
                return True
    return False
