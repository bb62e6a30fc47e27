"""The desk: takes events in, writes down what changed, and only then tells people."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from time import time_ns

from prism.incidents.book import BookConfig, IncidentBook, pending
from prism.incidents.channels import AlertConfig
from prism.incidents.events import Event, Handed, Keep, Tell, Tick
from prism.incidents.incident import Incident
from prism.incidents.store import IncidentStore
from prism.incidents.telling import Teller


class IncidentDesk:
    """One for each state folder: the only writer of its incidents."""

    def __init__(
        self, state: Path | None, alerts: AlertConfig | None = None, clock: Callable[[], int] = time_ns
    ) -> None:
        alerts = alerts or AlertConfig()
        self.clock, self.version = clock, 0
        self.store = IncidentStore(state)
        self.teller = Teller(alerts, state, lambda: clock() / 1e9)
        self.book = IncidentBook(config=BookConfig(least_lost_gpu_s=alerts.least_lost_gpu_s))
        self._gate = threading.RLock()
        self.book.restore(self.store.load())
        self._tell(pending(self.book.incidents.values()))  # what an earlier process had decided

    def take(self, events: Iterable[Event]) -> None:
        """Decide, write the decisions down, tell."""
        with self._gate:
            for event in events:
                actions = self.book.handle(event)
                kept = [action.incident for action in actions if isinstance(action, Keep)]
                if kept:
                    self.version += 1
                    self.store.save(kept)
                self._tell(action for action in actions if isinstance(action, Tell))

    def tick(self) -> None:
        """Let time pass: what is old expires, what is open is repeated, what a full disk held up is written."""
        with self._gate:
            self.take([Tick(now_ns=self.clock())])
            if self.store.trouble:
                self.store.save(())
            self.teller.keep_up(self.book.open())

    def list(self) -> list[Incident]:
        """Every incident."""
        with self._gate:
            return list(self.book.incidents.values())

    def close(self) -> None:
        """Send what is queued, as far as receivers take it in a moment."""
        self.teller.sender.close(2.0)
        self.store.close()

    def _tell(self, tells: Iterable[Tell]) -> None:
        told: dict[str, None] = {}
        for tell in tells:
            self.teller.tell(tell)
            told[tell.incident.id] = None
        for id in told:
            actions = self.book.handle(Handed(now_ns=self.clock(), id=id))
            self.store.save(action.incident for action in actions if isinstance(action, Keep))
