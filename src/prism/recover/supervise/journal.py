"""The run folder: state and pending actions, saved before they are performed, and a log of all decisions."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import time
import typing
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from prism.errors import BadFileError, InputError
from prism.machine.files import append_durably, write_durably
from prism.recover.manifest import check_schema
from prism.recover.supervise.actions import Action, action_from_json
from prism.recover.supervise.clock import ClockMark
from prism.recover.supervise.config import SuperviseConfig
from prism.recover.supervise.events import Event
from prism.recover.supervise.state import JobState

STATE_FORMAT = "prism.supervise"
STATE_VERSION = 1
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
        document = {
            "schema": f"{STATE_FORMAT}/{STATE_VERSION}",
            "clock": asdict(snapshot.clock),
            "read_bytes": snapshot.read_bytes,
            "pending": [{"action": type(a).__name__, **asdict(a)} for a in snapshot.pending],
            "state": _to_json(snapshot.state),
        }
        write_durably(self.run_dir / STATE_FILE, json.dumps(document, default=str) + "\n")

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
    try:
        document = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise BadFileError(f"{path}: not readable as supervisor state ({error}); name another run folder") from None
    check_schema(document.get("schema") if isinstance(document, dict) else None, STATE_FORMAT, STATE_VERSION, path)
    try:
        state: JobState = _from_json(JobState, {**document["state"], "config": config})
        return Snapshot(
            state=state,
            pending=[action_from_json(a) for a in document["pending"]],
            clock=ClockMark(**document["clock"]),
            read_bytes=int(document["read_bytes"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadFileError(f"{path}: field missing or wrong ({error!r}); name another run folder") from None


def _to_json(state: JobState) -> dict[str, Any]:
    names = [f.name for f in dataclasses.fields(state) if f.name != "config"]
    values = {name: getattr(state, name) for name in names}
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return value.value if isinstance(value, Enum) else value


def _from_json(hint: Any, value: Any) -> Any:
    """Build values from JSON by their declared types, without fields that a newer version added."""
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        hints = typing.get_type_hints(hint)
        return typing.cast(Any, hint)(**{k: _from_json(hints[k], v) for k, v in value.items() if k in hints})
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is list:
        return [_from_json(inner[0], part) for part in value]
    if origin is tuple:
        return tuple(_from_json(inner[0], part) for part in value)
    if origin is dict:
        return {key: _from_json(inner[1], part) for key, part in value.items()}
    if inner and type(None) in inner and value is not None:
        return _from_json(next(option for option in inner if option is not type(None)), value)
    return value
