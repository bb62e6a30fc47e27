"""The run folder: state and pending actions, saved before they are performed, and a log of all decisions."""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prism.errors import BadFileError, InputError
from prism.machine.files import append_durably, write_durably
from prism.records.documents import Document
from prism.recover.supervise.actions import Action, action_from_json
from prism.recover.supervise.clock import ClockMark
from prism.recover.supervise.config import SuperviseConfig
from prism.recover.supervise.events import Event
from prism.recover.supervise.state import JobState

STATE_FILE = "state.json"
DECISIONS_FILE = "decisions.log"
DECISIONS_JSON_FILE = "decisions.jsonl"
_LOCK_FILE = "lock"


class RunBusyError(InputError):
    """Another supervisor is running this run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a restarted supervisor continues from."""

    state: JobState
    pending: list[Action]
    clock: ClockMark
    read_bytes: int  # of the attempt's progress file


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    """What state.json holds; an action has its class under `action`."""

    state: JobState
    pending: tuple[dict[str, Any], ...]
    clock: ClockMark
    read_bytes: int


STATE = Document(name="prism.supervise", version=1, kind=_Saved)


class Journal:
    """One run folder, owned by one supervisor at a time."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(run_dir / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise BadFileError(f"{run_dir}: cannot be used as run folder ({error.strerror}); name another") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = (run_dir / _LOCK_FILE).read_text().strip() or "another process"
            raise RunBusyError(
                f"{run_dir}: already supervised by {owner}; see 'prism supervise status {run_dir}', "
                "or name another --run-dir"
            ) from None
        os.set_inheritable(self._lock, False)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)

    def load(self, config: SuperviseConfig) -> Snapshot | None:
        """The saved state; None for a new run."""
        return read_snapshot(self.run_dir, config)

    def commit(self, snapshot: Snapshot) -> None:
        """Save the state. Actions are performed only after this."""
        pending = tuple({"action": type(action).__name__, **asdict(action)} for action in snapshot.pending)
        saved = _Saved(state=snapshot.state, pending=pending, clock=snapshot.clock, read_bytes=snapshot.read_bytes)
        document = STATE.to_mapping(saved)
        del document["state"]["config"]  # the user's, read anew at each start; it may hold addresses with secrets
        write_durably(self.run_dir / STATE_FILE, json.dumps(document) + "\n")

    def tell(self, event: Event, actions: list[Action]) -> None:
        """Append a decision to both logs."""
        moment = time.strftime("%Y-%m-%d %H:%M:%S")
        lines = [f"{moment}  {describe(action)}" for action in actions]
        append_durably(self.run_dir / DECISIONS_FILE, "".join(f"{line}\n" for line in lines))
        document = {
            "time": time.time(),
            "event": {"kind": type(event).__name__, **asdict(event)},
            "actions": [{"action": type(a).__name__, **asdict(a)} for a in actions],
        }
        append_durably(self.run_dir / DECISIONS_JSON_FILE, json.dumps(document, default=str) + "\n")

    def close(self) -> None:
        """Release the lock of the run."""
        os.close(self._lock)


def describe(action: Action) -> str:
    """An action as one line of the log."""
    fields = asdict(action)
    match type(action).__name__:
        case "Notify":
            return f"{fields['level']:8} {fields['text']}"
        case "Finish":
            return f"{'finish':8} {fields['outcome']}: {fields['text']}"
        case "Launch":
            many = "" if fields["num_hosts"] == 1 else "s"
            where = ", ".join(fields["hosts"]) or f"{fields['num_hosts']} host{many}"
            newest = "from the newest checkpoint, if there is one"
            start = newest if fields["resume_step"] is None else f"from a checkpoint <= {fields['resume_step']}"
            return f"{'launch':8} attempt {fields['attempt']} on {where}, {start}"
        case "Kill" if not fields["grace_s"]:
            return f"{'clear':8} what is left of attempt {fields['attempt']}"
        case "Kill":
            return f"{'end':8} attempt {fields['attempt']}, {fields['grace_s']:g} s to save"
        case "Explain":
            code = "no exit code" if fields["code"] is None else f"exit code {fields['code']}"
            return f"{'explain':8} attempt {fields['attempt']}, which ended with {code}"
        case "Shadow":
            return f"{'shadow':8} {fields['judgement']}: {fields['text']}"
        case "LookClosely":
            return f"{'look':8} at the stacks of attempt {fields['attempt']}, which is silent"
        case "Cordon":
            return f"{'cordon':8} {fields['host']} for {fields['hours']:g} h: {fields['reason']}"
        case name:
            told = ", ".join(f"{k} {v}" for k, v in fields.items())
            return f"{name.lower():8} {told}"


def read_snapshot(run_dir: Path, config: SuperviseConfig) -> Snapshot | None:
    """Read a run folder's state; None where there is none."""
    path = run_dir / STATE_FILE
    if not path.is_file():
        return None
    saved = STATE.read(path)
    saved.state.config = config
    try:
        pending = [action_from_json(action) for action in saved.pending]
    except (KeyError, TypeError, ValueError) as error:
        raise BadFileError(f"{path}: 'pending' holds an action of another version ({error}); upgrade") from None
    return Snapshot(state=saved.state, pending=pending, clock=saved.clock, read_bytes=saved.read_bytes)
