"""Threads that call torch are waited for before the interpreter ends.

Python ends a daemon thread when it asks for the interpreter's lock after the end has begun. A thread that comes back
from a torch call asks for it inside C++ code that may not be left like that, and the whole process aborts with
"terminate called without an active exception".
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from typing import Any

_EXIT_WAIT_S = 30.0
_RUNNING: weakref.WeakSet[TorchThread] = weakref.WeakSet()  # of this process; forked ones have none of them


class TorchThread(threading.Thread):
    """A thread that may finish its work at the end of the program; `stop` tells it to finish."""

    def __init__(
        self, name: str, target: Callable[..., None], *args: Any, stop: Callable[[], None] | None = None
    ) -> None:
        super().__init__(name=name, target=target, args=args, daemon=True)
        self.stop = stop

    def start(self) -> None:
        """Start it, and register it to be waited for."""
        if not _RUNNING:
            atexit.register(_finish)
        _RUNNING.add(self)
        super().start()


def _finish() -> None:
    waited: set[TorchThread] = set()
    # A copy to host memory hands its state to a writer, which may only start then: writers are told to stop last.
    while alive := [one for one in list(_RUNNING) if one.is_alive() and one not in waited]:
        thread = min(alive, key=lambda one: one.stop is not None)
        if thread.stop is not None:
            thread.stop()
        thread.join(_EXIT_WAIT_S)
        waited.add(thread)
