"""What `prism watch` keeps in its state folder, and the findings that it printed."""

from __future__ import annotations

import json
from dataclasses import dataclass

from prism.errors import BadFileError
from prism.records import Culprit, Finding
from prism.serve.folder import Folder
from prism.serve.sources.diagnosed import read_finding
from prism.serve.sources.place import Place, read_object

STATE_FILE = "state.json"
_MOST_LINES_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedJob:
    """A job under the name that the watch gave it."""

    id: str
    endpoints: tuple[str, ...]
    first_seen_ns: int
    last_seen_ns: int
    step_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """How a watch stood when it last saved its state."""

    place: str
    jobs: tuple[WatchedJob, ...]
    findings: tuple[Finding, ...]
    updated_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldFindings:
    """The lines that a watch printed into a file, the newest of each finding."""

    path: str
    findings: tuple[Finding, ...]
    updated_ns: int


def read_watched(folder: Folder, place: Place) -> Watched:
    """Read a watch's state; findings that it has not told yet are doubts, and left out."""
    path = place.path_of(STATE_FILE)
    document = read_object(folder, path)
    try:
        jobs = tuple(
            WatchedJob(
                id=name,
                endpoints=tuple(map(str, job["endpoints"])),
                first_seen_ns=int(job["first_seen_ns"]),
                last_seen_ns=int(job["last_seen_ns"]),
                step_s=None if job["step_s"] is None else float(job["step_s"]),
            )
            for name, job in document["jobs"].items()
        )
        findings = tuple(
            Finding(
                kind=known["kind"],
                job=str(known["job"]),
                culprit=Culprit(type=known["culprit_type"], id=str(known["culprit"])),
                start_ns=int(known["start_ns"]),
                end_ns=int(known["end_ns"]),
                lost_gpu_seconds=float(known["cost"]),
                score=1.0,
                evidence=f"seen in {int(known['sightings'])} looks in a row",
            )
            for known in document["findings"]
            if known["told_cost"] is not None
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadFileError(f"{path}: not a state of prism watch ({error!r})") from None
    return Watched(place=place.path, jobs=jobs, findings=findings, updated_ns=place.files[STATE_FILE].mtime_ns)


def read_told(folder: Folder, path: str, mtime_ns: int) -> ToldFindings:
    """Read findings as JSON Lines; a line that is still being written is left for the next time."""
    newest: dict[str, Finding] = {}
    for number, line in enumerate(folder.read(path, most=_MOST_LINES_BYTES).splitlines(), start=1):
        try:
            document = json.loads(line)
            newest[str(document.get("id", number))] = read_finding(document)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    findings = sorted(newest.values(), key=lambda f: -f.lost_gpu_seconds)
    return ToldFindings(path=path, findings=tuple(findings), updated_ns=mtime_ns)
