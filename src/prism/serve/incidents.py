"""The incidents of a service: kept by one process, read by its workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from prism.incidents import AlertConfig, IncidentReader
from prism.incidents.desk import IncidentDesk
from prism.incidents.events import Acknowledged, Closed, Event
from prism.incidents.incident import Incident
from prism.incidents.telling import QUEUE_FILE, post_test
from prism.machine.sender import Delivery, read_deliveries
from prism.serve.history.notes import Notes
from prism.serve.snapshot import Snapshot
from prism.serve.witnesses import Witnesses


class Incidents(Protocol):
    """What the pages read."""

    config: AlertConfig

    @property
    def version(self) -> int:
        """Grows with every change."""

    @property
    def trouble(self) -> str:
        """Why incidents or messages are kept in memory only; "" while they are on disk."""

    def list(self) -> list[Incident]:
        """Every incident."""

    def deliveries(self) -> dict[str, Delivery]:
        """How it stands with each channel."""

    def test(self, name: str) -> Delivery | None:
        """Send a test message to a channel; None where there is none of that name."""


class KeptIncidents:
    """Those of the process that follows the folder: the only one that decides and tells."""

    def __init__(self, config: AlertConfig, state: Path | None, clock: Callable[[], int] = time.time_ns) -> None:
        self.config, self.clock = config, clock
        self.desk = IncidentDesk(state, config, clock)
        self._witnesses = Witnesses()
        self._num_acts = -1

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self.desk.version

    @property
    def trouble(self) -> str:
        """Why incidents or messages are kept in memory only."""
        return self.desk.store.trouble or self.desk.teller.sender.trouble

    def tend(self, snapshot: Snapshot, notes: Notes) -> None:
        """One round: what the folder shows now, what people did since, what time does."""
        self.desk.take(self._witnesses.compare(snapshot, self.clock()))
        if notes.catch_up() != self._num_acts:
            self._num_acts = notes.version
            self.desk.take(self._list_acts(notes))
        self.desk.tick()

    def list(self) -> list[Incident]:
        """Every incident."""
        return self.desk.list()

    def deliveries(self) -> dict[str, Delivery]:
        """How it stands with each channel."""
        return {channel.name: self.desk.teller.sender.delivery(channel.name) for channel in self.config.channels}

    def test(self, name: str) -> Delivery | None:
        """Send a test message to a channel."""
        return self.desk.teller.test(name)

    def close(self) -> None:
        """Send what is queued, as far as receivers take it in a moment."""
        self.desk.close()

    def _list_acts(self, notes: Notes) -> Iterator[Event]:
        known = {one.id: one for one in self.desk.list()}
        for act in notes.acts():
            found = known.get(act.incident)
            done = found is None or any(change.at_ns == act.written_ns for change in found.history)
            if not done:
                event = Acknowledged if act.what == "acknowledged" else Closed
                yield event(now_ns=act.written_ns, id=act.incident, who=act.author)


class FollowedIncidents:
    """Those that another process keeps; this one shows them."""

    def __init__(self, config: AlertConfig, state: Path) -> None:
        self.config, self._state = config, state
        self._reader = IncidentReader(state)

    @property
    def version(self) -> int:
        """Grows with every change."""
        self._reader.load()
        return self._reader.version

    @property
    def trouble(self) -> str:
        """Not known here."""
        return ""

    def list(self) -> list[Incident]:
        """Every incident."""
        return self._reader.load()

    def deliveries(self) -> dict[str, Delivery]:
        """How it stands with each channel."""
        known = read_deliveries(self._state / QUEUE_FILE)
        return {channel.name: known.get(channel.name, Delivery()) for channel in self.config.channels}

    def test(self, name: str) -> Delivery | None:
        """Send a test message to a channel."""
        return post_test(self.config, name, time.time())
