"""What `prism supervise` keeps in a run folder: its state, its decisions and what the trainers reported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_core import from_json

from prism.errors import BadFileError, InputError
from prism.machine.locks import is_process_alive
from prism.records import Verdict
from prism.recover.progress import STEPS_FILE
from prism.recover.supervise import events
from prism.recover.supervise.watch import event_of
from prism.serve.folder import Folder, FoundFile, NotInFolderError
from prism.serve.sources.place import Place, read_object
from prism.serve.sources.verdicts import mask_verdict

STATE_FILE = "state.json"
DECISIONS_FILE = "decisions.jsonl"
_MOST_DECISIONS_BYTES = 16 << 20
_MOST_REPORT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One report of a trainer, with the wall-clock time."""

    attempt: int
    time_s: float
    event: events.Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One event that the supervisor saw, and the actions that it took."""

    time_s: float
    event: str
    fields: Mapping[str, Any]
    actions: tuple[Mapping[str, Any], ...]
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRecord:
    """A host as the supervisor remembers it."""

    host: str
    num_strikes: int
    num_cordons: int
    cordoned: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervised:
    """One run."""

    place: str
    phase: str
    outcome: str
    outcome_text: str
    attempt: int
    hosts: tuple[str, ...]
    best_step: int
    last_good_step: int | None
    failures: tuple[Mapping[str, Any], ...]
    num_rollbacks: int
    skipped: tuple[str, ...]
    host_records: tuple[HostRecord, ...]
    decisions: tuple[Decision, ...]
    reports: tuple[Report, ...]
    supervised: bool
    updated_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadReports:
    """How far the reports of an attempt have been read, and what they said."""

    offset: int = 0
    reports: tuple[Report, ...] = ()


@dataclass(slots=True)
class SupervisedReader:
    """Reads runs repeatedly; of files that only grow it reads the new part."""

    _known: dict[str, _ReadReports] = field(default_factory=dict)

    def read(
        self, folder: Folder, place: Place, attempts: Mapping[int, FoundFile], *, remember: bool = True
    ) -> Supervised:
        """Read one run; `attempts` are the report files by attempt."""
        path = place.path_of(STATE_FILE)
        document = read_object(folder, path)
        try:
            run = _read_state(place, document["state"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadFileError(f"{path}: not the state of a supervised run ({error!r})") from None
        reader = self if remember else SupervisedReader()
        reports = [report for number, file in sorted(attempts.items()) for report in reader._read(folder, file, number)]
        changed = [place.files[STATE_FILE].mtime_ns, *(file.mtime_ns for file in attempts.values())]
        return replace(
            run,
            decisions=tuple(_read_decisions(folder, place)),
            reports=tuple(reports),
            supervised="lock" in place.files and is_supervised(folder, place.path),
            updated_ns=max(changed),
        )

    def forget_except(self, paths: Set[str]) -> None:
        """Forget what was read of all other files."""
        for path in self._known.keys() - paths:
            del self._known[path]

    def _read(self, folder: Folder, file: FoundFile, attempt: int) -> tuple[Report, ...]:
        known = self._known.get(file.path, _ReadReports())
        if file.num_bytes < known.offset:
            known = _ReadReports()  # The file was replaced.
        fresh = folder.read(file.path, most=_MOST_REPORT_BYTES, offset=known.offset)
        whole = fresh[: fresh.rfind(b"\n") + 1]
        more = tuple(report for line in whole.splitlines() if (report := _read_report(line, attempt)) is not None)
        known = _ReadReports(offset=known.offset + len(whole), reports=known.reports + more)
        self._known[file.path] = known
        return known.reports


def find_attempts(files: Iterable[FoundFile]) -> dict[str, dict[int, FoundFile]]:
    """The report files of attempts, by the place of their run and their number."""
    found: dict[str, dict[int, FoundFile]] = {}
    for file in files:
        if not file.path.endswith(STEPS_FILE):
            continue
        *run, folder, number, name = ("", "", *file.path.split("/"))
        if name == STEPS_FILE and folder == "attempts" and number.isdecimal():
            found.setdefault("/".join(part for part in run if part) or ".", {})[int(number)] = file
    return found


def _read_report(line: bytes, attempt: int) -> Report | None:
    try:
        fields = from_json(line)  # takes a fifth of the time of json.loads, which matters for a million lines
        event = event_of(fields, 0.0)
        return None if event is None else Report(attempt=attempt, time_s=float(fields["time"]), event=event)
    except (ValueError, KeyError, TypeError):
        return None


def _read_state(place: Place, state: Mapping[str, Any]) -> Supervised:
    records = tuple(
        HostRecord(
            host=str(host),
            num_strikes=len(record["strikes_s"]),
            num_cordons=int(record["num_cordons"]),
            cordoned=record["cordoned_until_s"] is not None,
            reasons=tuple(map(str, record["reasons"])),
        )
        for host, record in state["book"]["records"].items()
    )
    return Supervised(
        place=place.path,
        phase=str(state["phase"]),
        outcome=str(state["outcome"]),
        outcome_text=str(state["outcome_text"]),
        attempt=int(state["attempt"]),
        hosts=tuple(map(str, state["hosts"])),
        best_step=int(state["best_step"]),
        last_good_step=max(map(int, state["saved_steps"]), default=None),
        failures=tuple(dict(failure) for failure in state["failures"]),
        num_rollbacks=int(state["num_rollbacks"]),
        skipped=tuple(f"{part['first']}-{part['last']}" for part in state["skip"]),
        host_records=records,
        decisions=(),
        reports=(),
        supervised=False,
        updated_ns=0,
    )


def _read_decisions(folder: Folder, place: Place) -> Iterator[Decision]:
    if DECISIONS_FILE not in place.files:
        return
    for line in folder.read(place.path_of(DECISIONS_FILE), most=_MOST_DECISIONS_BYTES).splitlines():
        try:
            document = from_json(line)
            fields = dict(document["event"])
            verdict = fields.pop("verdict", None)
            yield Decision(
                time_s=float(document["time"]),
                event=str(fields.pop("kind")),
                fields=fields,
                actions=tuple(dict(action) for action in document["actions"]),
                verdict=_read_verdict(verdict),
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            continue


def _read_verdict(document: Any) -> Verdict | None:
    """A decision counts also where its verdict cannot be read."""
    try:
        return None if document is None else mask_verdict(Verdict.from_json(document))
    except (ValueError, KeyError, TypeError, AttributeError, InputError):
        return None


def is_supervised(folder: Folder, place: str) -> bool:
    """Whether the process that the lock file names is alive; trying the lock could disturb the supervisor."""
    try:
        words = folder.read("lock" if place == "." else f"{place}/lock", most=4096).decode(errors="replace")
    except NotInFolderError:
        return False
    return bool(is_process_alive(words))
