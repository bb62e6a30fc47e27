"""The periodic work while a folder is served: listing it, the index, incidents."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

from prism.incidents import AlertConfig
from prism.serve.history.index import HistoryConfig, HistoryIndex
from prism.serve.history.notes import Notes
from prism.serve.incidents import KeptIncidents
from prism.serve.library import Library
from prism.serve.recognise import Key, Reading

_FEW = 200  # sources that are indexed before the first answer
_LOOK_SHARE = 10.0  # listing the folder takes at most one part in so many of a core

log = logging.getLogger("prism.serve")


@dataclass(slots=True)
class Upkeep:
    """Keeps everything up to date, in one process even if several processes answer."""

    library: Library
    index: HistoryIndex
    notes: Notes
    incidents: KeptIncidents
    every_s: float
    _indexed: Mapping[Key, Reading] | None = field(default=None)

    @classmethod
    def begin(cls, library: Library, history: HistoryConfig, alerts: AlertConfig, every_s: float) -> Upkeep:
        """List the folder once and index a few sources, so that the first answers have a history."""
        library.refresh()
        index = HistoryIndex(replace(history, name=history.name or library.folder.root.name))
        upkeep = cls(library, index, Notes(history.state), KeptIncidents(alerts, history.state), every_s)
        if len(library.readings) <= _FEW:
            upkeep.bring_up_to_date()
        upkeep.tend()
        return upkeep

    def bring_up_to_date(self) -> None:
        """Index what changed."""
        readings = self.library.readings
        if self._indexed is not readings:
            self.index.update(readings, self.library.load)
            self._indexed = readings

    def tend(self) -> None:
        """Bring the incidents up to date, and tell people."""
        self.incidents.tend(self.library.snapshot, self.notes)

    def start(self, look: Callable[[], object] | None = None) -> list[asyncio.Task[NoReturn]]:
        """The tasks that go on until they are cancelled."""
        works = [(look or self.library.refresh, "looking at the folder"), (self.bring_up_to_date, "the index")]
        works.append((self.tend, "incidents"))
        return [asyncio.create_task(repeat(work, self.every_s, what)) for work, what in works]


async def repeat(work: Callable[[], object], every_s: float, what: str) -> NoReturn:
    """Repeat a task; one that takes much processor time is repeated less often."""
    while True:
        used_s = 0.0
        try:
            used_s = await asyncio.to_thread(_measure, work)
        except Exception:  # The outermost loop: one failure must not end the service.
            log.exception("%s went wrong; trying again", what)
        await asyncio.sleep(max(every_s, _LOOK_SHARE * used_s))


def _measure(work: Callable[[], object]) -> float:
    """Run it and return its processor time; on a busy machine the wall-clock time does not measure the work."""
    start = time.thread_time()
    work()
    return time.thread_time() - start
