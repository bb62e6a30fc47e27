"""The preemption warning: a signal that asks for one last checkpoint."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

from prism.recover.checkpoint.loaders import shield_workers


class PreemptionNotice:
    """Remembers that a signal arrived. SIGTERM is what Slurm, Kubernetes and cloud machines send first."""

    def __init__(self, signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGUSR1)) -> None:
        self.given = False
        self._previous: dict[signal.Signals, Any] = {}
        shield_workers()
        try:
            self._previous = {number: signal.signal(number, self._note) for number in signals}
        except ValueError:
            return  # signals can be handled only in the main thread

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.given = True

    def close(self) -> None:
        """Restore the earlier handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
