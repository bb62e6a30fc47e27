"""`investigate`: a folder in, one verdict out. The only file that chains the readers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism.errors import BadFileError, InputError
from prism.explain import diagnose as explain_log
from prism.explain import read_job
from prism.investigate.clues import Clue, Suspect, read_hang, read_verdict
from prism.investigate.fusion import Fused, fuse
from prism.traces.flight_recorder import Dump, looks_like_dump, read_dump
from prism.traces.hang import find_hang

_LOG_ENDINGS = (".log", ".out", ".err", ".txt", ".jsonl", ".gz", ".zst", ".xz", ".bz2")
_MOST_FILES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Investigation:
    """One verdict, the clues it rests on, and what was not there to be read."""

    fused: Fused
    clues: tuple[Clue, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The document form that `prism investigate --json` prints."""
        verdict = self.fused
        return {
            "schema": "prism.investigation/1",
            "verdict": {
                "what": verdict.what,
                "culprits": [_name(s) for s in verdict.culprits],
                "since_ns": verdict.since_ns,
                "confidence": round(verdict.confidence, 3),
                "alternatives": [_name(s) for s in verdict.alternatives],
                "next": verdict.advice,
            },
            "evidence": [{"source": c.source, "text": c.text} for c in self.clues],
            "notes": list(self.notes),
        }


def investigate(
    folder: Path, extra: Sequence[Clue] = (), *, say: Callable[[str], None] = lambda text: None
) -> Investigation:
    """Read whatever is in a folder; `extra` holds clues of other sources, such as flow records."""
    if not folder.is_dir():
        raise BadFileError(f"{folder}: not a folder; give the one that holds the dumps and logs of one job")
    files = _list_files(folder)
    notes: list[str] = []
    dump_files = [f for f in files if looks_like_dump(f)]
    log_files = [f for f in files if f not in set(dump_files) and f.suffix in _LOG_ENDINGS]
    clues = [*extra]
    if dump_files:
        say(f"{len(dump_files)} Flight Recorder dumps")
        clues += _read_dumps(dump_files, notes)
    if log_files:
        say(f"{len(log_files)} log files")
        clues += _read_logs(folder, log_files, notes)
    if not clues:
        raise BadFileError(
            f"{folder}: holds nothing that can be read; Flight Recorder dumps end in the rank's number (dump_17), "
            "logs in "
            f"{', '.join(_LOG_ENDINGS[:4])}"
        )
    if not dump_files:
        notes.append(
            "no Flight Recorder dumps: set TORCH_FR_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1 and "
            "TORCH_FR_DUMP_TEMP_FILE next time, and a hang names its rank"
        )
    return Investigation(fused=fuse(clues), clues=tuple(clues), notes=tuple(notes))


def _list_files(folder: Path) -> list[Path]:
    found = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    if len(found) > _MOST_FILES:
        raise BadFileError(f"{folder}: more than {_MOST_FILES:,} files; give the folder of one job")
    return found


def _read_dumps(files: Sequence[Path], notes: list[str]) -> list[Clue]:
    dumps: dict[int, Dump] = {}
    for path in files:
        try:
            dump = read_dump(path)
        except InputError as error:
            notes.append(str(error))  # one bad dump of many is a fact, not the end
            continue
        if dump.rank in dumps:
            raise BadFileError(f"{path}: rank {dump.rank} is also in {dumps[dump.rank].path}; give one folder per job")
        dumps[dump.rank] = dump
    if not dumps:
        return []
    hang = find_hang([dumps[r] for r in sorted(dumps)])
    if hang.missing:
        shown = ", ".join(str(r) for r in hang.missing[:10]) + (" ..." if len(hang.missing) > 10 else "")
        notes.append(f"{len(hang.missing)} ranks left no dump: {shown}")
    return [read_hang(hang)]


def _read_logs(folder: Path, files: Sequence[Path], notes: list[str]) -> list[Clue]:
    """One job's logs are read together, as `prism explain FOLDER` does."""
    parents = {f.parent for f in files}
    try:
        found = explain_log(read_job(str(parents.pop() if len(parents) == 1 else folder)))
    except InputError as error:
        notes.append(str(error))
        return []
    return [read_verdict(found.verdict)] if found.verdict.reason not in ("Unknown", "none") else []


def _name(suspect: Suspect) -> dict[str, str]:
    return {"type": suspect.type, "id": suspect.id}
