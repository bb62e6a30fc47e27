"""Everything found in the served folder, read again when its files change."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from sys import intern
from typing import Any, Literal, TypeVar, cast

from prism.errors import PrismError
from prism.serve.folder import Folder, FoundFile
from prism.serve.sources import characterized, diagnosed, evaluated, predicted, printed, verdicts, watched
from prism.serve.sources.characterized import Characterized
from prism.serve.sources.diagnosed import Diagnosed
from prism.serve.sources.evaluated import Evaluated
from prism.serve.sources.place import Place, read_object, schema_of, schema_of_start
from prism.serve.sources.predicted import Predicted
from prism.serve.sources.printed import Printed
from prism.serve.sources.supervised import Supervised, SupervisedReader, find_attempts, is_supervised
from prism.serve.sources.verdicts import VerdictFile
from prism.serve.sources.watched import ToldFindings, Watched

Source = Diagnosed | Watched | ToldFindings | Supervised | VerdictFile | Evaluated | Predicted | Characterized | Printed
T = TypeVar("T")
_SNIFF_BYTES = 1 << 16
_KNOWN_LINES = frozenset({"steps.jsonl", "decisions.jsonl", "trials.jsonl", "cases.jsonl"})
_KNOWN_JSON = frozenset({"diagnosis.json", "emulation.json", "truth.json", "report.json", "results.json",
                         "progress.json", "state.json", predicted.SIMULATION_FILE})  # fmt: skip
_SCHEMA_BYTES = 256
_MOST_OPENED = 8
_BROKEN = "broken"  # in place of a schema, where a file is not JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class LookConfig:
    """When what is shown counts as old, and how long something gone is named."""

    stale_s: float = 300.0  # without a write, for what is written to as long as it runs
    settle_s: float = 2.0  # a file that changed within this time may still be being written
    name_gone_s: float = 86_400.0
    most_gone: int = 100
    most_live: int = 2_000  # sources held in memory, the newest; older ones are in the index, and read when asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A file that looked like one of ours and could not be read."""

    path: str
    message: str
    since_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """A file whose picture is not what is true now: gone, broken, or not written to any more."""

    path: str
    state: Literal["gone", "broken", "stale"]
    since_ns: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What the folder held when it was last looked at; a new one has a higher version."""

    version: int = 0
    looked_ns: int = 0
    sources: tuple[Source, ...] = ()
    problems: tuple[Problem, ...] = ()
    states: tuple[FileState, ...] = ()
    num_files: int = 0
    files_left_out: bool = False  # more files are in the folder than are looked at
    num_archived: int = 0  # sources that are not in `sources`, because many newer ones are
    files: Mapping[str, FoundFile] = field(default_factory=dict)
    _made: dict[str, Any] = field(default_factory=dict, compare=False)

    def all_of(self, kind: type[T]) -> list[T]:
        """The sources of one kind, in order of place."""
        return [source for source in self.sources if isinstance(source, kind)]

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Something that views derive from this snapshot, made when it is first asked for."""
        if name not in self._made:
            self._made[name] = make()
        return cast(T, self._made[name])

    def is_stale(self, path: str) -> bool:
        """Whether a file that should be written to has not been for long."""
        return any(state.path == path and state.state == "stale" for state in self.states)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Something to read: the files that it depends on, and how."""

    key: tuple[str, str]
    files: tuple[FoundFile, ...]
    read: Callable[..., Source]
    remembers: bool = False  # whether `read` remembers how far it has read

    def read_once(self) -> Source:
        """Read without remembering how far."""
        return self.read(remember=False) if self.remembers else self.read()

    @property
    def changed_ns(self) -> int:
        """When one of its files was last written."""
        return max((file.mtime_ns for file in self.files), default=0)


def reading_places(key: tuple[str, str]) -> tuple[str, str]:
    """What the key of something that a reading tells of may begin with: its folder, or its file."""
    return key[1].rpartition("/")[0] or ".", key[1]


@dataclass(slots=True)
class Library:
    """Keeps a snapshot of the folder up to date."""

    folder: Folder
    config: LookConfig = field(default_factory=LookConfig)
    clock: Callable[[], int] = time.time_ns
    snapshot: Snapshot = field(default_factory=Snapshot)
    readings: Mapping[tuple[str, str], Reading] = field(default_factory=dict)  # all, also those not in memory
    _opened: OrderedDict[tuple[int, str], Snapshot] = field(default_factory=OrderedDict)
    _runs: SupervisedReader = field(default_factory=SupervisedReader)
    _found: list[FoundFile] = field(default_factory=list)
    _paths: Mapping[str, FoundFile] = field(default_factory=dict)
    _recognised: dict[str, tuple[object, list[Reading]]] = field(default_factory=dict)  # by place
    _known: dict[tuple[str, str], tuple[tuple[FoundFile, ...], Source | Problem]] = field(default_factory=dict)
    _schemas: dict[str, tuple[FoundFile, str]] = field(default_factory=dict)
    _starts: dict[str, tuple[FoundFile, str]] = field(default_factory=dict)
    _gone: dict[str, FileState] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refresh(self) -> Snapshot:
        """Look at the folder, read what changed; the same snapshot where nothing did."""
        with self._lock:
            found, left_out = self.folder.scan_all()
            before = self._known
            if found is not self._found or self._has_ended(before):
                self._found = found
                self._read_all(found)
            states = tuple(self._list_states())
            changed = self._differs(before) or states != self.snapshot.states
            num_archived = len(self.readings) - len(self._known)
            changed = changed or num_archived != self.snapshot.num_archived
            if self.snapshot.version == 0 or changed or left_out != self.snapshot.files_left_out:
                results = [result for _, result in self._known.values()]
                self.snapshot = Snapshot(
                    version=self.snapshot.version + 1,
                    looked_ns=self.clock(),
                    sources=tuple(result for result in results if not isinstance(result, Problem)),
                    problems=tuple(result for result in results if isinstance(result, Problem)),
                    states=states,
                    num_files=len(found),
                    files_left_out=left_out,
                    num_archived=num_archived,
                    files=self._paths,
                )
            return self.snapshot

    def _read_all(self, found: list[FoundFile]) -> None:
        """Read what is new or changed of the newest sources; remember where the others lie."""
        before, self._known = self._known, {}
        self._paths = {file.path: file for file in found}
        readings = list(self._recognise(found))
        live = choose_newest(readings, self.config.most_live)
        for reading in live:
            old = before.get(reading.key)
            same = old is not None and old[0] == reading.files and not _has_ended(self.folder, old[1])
            self._known[reading.key] = old if same and old is not None else self._read(reading, old)
        now = {reading.key: reading for reading in readings}
        if now != self.readings:
            self.readings = now
        self._forget(self._paths)
        self._note_gone(before, self._paths)

    def _has_ended(self, known: Mapping[tuple[str, str], tuple[tuple[FoundFile, ...], Source | Problem]]) -> bool:
        """Whether something must be read again although no file changed: half written before, or ended by a signal."""
        return any(not files or _has_ended(self.folder, source) for files, source in known.values())

    def in_memory(self, key: tuple[str, str]) -> Source | None:
        """A source that need not be read again."""
        known = self._known.get(key)
        return None if known is None or isinstance(known[1], Problem) else known[1]

    def snapshot_of(self, key: str) -> Snapshot:
        """The snapshot that holds what a key asks for; of an old source, which is not in memory, one of its own."""
        place, snapshot = key.rpartition("~")[0] or key, self.snapshot
        if snapshot.num_archived == 0 or any(place in reading_places(known) for known in self._known):
            return snapshot
        known = self._opened.get((snapshot.version, place))
        if known is None:
            readings = [reading for key, reading in self.readings.items() if place in reading_places(key)]
            if not readings:
                return snapshot
            sources = []
            for reading in readings:
                with suppress(PrismError):  # It may have gone, or be damaged: then it is not found.
                    sources.append(reading.read_once())
            files = {file.path: file for reading in readings for file in reading.files}
            known = Snapshot(version=snapshot.version, looked_ns=self.clock(), sources=tuple(sources), files=files)
            self._opened[snapshot.version, place] = known
            while len(self._opened) > _MOST_OPENED:
                self._opened.popitem(last=False)
        return known

    def _differs(self, before: Mapping[tuple[str, str], tuple[tuple[FoundFile, ...], Source | Problem]]) -> bool:
        """By identity: frames cannot be compared, and what did not change was not read again."""
        if self._known.keys() != before.keys():
            return True
        return any(before[key][1] is not result for key, (_, result) in self._known.items())

    def _read(
        self, reading: Reading, old: tuple[tuple[FoundFile, ...], Source | Problem] | None
    ) -> tuple[tuple[FoundFile, ...], Source | Problem]:
        try:
            return reading.files, reading.read()
        except PrismError as error:
            changed_ns = max((file.mtime_ns for file in reading.files), default=0)
            fresh = 0 <= self.clock() - changed_ns < self.config.settle_s * 1e9
            if fresh and old is not None and not isinstance(old[1], Problem):
                return (), old[1]  # perhaps being written just now: the next look reads it again
            since_ns = old[1].since_ns if old is not None and isinstance(old[1], Problem) else changed_ns
            return reading.files, Problem(path=reading.key[1], message=str(error), since_ns=since_ns)

    def _forget(self, paths: Mapping[str, FoundFile]) -> None:
        """Drop what was remembered of files that are not there any more."""
        for memory in (self._schemas, self._starts):
            for path in [path for path in memory if path not in paths]:
                del memory[path]
        self._runs.forget_except({file.path for files, _ in self._known.values() for file in files})

    def _note_gone(
        self,
        before: Mapping[tuple[str, str], tuple[tuple[FoundFile, ...], Source | Problem]],
        paths: Mapping[str, FoundFile],
    ) -> None:
        now = self.clock()
        for _, path in before.keys() - self._known.keys():
            if path not in paths:
                message = f"{path}: was here and is gone; what it told is not shown any more"
                self._gone[path] = FileState(path=path, state="gone", since_ns=now, message=message)
        kept = [state for path, state in self._gone.items() if path not in paths]
        self._gone = {state.path: state for state in kept[-self.config.most_gone :]}

    def _list_states(self) -> Iterator[FileState]:
        oldest = self.clock() - self.config.name_gone_s * 1e9
        yield from (state for state in self._gone.values() if state.since_ns >= oldest)
        for (_, path), (_, result) in self._known.items():
            if isinstance(result, Problem):
                yield FileState(path=path, state="broken", since_ns=result.since_ns, message=result.message)
            elif isinstance(result, Evaluated) and result.broken:
                yield FileState(path=path, state="broken", since_ns=result.updated_ns, message=result.broken)
            elif _is_live(result) and self.clock() - result.updated_ns > self.config.stale_s * 1e9:
                message = f"{path}: still at work by its own word, and not written to for long"
                yield FileState(path=path, state="stale", since_ns=result.updated_ns, message=message)

    def _recognise(self, found: list[FoundFile]) -> Iterator[Reading]:
        """What there is to read; a place whose files are the same has the same readings as before."""
        attempts = find_attempts(found)
        reports = {file.path for files in attempts.values() for file in files.values()}  # read with their run
        places: dict[str, dict[str, FoundFile]] = {}
        for file in found:
            if file.path not in reports:
                place, _, name = file.path.rpartition("/")
                places.setdefault(place or ".", {})[intern(name)] = file  # few names, of very many files
        before, self._recognised = self._recognised, {}
        for path, files in places.items():
            depends = (files, attempts.get(path))
            known = before.get(path)
            if known is None or known[0] != depends:
                known = depends, list(self._recognise_files(Place(path=path, files=files), attempts.get(path, {})))
            self._recognised[path] = known
            yield from known[1]

    def _recognise_files(self, place: Place, attempts: Mapping[int, FoundFile]) -> Iterator[Reading]:
        yield from self._recognise_place(place, attempts)
        for name, file in place.files.items():
            if name.endswith(".jsonl") and name not in _KNOWN_LINES:
                yield from self._recognise_lines(file)
            elif name.endswith(".json") and name not in _KNOWN_JSON:
                yield from self._recognise_printed(place, file)

    def _recognise_place(self, place: Place, attempts: Mapping[int, FoundFile]) -> Iterator[Reading]:
        folder, files = self.folder, place.files

        def reading(name: str, read: Callable[[], Source], *beside: str) -> Reading:
            depends = tuple(files[n] for n in dict.fromkeys((name, *beside)) if n in files)
            return Reading(key=(name, place.path_of(name)), files=depends, read=read)

        if diagnosed.DIAGNOSIS_FILE in files:
            yield reading("diagnosis.json", partial(diagnosed.read_diagnosed, folder, place), *diagnosed.BESIDE)
        if predicted.EMULATION_FILE in files and "timeline.parquet" in files:
            yield reading("emulation.json", partial(predicted.read_emulation, folder, place), "timeline.parquet")
        if predicted.TRUTH_FILE in files and "spans.parquet" in files:
            yield reading("truth.json", partial(predicted.read_scenario, folder, place), "spans.parquet")
        if predicted.SIMULATION_FILE in files and "spans.parquet" in files:
            yield reading(predicted.SIMULATION_FILE, partial(predicted.read_simulation, folder, place), "spans.parquet")
        if "report.json" in files and self._schema(files["report.json"]) in ("prism.characterization", _BROKEN):
            yield reading("report.json", partial(characterized.read_characterized, folder, place), "report.html")
        if self._is_evaluation(place):
            name = next(n for n in evaluated.BESIDE if n in files)
            yield reading(name, partial(evaluated.read_evaluated, folder, place), *evaluated.BESIDE)
        if "state.json" in files:
            match self._schema(files["state.json"]):
                case "prism.supervise":
                    run = partial(self._runs.read, folder, place, attempts)
                    yield Reading(
                        key=("state.json", place.path_of("state.json")),
                        files=(
                            *(files[n] for n in ("state.json", "decisions.jsonl", "lock") if n in files),
                            *attempts.values(),
                        ),
                        read=run,
                        remembers=True,
                    )
                case "prism.watch-state" | "broken":
                    yield reading("state.json", partial(watched.read_watched, folder, place))

    def _is_evaluation(self, place: Place) -> bool:
        if evaluated.RESULTS_FILE in place.files:
            return self._schema(place.files[evaluated.RESULTS_FILE]) in ("prism.evaluation", _BROKEN)
        return evaluated.PROGRESS_FILE in place.files and any(n in place.files for n in evaluated.BESIDE[2:])

    def _schema(self, file: FoundFile) -> str:
        known = self._schemas.get(file.path)
        if known is None or known[0] != file:
            try:
                schema = schema_of_start(self.folder.read(file.path, most=_SCHEMA_BYTES))
                schema = schema or schema_of(read_object(self.folder, file.path))
            except PrismError:
                # A file that is being written just now, or was damaged, is still what it was.
                schema = known[1] if known and known[1] else _BROKEN
            known = self._schemas[file.path] = (file, schema)
        return known[1]

    def _recognise_printed(self, place: Place, file: FoundFile) -> Iterator[Reading]:
        kind = self._start(file, lambda: printed.kind_of_start(self.folder.read(file.path, most=printed.SNIFF_BYTES)))
        if kind:
            page = printed.find_page(place, file.name, kind)
            path = None if page is None else place.path_of(page)
            read = partial(printed.read_printed, self.folder, file, kind, path)
            yield Reading(
                key=(kind, file.path), files=(file,) if page is None else (file, place.files[page]), read=read
            )

    def _start(self, file: FoundFile, sniff: Callable[[], str]) -> str:
        """What a file's beginning says it is, read once for each state of the file; what it was where it says none."""
        known = self._starts.get(file.path)
        if known is None or known[0] != file:
            try:
                kind = sniff()
            except (PrismError, ValueError, RecursionError):
                kind = ""
            known = self._starts[file.path] = (file, kind or (known[1] if known else ""))
        return known[1]

    def _recognise_lines(self, file: FoundFile) -> Iterator[Reading]:
        """JSON Lines are told apart by their first line."""
        kind = self._start(
            file,
            lambda: _kind_of_line(json.loads(self.folder.read(file.path, most=_SNIFF_BYTES).partition(b"\n")[0])),
        )
        if kind == "verdict":
            read: Callable[[], Source] = partial(verdicts.read_verdicts, self.folder, file.path, file.mtime_ns)
        elif kind == "finding":
            read = partial(watched.read_told, self.folder, file.path, file.mtime_ns)
        else:
            return
        yield Reading(key=(kind, file.path), files=(file,), read=read)


def _kind_of_line(first: Any) -> str:
    if not isinstance(first, dict):
        return ""
    if {"log", "reason", "action"} <= first.keys():
        return "verdict"
    return "finding" if {"culprit", "lost_gpu_seconds", "evidence"} <= first.keys() else ""


def _has_ended(folder: Folder, source: Source | Problem) -> bool:
    """Whether a run was supervised when it was read, and its supervisor is gone: a signal leaves no trace in files."""
    return isinstance(source, Supervised) and source.supervised and not is_supervised(folder, source.place)


def _is_live(source: Source) -> bool:
    """Whether something writes to it as long as it runs."""
    return isinstance(source, Watched) or (isinstance(source, Evaluated) and source.progress.state == "running")


def choose_newest(readings: list[Reading], most: int) -> list[Reading]:
    """Those to hold in memory, in the order given."""
    if len(readings) <= most:
        return readings
    oldest = sorted((reading.changed_ns for reading in readings), reverse=True)[most - 1]
    return [reading for reading in readings if reading.changed_ns >= oldest][:most]
