"""Everything found in the served folder, read again when its files change."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from prism.errors import PrismError
from prism.serve.folder import Folder, FoundFile
from prism.serve.sources import characterized, diagnosed, evaluated, predicted, verdicts, watched
from prism.serve.sources.characterized import Characterized
from prism.serve.sources.diagnosed import Diagnosed
from prism.serve.sources.evaluated import Evaluated
from prism.serve.sources.place import Place, read_object, schema_of
from prism.serve.sources.predicted import Predicted
from prism.serve.sources.supervised import Supervised, SupervisedReader, find_attempts
from prism.serve.sources.verdicts import VerdictFile
from prism.serve.sources.watched import ToldFindings, Watched

Source = Diagnosed | Watched | ToldFindings | Supervised | VerdictFile | Evaluated | Predicted | Characterized
T = TypeVar("T")
_SNIFF_BYTES = 1 << 16
_KNOWN_LINES = frozenset({"steps.jsonl", "decisions.jsonl", "trials.jsonl", "cases.jsonl"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A file that looked like one of ours and could not be read."""

    path: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What the folder held when it was last looked at; a new one has a higher version."""

    version: int = 0
    looked_ns: int = 0
    sources: tuple[Source, ...] = ()
    problems: tuple[Problem, ...] = ()
    num_files: int = 0
    files: Mapping[str, FoundFile] = field(default_factory=dict)

    def all_of(self, kind: type[T]) -> list[T]:
        """The sources of one kind, in order of place."""
        return [source for source in self.sources if isinstance(source, kind)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Something to read: the files that it depends on, and how."""

    key: tuple[str, str]
    files: tuple[FoundFile, ...]
    read: Callable[[], Source]


@dataclass(slots=True)
class Library:
    """Keeps a snapshot of the folder up to date."""

    folder: Folder
    snapshot: Snapshot = field(default_factory=Snapshot)
    _runs: SupervisedReader = field(default_factory=SupervisedReader)
    _known: dict[tuple[str, str], tuple[tuple[FoundFile, ...], Source | Problem]] = field(default_factory=dict)
    _schemas: dict[str, tuple[FoundFile, str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refresh(self) -> Snapshot:
        """Look at the folder, read what changed; the same snapshot where nothing did."""
        with self._lock:
            found = self.folder.scan()
            before = self._known
            self._known = {}
            for reading in self._recognise(found):
                old = before.get(reading.key)
                same = old is not None and old[0] == reading.files
                self._known[reading.key] = old if same and old is not None else (reading.files, self._read(reading))
            if self.snapshot.version == 0 or self._differs(before):
                results = [result for _, result in self._known.values()]
                self.snapshot = Snapshot(
                    version=self.snapshot.version + 1,
                    looked_ns=time.time_ns(),
                    sources=tuple(result for result in results if not isinstance(result, Problem)),
                    problems=tuple(result for result in results if isinstance(result, Problem)),
                    num_files=len(found),
                    files={file.path: file for file in found},
                )
            return self.snapshot

    def _differs(self, before: Mapping[tuple[str, str], tuple[tuple[FoundFile, ...], Source | Problem]]) -> bool:
        """By identity: frames cannot be compared, and what did not change was not read again."""
        if self._known.keys() != before.keys():
            return True
        return any(before[key][1] is not result for key, (_, result) in self._known.items())

    def _read(self, reading: Reading) -> Source | Problem:
        try:
            return reading.read()
        except PrismError as error:
            return Problem(path=reading.key[1], message=str(error))

    def _recognise(self, found: list[FoundFile]) -> Iterator[Reading]:
        places: dict[str, dict[str, FoundFile]] = {}
        for file in found:
            places.setdefault(file.place, {})[file.name] = file
        by_path = {file.path: file for file in found}
        for path, files in places.items():
            place = Place(path=path, files=files)
            yield from self._recognise_place(place, by_path)
            for name, file in files.items():
                if name.endswith(".jsonl") and name not in _KNOWN_LINES:
                    yield from self._recognise_lines(file)

    def _recognise_place(self, place: Place, by_path: Mapping[str, FoundFile]) -> Iterator[Reading]:
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
        if "report.json" in files and self._schema(files["report.json"]) == "prism.characterization":
            yield reading("report.json", partial(characterized.read_characterized, folder, place), "report.html")
        if self._is_evaluation(place):
            name = next(n for n in evaluated.BESIDE if n in files)
            yield reading(name, partial(evaluated.read_evaluated, folder, place), *evaluated.BESIDE)
        if "state.json" in files:
            match self._schema(files["state.json"]):
                case "prism.supervise":
                    attempts = find_attempts(by_path, place.path)
                    run = partial(self._runs.read, folder, place, attempts)
                    yield Reading(
                        key=("state.json", place.path_of("state.json")),
                        files=(
                            *(files[n] for n in ("state.json", "decisions.jsonl", "lock") if n in files),
                            *attempts.values(),
                        ),
                        read=run,
                    )
                case "prism.watch-state":
                    yield reading("state.json", partial(watched.read_watched, folder, place))

    def _is_evaluation(self, place: Place) -> bool:
        if evaluated.RESULTS_FILE in place.files:
            return self._schema(place.files[evaluated.RESULTS_FILE]) == "prism.evaluation"
        return evaluated.PROGRESS_FILE in place.files and any(n in place.files for n in evaluated.BESIDE[2:])

    def _schema(self, file: FoundFile) -> str:
        known = self._schemas.get(file.path)
        if known is None or known[0] != file:
            try:
                schema = schema_of(read_object(self.folder, file.path))
            except PrismError:
                schema = known[1] if known else ""  # being written just now: it is still what it was
            known = self._schemas[file.path] = (file, schema)
        return known[1]

    def _recognise_lines(self, file: FoundFile) -> Iterator[Reading]:
        """JSON Lines are told apart by their first line."""
        try:
            first = json.loads(self.folder.read(file.path, most=_SNIFF_BYTES).partition(b"\n")[0])
        except (PrismError, ValueError, RecursionError):
            return
        kind = _kind_of_line(first)
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
