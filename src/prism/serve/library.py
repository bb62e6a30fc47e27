"""Everything found in the served folder, read again when its files change."""

from __future__ import annotations

import heapq
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass

from prism.errors import PrismError
from prism.serve.folder import Folder, FoundFile, Look
from prism.serve.recognise import Key, Reading, Recognised, Recogniser, owner_of
from prism.serve.snapshot import FileState, Problem, Snapshot, Source
from prism.serve.sources.evaluated import Evaluated
from prism.serve.sources.supervised import Supervised, is_supervised
from prism.serve.sources.watched import Watched, is_watching

_INVESTIGATION_FILE = "investigation.json"  # as `prism investigate` calls it
_MOST_OPENED = 8
Known = tuple[tuple[FoundFile, ...], Source | Problem]  # the files when they were read; empty: read again


@dataclass(frozen=True, slots=True, kw_only=True)
class LookConfig:
    """When a source counts as stale, and how long a missing one is named."""

    stale_s: float = 300.0  # without a write, for a source that is written to while it runs
    settle_s: float = 2.0  # a file that changed within this time may still be being written
    name_gone_s: float = 86_400.0
    most_gone: int = 100
    most_live: int = 2_000  # sources held in memory, the newest; older ones are read on request


class Library:
    """Keeps a snapshot of the folder up to date."""

    def __init__(
        self, folder: Folder, config: LookConfig | None = None, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self.folder, self.config, self.clock = folder, config or LookConfig(), clock
        self.snapshot = Snapshot()
        self.readings: Mapping[Key, Reading] = {}  # all, also those not in memory
        self.changed: frozenset[str] = frozenset()  # places that the last look found changed
        self._recogniser = Recogniser(folder)
        self._opened: OrderedDict[tuple[int, str], Snapshot] = OrderedDict()
        self._recognised: dict[str, Recognised] = {}  # by place
        self._known: dict[Key, Known] = {}
        self._gone: dict[str, FileState] = {}
        self._lock = threading.Lock()

    def refresh(self, only: Set[str] | None = None) -> Snapshot:
        """List the folder, or `only` some places, and read what changed; return the same snapshot if nothing did."""
        with self._lock:
            look = self.folder.look(only)
            before, self.changed = self._known, look.changed
            if look.changed or self._has_ended():
                self._read_all(look)
            states = tuple(self._list_states())
            changed = self._differs(before) or states != self.snapshot.states
            num_archived = len(self.readings) - len(self._known)
            changed = changed or num_archived != self.snapshot.num_archived
            if self.snapshot.version == 0 or changed or look.left_out != self.snapshot.files_left_out:
                results = [result for _, result in self._known.values()]
                self.snapshot = Snapshot(
                    version=self.snapshot.version + 1,
                    looked_ns=self.clock(),
                    sources=tuple(result for result in results if not isinstance(result, Problem)),
                    problems=tuple(result for result in results if isinstance(result, Problem)),
                    states=states,
                    num_files=look.num_files,
                    files_left_out=look.left_out,
                    num_archived=num_archived,
                )
            return self.snapshot

    def load(self, reading: Reading) -> Source:
        """A source from memory, or read without being kept: the index reads 100,000 of them."""
        known = self._known.get(reading.key)
        if known is not None and known[0] is reading.files and not isinstance(known[1], Problem):
            return known[1]
        return self._recogniser.read(reading, remember=False)

    def snapshot_of(self, key: str) -> Snapshot:
        """The snapshot that holds the source of a key; an old source, not in memory, gets one of its own."""
        place, snapshot = key.rpartition("~")[0] or key, self.snapshot
        readings, known = self.readings, self._known
        if snapshot.num_archived == 0 or any(place in readings[one].places for one in known if one in readings):
            return snapshot
        opened = self._opened.get((snapshot.version, place))
        if opened is None:
            found = [reading for reading in readings.values() if place in reading.places]
            if not found:
                return snapshot
            sources = []
            for reading in found:
                with suppress(PrismError):  # It may be gone or damaged: then the answer is "not found".
                    sources.append(self._recogniser.read(reading, remember=False))
            opened = Snapshot(version=snapshot.version, looked_ns=self.clock(), sources=tuple(sources))
            self._opened[snapshot.version, place] = opened
            while len(self._opened) > _MOST_OPENED:
                self._opened.popitem(last=False)
        return opened

    def _read_all(self, look: Look) -> None:
        """Read what is new or changed among the newest sources; note the places of the others."""
        before, self._known = self._known, {}
        told = {place for place in look.changed if place in self._recognised or self._holds_investigation(place)}
        self._recognise({owner_of(place) for place in look.changed} | told)
        for reading in choose_newest(self.readings.values(), self.config.most_live):
            old = before.get(reading.key)
            same = old is not None and old[0] == reading.files and not _has_ended(self.folder, old[1])
            self._known[reading.key] = (reading.files, old[1]) if same and old is not None else self._read(reading, old)
        self._recogniser.forget_except({file.path for files, _ in self._known.values() for file in files})
        self._note_gone(before)

    def _holds_investigation(self, place: str) -> bool:
        """Whether to show a reading: of an attempt's folder only what `prism investigate` left there."""
        return any(file.name == _INVESTIGATION_FILE for file in self.folder.files_in(place))

    def _recognise(self, changed: Set[str]) -> None:
        """Update the readings of the places that changed."""
        readings = dict(self.readings)
        for place in sorted(changed):
            before = self._recognised.get(place)
            for reading in before.readings if before is not None else ():
                readings.pop(reading.key, None)
            now = self._recogniser.recognise(place, before)
            if now.readings or now.sniffed:
                self._recognised[place] = now
            else:
                self._recognised.pop(place, None)
            readings.update((reading.key, reading) for reading in now.readings)
        if readings != self.readings:
            self.readings = readings

    def _has_ended(self) -> bool:
        """Whether to read again though no file changed: one was half written, or a signal ended its process."""
        return any(not files or _has_ended(self.folder, source) for files, source in self._known.values())

    def _differs(self, before: Mapping[Key, Known]) -> bool:
        """Compare by identity: frames cannot be compared, and an unchanged source is the same object."""
        if self._known.keys() != before.keys():
            return True
        return any(before[key][1] is not result for key, (_, result) in self._known.items())

    def _read(self, reading: Reading, old: Known | None) -> Known:
        try:
            return reading.files, self._recogniser.read(reading)
        except PrismError as error:
            fresh = 0 <= self.clock() - reading.changed_ns < self.config.settle_s * 1e9
            if fresh and old is not None and not isinstance(old[1], Problem):
                return (), old[1]  # it may still be being written: the next look reads it again
            since_ns = old[1].since_ns if old is not None and isinstance(old[1], Problem) else reading.changed_ns
            return reading.files, Problem(path=reading.key[1], message=str(error), since_ns=since_ns)

    def _note_gone(self, before: Mapping[Key, Known]) -> None:
        now = self.clock()
        for _, path in before.keys() - self._known.keys():
            if self.folder.find(path) is None:
                message = f"{path}: was here and is gone; what it told is not shown any more"
                self._gone[path] = FileState(path=path, state="gone", since_ns=now, message=message)
        kept = [state for path, state in self._gone.items() if self.folder.find(path) is None]
        self._gone = {state.path: state for state in kept[-self.config.most_gone :]}

    def _list_states(self) -> Iterator[FileState]:
        oldest = self.clock() - self.config.name_gone_s * 1e9
        yield from (state for state in self._gone.values() if state.since_ns >= oldest)
        for place, (why, since_ns) in self.folder.unreadable.items():
            message = (
                f"{place}: cannot be listed ({why}); nothing in it is shown until the user of this service may read it"
            )
            yield FileState(path=place, state="broken", since_ns=since_ns, message=message)
        for (_, path), (_, result) in self._known.items():
            if isinstance(result, Problem):
                yield FileState(path=path, state="broken", since_ns=result.since_ns, message=result.message)
            elif isinstance(result, Evaluated) and result.broken:
                yield FileState(path=path, state="broken", since_ns=result.updated_ns, message=result.broken)
            elif isinstance(result, Watched) and result.alive is False:
                message = f"{path}: its watch is gone without a word: it was killed, or its machine was restarted"
                yield FileState(path=path, state="stale", since_ns=result.updated_ns, message=message)
            elif _is_live(result) and self.clock() - result.updated_ns > self.config.stale_s * 1e9:
                message = f"{path}: still at work by its own word, and not written to for long"
                yield FileState(path=path, state="stale", since_ns=result.updated_ns, message=message)


def _has_ended(folder: Folder, source: Source | Problem) -> bool:
    """Whether a run had a supervisor when it was read, and has none now: a killed one leaves no trace in files."""
    if isinstance(source, Watched):
        return bool(source.alive) and not is_watching(folder, source)
    return isinstance(source, Supervised) and source.supervised and not is_supervised(folder, source.place)


def _is_live(source: Source) -> bool:
    """Whether a process writes to it while it runs."""
    return (isinstance(source, Watched) and not source.ended) or (
        isinstance(source, Evaluated) and source.progress.state == "running"
    )


def choose_newest(readings: Iterable[Reading], most: int) -> list[Reading]:
    """The sources to hold in memory, in order of path."""
    newest = heapq.nlargest(most, readings, key=lambda reading: (reading.changed_ns, reading.key[1]))
    return sorted(newest, key=lambda reading: reading.key[::-1])
