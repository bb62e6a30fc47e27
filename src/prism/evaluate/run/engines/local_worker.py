"""The process of a local worker: takes jobs from its socket until that closes."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from prism.evaluate.run.engines.engine import run_job
from prism.evaluate.run.worker_context import WorkerContext

_PR_SET_PDEATHSIG = 1


def main(descriptor: int) -> None:
    """Serve one coordinator."""
    # When the coordinator is killed this process must not compute on; it gives back what it leases first.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, _leave)
    place = WorkerContext()
    line: Connection[Any, Any] = Connection(descriptor)
    try:
        with contextlib.suppress(EOFError, OSError):
            while True:
                line.send(run_job(line.recv(), place))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        place.close()


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
