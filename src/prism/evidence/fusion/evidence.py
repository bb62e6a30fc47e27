"""Sort the files of a folder by kind, and read each kind into clues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from prism.errors import BadFileError, InputError
from prism.evidence.fusion import slow_clues, stop_clues
from prism.evidence.fusion.clues import Clue
from prism.evidence.logs import diagnose as explain_log
from prism.evidence.logs import read_job
from prism.evidence.traces.counters import find_anomalies, looks_like_counters, read_counter_csv
from prism.evidence.traces.flight_recorder import Dump, looks_like_dump, read_dump
from prism.evidence.traces.hang import find_hang
from prism.evidence.traces.inspector import find_waited_for, looks_like_inspector, read_inspector
from prism.evidence.traces.kernel_log import read_gpu_errors
from prism.evidence.traces.kineto import looks_like_trace
from prism.evidence.traces.late_calls import find_late_rank
from prism.evidence.traces.nccl_log import NcclCommunicator, map_hosts, read_nccl_logs
from prism.evidence.traces.profiled_ranks import ProfiledJob, study_files
from prism.evidence.traces.rank_logs import RankLog, find_ahead, read_rank_logs
from prism.evidence.traces.ras import find_laggards, parse_ras
from prism.evidence.traces.standing import Standing, looks_like_stacks, read_stacks
from prism.evidence.traces.watchdog import find_behind

LOG_ENDINGS = (".log", ".out", ".err", ".txt", ".jsonl", ".gz", ".zst", ".xz", ".bz2")
_MOST_FILES = 100_000
_HEAD_BYTES = 1 << 16


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


@dataclass(slots=True)
class _Sorted:
    dumps: list[Path] = field(default_factory=list)
    traces: list[Path] = field(default_factory=list)
    inspector: list[Path] = field(default_factory=list)
    ras: list[Path] = field(default_factory=list)
    counters: list[Path] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)
    stacks: list[Path] = field(default_factory=list)


def gather(folder: Path, *, since_ns: int | None = None, say: Callable[[str], None] = lambda text: None) -> Evidence:
    """Read everything in a folder; a note names what cannot be read."""
    if not folder.is_dir():
        raise BadFileError(f"{folder}: not a folder; give the one that holds the dumps and logs of one job")
    files = _sort(folder)
    evidence = Evidence()
    evidence.kinds = {
        kind: len(paths)
        for kind in ("dumps", "traces", "inspector", "ras", "counters", "logs", "stacks")
        if (paths := getattr(files, kind))
    }
    for kind, count in evidence.kinds.items():
        say(f"{count} files: {kind}")
    readers: list[tuple[list[Path], Callable[[Evidence, list[Path]], None]]] = [
        (files.dumps, lambda e, paths: _read_dumps(e, paths, read_rank_logs(files.logs), read_stacks(files.stacks))),
        (files.stacks, lambda e, paths: _read_stacks(e, paths, read_rank_logs(files.logs))),
        (files.traces, _read_traces),
        (files.inspector, _read_inspector),
        (files.ras, _read_ras),
        (files.counters, lambda e, paths: _read_counters(e, paths, since_ns)),
        (files.logs, lambda e, paths: _read_system_logs(e, paths, since_ns)),
        (files.logs, lambda e, paths: _read_job_logs(e, paths, folder)),
    ]
    for paths, read in readers:
        if paths:
            read(evidence, paths)
    return evidence


def _sort(folder: Path) -> _Sorted:
    found = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    if len(found) > _MOST_FILES:
        raise BadFileError(f"{folder}: more than {_MOST_FILES:,} files; give the folder of one job")
    files = _Sorted()
    for path in found:
        if looks_like_dump(path):
            files.dumps.append(path)
        elif looks_like_stacks(path):
            files.stacks.append(path)
        elif looks_like_inspector(path):
            files.inspector.append(path)
        elif _looks_like_ras(path):
            files.ras.append(path)
        elif looks_like_counters(path):
            files.counters.append(path)
        elif looks_like_trace(path):
            files.traces.append(path)
        elif path.suffix in LOG_ENDINGS or path.name in ("messages", "syslog", "dmesg"):
            files.logs.append(path)
    return files


def _looks_like_ras(path: Path) -> bool:
    """Whether a file is what `ncclras` printed."""
    if path.suffix not in (".json", ".txt", ".out", ".log", ""):
        return False
    with path.open("rb") as handle:
        head = handle.read(_HEAD_BYTES)
    if head.lstrip()[:1] == b"{":
        return b'"communicators"' in head and b'"collective_counts"' in head
    return b"Job summary" in head and b"Communicators..." in head


def _read_dumps(
    evidence: Evidence, files: Sequence[Path], logs: Sequence[RankLog], standings: Sequence[Standing]
) -> None:
    ranks = {log.rank for log in logs}
    world_size = len(ranks) if ranks == set(range(len(ranks))) else None
    lost_peers = any(log.lost_peer for log in logs)
    stood_in = {log.rank: str(log.stood_in) for log in logs if log.lost_peer and log.stood_in != "unknown"}
    # Ranks of a healthy job are often inside collectives too, so a stack alone does not mark a call as unfinished.
    stood_in |= {s.rank: str(s.where) for s in standings if s.where in ("message", "elsewhere")}
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
    if not dumps:
        return
    hang = find_hang(
        [dumps[r] for r in sorted(dumps)], world_size=world_size, stood_in=stood_in, ahead=find_ahead(logs)
    )
    evidence.alive = hang.alive
    evidence.num_ranks = max(evidence.num_ranks, len(dumps) + len(hang.missing))
    if hang.missing:
        shown = ", ".join(str(r) for r in hang.missing[:10]) + (" ..." if len(hang.missing) > 10 else "")
        evidence.notes.append(f"{len(hang.missing)} ranks left no dump: {shown}")
    evidence.notes += hang.notes
    clue = stop_clues.read_hang(hang)
    if lost_peers and hang.what in ("absent", "missing_dump", "stuck"):
        # Failed ranks write dumps after their calls were removed, so it is uncertain which ranks waited.
        clue = replace(clue, confidence=clue.confidence * 0.4)
    evidence.clues.append(clue)
    late = find_late_rank([dumps[r] for r in sorted(dumps)]) if hang.what == "none" else None
    if late is not None:
        evidence.clues.append(slow_clues.read_late_rank(late))


def _read_stacks(evidence: Evidence, files: Sequence[Path], logs: Sequence[RankLog]) -> None:
    lost_peer = {log.rank for log in logs if log.lost_peer}
    evidence.clues += stop_clues.read_standings(read_stacks(files), lost_peer=lost_peer)


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


def _read_system_logs(evidence: Evidence, files: Sequence[Path], since_ns: int | None) -> None:
    """Lines that drivers and NCCL wrote, in any of the logs."""
    errors = read_gpu_errors(files)
    if since_ns is not None:
        errors = [e for e in errors if e.at_ns is None or e.at_ns >= since_ns]
    evidence.clues += stop_clues.read_gpu_errors(errors)
    evidence.clues += stop_clues.read_log_ends(read_rank_logs(files), evidence.alive)
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
    if found.verdict.cause.kind not in ("unknown", "none"):
        evidence.clues.append(stop_clues.read_verdict(found.verdict))
