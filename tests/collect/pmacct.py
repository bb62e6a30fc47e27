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
def running(program: str, folder: Path, *config: str) -> Iterator[None]:
    """Run a daemon of pmacct with the lines of its configuration."""
    path = folder / f"{program}.conf"
    path.write_text("\n".join(("daemonize: false", *config)) + "\n")
    daemon = subprocess.Popen(
        [program, "-f", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield
    finally:
        os.killpg(daemon.pid, signal.SIGKILL)  # with its plugins, which SIGTERM may wait long for
        daemon.wait()


def replaying(folder: Path, capture: Path, wait_s: int, *config: str) -> contextlib.AbstractContextManager[None]:
    """Run pmacctd over a capture."""
    return running("pmacctd", folder, f"pcap_savefile: {capture}", f"pcap_savefile_wait: {wait_s}", *config)


def comes_true(is_so: Callable[[], bool], wait_s: int) -> bool:
    """Wait for what pmacctd should do, for as long as it may take where its plugins had time enough to start."""
    end = time.monotonic() + 600 + 2 * wait_s
    while time.monotonic() < end:
        if is_so():
            return True
        time.sleep(0.05)
    return is_so()
