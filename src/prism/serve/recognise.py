"""Which files of a place are a source, judged by their names and first bytes, and how each is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from prism.errors import PrismError
from prism.serve.folder import Folder, FoundFile
from prism.serve.snapshot import Source
from prism.serve.sources import characterized, diagnosed, evaluated, predicted, printed, verdicts, watched
from prism.serve.sources.place import Place, read_object, schema_of, schema_of_start
from prism.serve.sources.supervised import SupervisedReader, find_attempts

Key = tuple[str, str]  # a kind, or the name of the file that names the source, and that file's path
_SNIFF_BYTES = 1 << 16
_SCHEMA_BYTES = 256
_KNOWN_LINES = frozenset({"steps.jsonl", "decisions.jsonl", "trials.jsonl", "cases.jsonl"})
_KNOWN_JSON = frozenset({"diagnosis.json", "emulation.json", "truth.json", "report.json", "results.json",
                         "progress.json", "state.json", predicted.SIMULATION_FILE})  # fmt: skip
_BROKEN = "broken"  # in place of a schema, where a file is not JSON
_IN_PLACES: dict[str, Callable[[Folder, Place], Source]] = {
    "diagnosed": diagnosed.read_diagnosed,
    "emulation": predicted.read_emulation,
    "scenario": predicted.read_scenario,
    "simulation": predicted.read_simulation,
    "characterized": characterized.read_characterized,
    "evaluated": evaluated.read_evaluated,
    "watched": watched.read_watched,
}


@dataclass(frozen=True, slots=True)
class Reading:
    """A source to read: its kind and the files that it depends on. There are very many, so each holds little."""

    key: Key
    files: tuple[FoundFile, ...]
    reader: str

    @property
    def changed_ns(self) -> int:
        """When one of its files was last written."""
        return max((file.mtime_ns for file in self.files), default=0)

    @property
    def places(self) -> tuple[str, str]:
        """What the keys of its jobs and reports may begin with: its folder, or its file."""
        return self.key[1].rpartition("/")[0] or ".", self.key[1]


@dataclass(frozen=True, slots=True)
class Recognised:
    """The readings of a place, and the schemas of the files that had to be opened."""

    readings: tuple[Reading, ...]
    sniffed: tuple[tuple[FoundFile, str], ...]


@dataclass(slots=True)
class Recogniser:
    """Recognises sources place by place, and reads them."""

    folder: Folder
    _runs: SupervisedReader = field(default_factory=SupervisedReader)

    def recognise(self, path: str, before: Recognised | None) -> Recognised:
        """What there is to read in a place; an unchanged file is not opened again."""
        known = {file.name: (file, told) for file, told in before.sniffed} if before is not None else {}
        files = {file.name: file for file in self.folder.files_in(path)}
        glance = _Glance(self.folder, Place(path=path, files=files), known)
        readings = tuple(glance.list_readings())
        return Recognised(readings, tuple(glance.sniffed.values()))

    def read(self, reading: Reading, *, remember: bool = True) -> Source:
        """Read a source; with `remember`, keep the position up to which a growing file was read."""
        path = reading.places[0]
        place = Place(path=path, files={file.name: file for file in reading.files if file.place == path})
        if reading.reader == "supervised":
            attempts = find_attempts(reading.files).get(path, {})
            return self._runs.read(self.folder, place, attempts, remember=remember)
        if reading.reader in _IN_PLACES:
            return _IN_PLACES[reading.reader](self.folder, place)
        file = reading.files[0]
        if reading.reader == "verdict":
            return verdicts.read_verdicts(self.folder, file.path, file.mtime_ns)
        if reading.reader == "finding":
            return watched.read_told(self.folder, file.path, file.mtime_ns)
        page = reading.files[1].path if len(reading.files) > 1 else None
        return printed.read_printed(self.folder, file, reading.reader, page)

    def forget_except(self, paths: set[str]) -> None:
        """Forget the positions of all other files."""
        self._runs.forget_except(paths)


@dataclass(slots=True)
class _Glance:
    """One look at the files of a place."""

    folder: Folder
    place: Place
    known: dict[str, tuple[FoundFile, str]]
    sniffed: dict[str, tuple[FoundFile, str]] = field(default_factory=dict)

    def list_readings(self) -> Iterator[Reading]:
        """Every source of the place."""
        yield from self._list_named()
        for name, file in self.place.files.items():
            if name.endswith(".jsonl") and name not in _KNOWN_LINES:
                kind = self._start(file, self._read_line)
                if kind:
                    yield Reading((kind, file.path), (file,), kind)
            elif name.endswith(".json") and name not in _KNOWN_JSON:
                kind = self._start(file, self._read_printed)
                if kind:
                    page = printed.find_page(self.place, name, kind)
                    beside = () if page is None else (self.place.files[page],)
                    yield Reading((kind, file.path), (file, *beside), kind)

    def _list_named(self) -> Iterator[Reading]:
        """Sources that are known by the names of their files."""
        files = self.place.files
        if diagnosed.DIAGNOSIS_FILE in files:
            yield self._reading("diagnosis.json", "diagnosed", *diagnosed.BESIDE)
        if predicted.EMULATION_FILE in files and "timeline.parquet" in files:
            yield self._reading("emulation.json", "emulation", "timeline.parquet")
        if predicted.TRUTH_FILE in files and "spans.parquet" in files:
            yield self._reading("truth.json", "scenario", "spans.parquet")
        if predicted.SIMULATION_FILE in files and "spans.parquet" in files:
            yield self._reading(predicted.SIMULATION_FILE, "simulation", "spans.parquet")
        if "report.json" in files and self._schema(files["report.json"]) in ("prism.characterization", _BROKEN):
            yield self._reading("report.json", "characterized", "report.html")
        if self._is_evaluation():
            name = next(n for n in evaluated.BESIDE if n in files)
            yield self._reading(name, "evaluated", *evaluated.BESIDE)
        if "state.json" in files:
            match self._schema(files["state.json"]):
                case "prism.supervise":
                    run = self._reading("state.json", "supervised", "decisions.jsonl", "lock")
                    yield Reading(run.key, (*run.files, *self._list_attempts()), run.reader)
                case "prism.watch-state" | "broken":
                    yield self._reading("state.json", "watched", "lock", "topology.csv")

    def _reading(self, name: str, reader: str, *beside: str) -> Reading:
        depends = tuple(self.place.files[n] for n in dict.fromkeys((name, *beside)) if n in self.place.files)
        return Reading((name, self.place.path_of(name)), depends, reader)

    def _list_attempts(self) -> Iterator[FoundFile]:
        """What the trainers of a run reported, in a folder for each attempt."""
        for attempt in self.folder.folders_in(self.place.path_of("attempts")):
            if attempt.rpartition("/")[2].isdecimal():
                yield from (file for file in self.folder.files_in(attempt) if file.name == "steps.jsonl")

    def _is_evaluation(self) -> bool:
        files = self.place.files
        if evaluated.RESULTS_FILE in files:
            return self._schema(files[evaluated.RESULTS_FILE]) in ("prism.evaluation", _BROKEN)
        return evaluated.PROGRESS_FILE in files and any(n in files for n in evaluated.BESIDE[2:])

    def _schema(self, file: FoundFile) -> str:
        known = self.known.get(file.name)
        if known is None or known[0] != file:
            try:
                schema = schema_of_start(self.folder.read(file.path, most=_SCHEMA_BYTES))
                schema = schema or schema_of(read_object(self.folder, file.path))
            except PrismError:
                # A file that is being written, or was damaged, keeps its kind.
                schema = known[1] if known and known[1] else _BROKEN
            known = (file, schema)
        self.sniffed[file.name] = known
        return known[1]

    def _start(self, file: FoundFile, sniff: Callable[[FoundFile], str]) -> str:
        """The kind that a file's first bytes show, read once per version of the file; else its earlier kind."""
        known = self.known.get(file.name)
        if known is None or known[0] != file:
            try:
                kind = sniff(file)
            except (PrismError, ValueError, RecursionError):
                kind = ""
            known = (file, kind or (known[1] if known else ""))
        self.sniffed[file.name] = known
        return known[1]

    def _read_printed(self, file: FoundFile) -> str:
        return printed.kind_of_start(self.folder.read(file.path, most=printed.SNIFF_BYTES))

    def _read_line(self, file: FoundFile) -> str:
        """The kind of a JSON Lines file, from its first line."""
        return _kind_of_line(json.loads(self.folder.read(file.path, most=_SNIFF_BYTES).partition(b"\n")[0]))


def _kind_of_line(first: Any) -> str:
    if not isinstance(first, dict):
        return ""
    if {"log", "reason", "action"} <= first.keys():
        return "verdict"
    return "finding" if {"culprit", "lost_gpu_seconds", "evidence"} <= first.keys() else ""


def owner_of(place: str) -> str:
    """The place whose readings depend on the files of a place: a run's, where it is the folder of an attempt."""
    run, _, number = place.rpartition("/")
    if number.isdecimal() and (run == "attempts" or run.endswith("/attempts")):
        return run.removesuffix("attempts").removesuffix("/") or "."
    return place
