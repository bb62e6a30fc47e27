"""Sort the files of a folder by kind, and read each kind into clues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

import polars as pl

from prism.errors import BadFileError, InputError
from prism.evidence.fusion import slow_clues, stop_clues
from prism.evidence.fusion.clues import Clue
from prism.evidence.logs import diagnose as explain_log
from prism.evidence.logs import read_job
from prism.evidence.traces.consensus import find_apart
from prism.evidence.traces.counters import find_anomalies, read_counter_csv
from prism.evidence.traces.files import Kind, find_kind
from prism.evidence.traces.flight_recorder import Dump, read_dump
from prism.evidence.traces.hang import find_hang
from prism.evidence.traces.inspector import find_waited_for, read_inspector
from prism.evidence.traces.kernel_log import read_gpu_errors
from prism.evidence.traces.late_calls import find_late_rank
from prism.evidence.traces.nccl_log import NcclCommunicator, map_hosts, read_nccl_logs
from prism.evidence.traces.places import place_ranks
from prism.evidence.traces.profiled_ranks import ProfiledJob, study_files
from prism.evidence.traces.rank_logs import RankLog, find_ahead, find_first_failed, read_rank_logs
from prism.evidence.traces.ras import find_laggards, parse_ras
from prism.evidence.traces.stacks import RankStack, read_stacks
from prism.evidence.traces.watchdog import find_behind

_ENDED = ("no_dump", "no_dump_nothing_pending")  # what a rank that ended by itself leaves
_MOST_FILES = 100_000


@dataclass(slots=True)
class Evidence:
    """The contents of a folder, as clues."""

    clues: list[Clue] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    hosts: dict[str, str] = field(default_factory=dict)  # by rank
    num_ranks: int = 0  # as far as dumps and logs show
    communicators: list[NcclCommunicator] = field(default_factory=list)
    cleared: set[str] = field(default_factory=set)  # hosts whose counters were read and show no fault
    profiles: ProfiledJob | None = None
    alive: frozenset[int] = frozenset()  # ranks that were alive while others hung, by their dumps
    kinds: dict[str, int] = field(default_factory=dict)  # how many files of each kind there were


def gather(folder: Path, *, since_ns: int | None = None, say: Callable[[str], None] = lambda text: None) -> Evidence:
    """Read everything in a folder; a note names what cannot be read."""
    if not folder.is_dir():
        raise BadFileError(f"{folder}: not a folder; give the one that holds the dumps and logs of one job")
    evidence = Evidence()
    files = _sort(folder, evidence)
    evidence.kinds = {kind: len(paths) for kind, paths in files.items() if paths}
    for kind, count in evidence.kinds.items():
        say(f"{count} files: {kind}")
    logs = read_rank_logs(files["logs"])
    read_ranks(evidence, read_stacks(files["stacks"]), _read_dumps(evidence, files["dumps"]), logs)
    readers: list[tuple[Kind, Callable[[Evidence, list[Path]], None]]] = [
        ("traces", _read_traces),
        ("inspector", _read_inspector),
        ("ras", _read_ras),
        ("counters", lambda e, paths: _read_counters(e, paths, since_ns)),
        ("logs", lambda e, paths: _read_system_logs(e, paths, logs, since_ns)),
        ("logs", lambda e, paths: _read_job_logs(e, paths, folder)),
    ]
    for kind, read in readers:
        if files[kind]:
            read(evidence, files[kind])
    return evidence


def _sort(folder: Path, evidence: Evidence) -> dict[Kind, list[Path]]:
    """The files of each kind; those that no reader knows are a note."""
    found = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    if len(found) > _MOST_FILES:
        raise BadFileError(f"{folder}: more than {_MOST_FILES:,} files; give the folder of one job")
    files: dict[Kind, list[Path]] = {kind: [] for kind in get_args(Kind)}
    unread = []
    for path in found:
        try:
            kind = find_kind(path)
        except BadFileError as error:
            evidence.notes.append(str(error))
            continue
        if kind is None:
            unread.append(path)
        else:
            files[kind].append(path)
    if unread:
        shown = ", ".join(str(p.relative_to(folder)) for p in unread[:8]) + (" ..." if len(unread) > 8 else "")
        evidence.notes.append(f"{len(unread)} files were left out, because no reader knows what they hold: {shown}")
    return files


def _read_dumps(evidence: Evidence, files: Sequence[Path]) -> list[Dump]:
    dumps: dict[int, Dump] = {}
    for path in files:
        try:
            dump = read_dump(path)
        except InputError as error:
            evidence.notes.append(str(error))  # one bad dump does not prevent reading the others
            continue
        if dump.rank in dumps:
            raise BadFileError(f"{path}: rank {dump.rank} is also in {dumps[dump.rank].path}; give one folder per job")
        dumps[dump.rank] = dump
    return [dumps[r] for r in sorted(dumps)]


def read_ranks(
    evidence: Evidence, stacks: Sequence[RankStack], dumps: Sequence[Dump], logs: Sequence[RankLog] = ()
) -> None:
    """What the ranks themselves show: where they stand, what they called, and how their logs end."""
    found = find_apart(stacks, lost_peer={log.rank for log in logs if log.lost_peer})
    if stacks:
        evidence.clues += stop_clues.read_consensus(found)
        evidence.num_ranks = max(evidence.num_ranks, len(stacks))
    if not dumps:
        return
    ranks = {log.rank for log in logs} | {s.rank for s in stacks}
    hang = find_hang(
        dumps,
        world_size=len(ranks) if ranks == set(range(len(ranks))) else None,
        known_places=place_ranks(dumps, stacks, found, logs),
        ahead=find_ahead(logs),
    )
    evidence.alive = hang.alive
    evidence.num_ranks = max(evidence.num_ranks, len(dumps) + len(hang.missing))
    if hang.missing:
        shown = ", ".join(str(r) for r in hang.missing[:10]) + (" ..." if len(hang.missing) > 10 else "")
        evidence.notes.append(f"{len(hang.missing)} ranks left no dump: {shown}")
    evidence.notes += hang.notes
    clue = stop_clues.read_hang(hang)
    if hang.situation in _ENDED and set(hang.ranks) <= set(find_first_failed(logs)):
        # A rank that its own log says to have ended leaves no dump because of that: one fact, which the log tells.
        clue = replace(clue, suspects=(), text=f"{clue.text} (its log says why)")
    evidence.clues.append(clue)
    late = find_late_rank(dumps) if hang.what == "none" else None
    if late is not None:
        evidence.clues.append(slow_clues.read_late_rank(late))


def _read_traces(evidence: Evidence, files: Sequence[Path]) -> None:
    try:
        evidence.profiles = study_files(files)
    except InputError as error:
        if "one folder per job" in str(error):
            raise
        evidence.notes.append(str(error))
        return
    evidence.notes += evidence.profiles.notes
    evidence.clues += slow_clues.read_profile_study(evidence.profiles)


def _read_inspector(evidence: Evidence, files: Sequence[Path]) -> None:
    try:
        evidence.clues += slow_clues.read_waited_for(find_waited_for(read_inspector(files)))
    except InputError as error:
        evidence.notes.append(str(error))


def _read_ras(evidence: Evidence, files: Sequence[Path]) -> None:
    for path in files:
        try:
            evidence.clues += stop_clues.read_laggards(
                find_laggards(parse_ras(path.read_text("utf-8", "replace"), str(path)))
            )
        except InputError as error:
            evidence.notes.append(str(error))


def _read_counters(evidence: Evidence, files: Sequence[Path], since_ns: int | None) -> None:
    for path in files:
        try:
            counters = read_counter_csv(path)
        except InputError as error:
            evidence.notes.append(str(error))
            continue
        if since_ns is not None:
            counters = counters.filter(counters["at_ns"] >= since_ns)
        take_counters(evidence, counters)


def take_counters(evidence: Evidence, counters: pl.DataFrame) -> None:
    """Hosts whose counters show a fault, and hosts whose counters show none."""
    anomalies = find_anomalies(counters)
    evidence.clues += slow_clues.read_anomalies(anomalies)
    evidence.cleared |= set(counters["host"].unique()) - {a.host for a in anomalies}


def _read_system_logs(evidence: Evidence, files: Sequence[Path], logs: Sequence[RankLog], since_ns: int | None) -> None:
    """Lines that drivers and NCCL wrote, in any of the logs."""
    errors = read_gpu_errors(files)
    if since_ns is not None:
        errors = [e for e in errors if e.at_ns is None or e.at_ns >= since_ns]
    evidence.clues += stop_clues.read_gpu_errors(errors)
    evidence.clues += stop_clues.read_log_ends(logs, evidence.alive)
    behind = find_behind(files)
    if behind is not None:
        evidence.clues.append(stop_clues.read_behind(behind))
    evidence.communicators = read_nccl_logs(files)
    evidence.num_ranks = max([evidence.num_ranks, *(c.size for c in evidence.communicators)])
    evidence.hosts = {str(rank): host for rank, host in map_hosts(evidence.communicators).items()}


def _read_job_logs(evidence: Evidence, files: Sequence[Path], folder: Path) -> None:
    """Read one job's logs together, as `prism explain FOLDER` does."""
    parents = {f.parent for f in files}
    try:
        found = explain_log(read_job(str(parents.pop() if len(parents) == 1 else folder)))
    except InputError as error:
        evidence.notes.append(str(error))
        return
    if found.verdict.reason not in ("Unknown", "none"):
        evidence.clues.append(stop_clues.read_verdict(found.verdict))
