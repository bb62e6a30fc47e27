"""What a checkpointer reports: to the supervisor, and in the trainer's log."""

from __future__ import annotations

import logging

from prism.recover.checkpoint.uploads import Written
from prism.recover.checkpoint.writer import shorten
from prism.recover.manifest import Health
from prism.recover.progress import Progress

_log = logging.getLogger("prism.recover")


class Reports:
    """Results of saves, and once each what works in a lesser way than configured."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._told: set[str] = set()

    def tell_written(self, written: Written) -> None:
        """Report that a checkpoint is committed, or why not."""
        if written.error is not None:
            self._progress.event("save_failed", step=written.step, why=written.error)
            return
        health = written.health or Health()
        found = {"healthy": health.good, "doubtful": health.doubtful, "worst": health.worst}
        self._progress.event("saved", step=written.step, **found, seconds=round(written.seconds, 3))

    def tell_skipped(self, step: int, error: Exception) -> str:
        """Report that a save is left out; returns why."""
        why = shorten(error)
        _log.warning("no checkpoint of step %s: %s", step, why)
        self._progress.event("save_failed", step=step, why=why)
        return why

    def tell_once(self, what: str) -> None:
        """Report that checkpoints work in a lesser way."""
        if what not in self._told:
            self._told.add(what)
            _log.warning("%s", what)
            self._progress.event("degraded", why=what)
