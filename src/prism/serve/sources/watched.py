"""What `prism watch` keeps in its state folder, and the findings that it printed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from prism.errors import BadFileError
from prism.machine.locks import LOCK_FILE, is_process_alive
from prism.records import Culprit, Finding
from prism.serve.folder import Folder, NotInFolderError
from prism.serve.sources.diagnosed import read_finding, read_topology
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
class FollowedFinding:
    """A finding that a watch follows; `over` once its job does not show it any more."""

    id: str
    finding: Finding
    over: bool
    well: str = ""  # what shows that it is over


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The state that a watch saved last."""

    place: str
    jobs: tuple[WatchedJob, ...]
    findings: tuple[FollowedFinding, ...]
    until_ns: int  # the end of the newest records that it has analysed
    updated_ns: int
    alive: bool | None = None  # whether its process lives; None where that cannot be seen
    ended: str = ""  # how it ended, by its own word: finished, or stopped
    hosts: Mapping[str, str] = field(default_factory=dict)  # by address


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldFindings:
    """The lines that a watch printed into a file: the newest line of each finding."""

    path: str
    findings: tuple[FollowedFinding, ...]
    updated_ns: int


def read_watched(folder: Folder, place: Place) -> Watched:
    """Read a watch's state; findings that the watch has not confirmed yet are left out."""
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
            FollowedFinding(
                id=str(known["id"]),
                finding=Finding(
                    kind=known["kind"],
                    job=str(known["job"]),
                    culprit=Culprit(type=known["culprit_type"], id=str(known["culprit"])),
                    start_ns=int(known["start_ns"]),
                    end_ns=int(known["end_ns"]),
                    lost_gpu_seconds=float(known["cost"]),
                    score=float(known.get("score", 0.0)),
                    evidence=str(known.get("evidence") or f"seen in {int(known['sightings'])} looks"),
                ),
                over=bool(known.get("resolved", False)),
                well=str(known.get("well") or ""),
            )
            for known in document["findings"]
            if known["told_cost"] is not None
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadFileError(f"{path}: not a state of prism watch ({error!r})") from None
    lock = _read_lock(folder, place)
    topology = read_topology(folder, place)
    seen = max((job.last_seen_ns for job in jobs), default=0)
    return Watched(
        place=place.path,
        jobs=jobs,
        findings=findings,
        until_ns=max(seen, int(document.get("looked_until_ns") or 0)),
        updated_ns=place.files[STATE_FILE].mtime_ns,
        alive=is_process_alive(lock),
        ended=lock if lock in ("finished", "stopped") else "",
        hosts={} if topology is None else dict(zip(topology["address"], topology["host"], strict=True)),
    )


def is_watching(folder: Folder, watch: Watched) -> bool | None:
    """Whether the watch's process lives now."""
    return is_process_alive(_read_lock(folder, Place(path=watch.place, files={})))


def _read_lock(folder: Folder, place: Place) -> str:
    try:
        return folder.read(place.path_of(LOCK_FILE), most=4096).decode(errors="replace").strip()
    except NotInFolderError:
        return ""


def read_told(folder: Folder, path: str, mtime_ns: int) -> ToldFindings:
    """Read findings as JSON Lines; a line that is still being written is left for the next time."""
    newest: dict[str, FollowedFinding] = {}
    for number, line in enumerate(folder.read(path, most=_MOST_LINES_BYTES).splitlines(), start=1):
        try:
            document = json.loads(line)
            name, over = str(document.get("id", number)), document.get("status") == "resolved"
            finding = read_finding(document)
            newest[name] = FollowedFinding(id=name, finding=finding, over=over, well=str(document.get("well") or ""))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    findings = sorted(newest.values(), key=lambda f: -f.finding.lost_gpu_seconds)
    return ToldFindings(path=path, findings=tuple(findings), updated_ns=mtime_ns)
