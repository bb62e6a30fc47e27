"""Where a watch learns what a scheduler says of jobs: a file that may be written anew, or the scheduler itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from prism.collect.schedulers import COMMANDS, ask_scheduler, read_scheduled
from prism.errors import InputError
from prism.records.scheduled import ScheduledJob


@dataclass(slots=True, kw_only=True)
class GivenSource:
    """Jobs as they were last listed; they are listed anew in a thread, so that receiving flows never waits."""

    name: str  # of a file or of a scheduler
    every_s: float = 15.0  # between two lists
    now: Callable[[], float] = time.monotonic
    notes: tuple[str, ...] = ()
    _jobs: Sequence[ScheduledJob] = ()
    _asked: Future[list[ScheduledJob]] | None = None
    _at: float = 0.0
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "jobs"), repr=False)

    def __post_init__(self) -> None:
        """The first list must be readable: a wrong name is said at once."""
        self._jobs, self._at = self._read()(), self.now()

    def list_jobs(self) -> Sequence[ScheduledJob]:
        """The latest list; where asking fails the one before it holds, and that is said."""
        if self._asked is not None and self._asked.done():
            try:
                self._jobs, self.notes = self._asked.result(), ()
            except InputError as error:
                self.notes = (f"{error}; the jobs that were listed before still count",)
            self._asked = None
        if self._asked is None and self.now() - self._at >= self.every_s:
            self._asked, self._at = self._pool.submit(self._read()), self.now()
        return self._jobs

    def close(self) -> None:
        """Ask no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _read(self) -> Callable[[], list[ScheduledJob]]:
        if self.name in COMMANDS:
            return partial(ask_scheduler, self.name)
        return partial(read_scheduled, Path(self.name))
