"""What a run knows of the cluster, on disk: its own id, where an attempt is to be found, and how it ended."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from prism.machine.files import write_durably
from prism.recover.supervise.launchers import Look

RECORD_FILE, END_FILE = "kubernetes.json", "kubernetes-end.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRecord:
    """What a later supervisor needs to find an attempt in the cluster."""

    name: str
    namespace: str
    path: str  # of the workload's collection
    uid: str
    selector: str  # of its pods
    num_pods: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """An attempt's end, written down: the cluster forgets."""

    codes: dict[str, int | None]
    first_failed: str | None
    lost: bool
    hosts: tuple[str, ...]


def run_id(run_dir: Path) -> str:
    """A random name of the run, the same for all its supervisors: paths are not unique in a cluster."""
    path = run_dir / RECORD_FILE
    try:
        return str(json.loads(path.read_text())["run"])
    except (OSError, ValueError, KeyError, TypeError):
        run = secrets.token_hex(6)
        run_dir.mkdir(parents=True, exist_ok=True)
        write_durably(path, json.dumps({"run": run}))
        return run


def read_end(folder: Path) -> Look | None:
    """How an attempt ended; None while that is not known."""
    try:
        found = json.loads((folder / END_FILE).read_text())
        ended = _Ended(**{**found, "hosts": tuple(found["hosts"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Look(running=False, codes=ended.codes, first_failed=ended.first_failed, lost=ended.lost, hosts=ended.hosts)


def write_end(folder: Path, look: Look) -> None:
    """Write an attempt's end down: the cluster forgets."""
    ended = _Ended(codes=look.codes, first_failed=look.first_failed, lost=look.lost, hosts=look.hosts)
    write_durably(folder / END_FILE, json.dumps(asdict(ended)))


def read_record(folder: Path) -> WorkloadRecord | None:
    """Where an attempt is to be found; None where it was never started."""
    try:
        return WorkloadRecord(**json.loads((folder / RECORD_FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_record(folder: Path, record: WorkloadRecord) -> None:
    """Write it down; an earlier end of the same attempt counts no more."""
    (folder / END_FILE).unlink(missing_ok=True)
    write_durably(folder / RECORD_FILE, json.dumps(asdict(record)))
