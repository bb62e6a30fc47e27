"""The status of a supervised run, read from its folder."""

from __future__ import annotations

import fcntl
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prism.errors import BadFileError
from prism.recover.progress import attempt_dir
from prism.recover.supervise import events
from prism.recover.supervise.clock import RunClock
from prism.recover.supervise.config import SuperviseConfig
from prism.recover.supervise.hosts import HostBook
from prism.recover.supervise.journal import DECISIONS_FILE, read_snapshot
from prism.recover.supervise.watch import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class HostHistory:
    """A host that was taken out of use at least once."""

    host: str
    num_cordons: int
    reasons: tuple[str, ...]  # oldest first
    hours_left: float  # until it is back in use; 0 if it is


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The status that `prism supervise status` shows."""

    run_dir: str
    supervised: bool  # whether a supervisor is at work now
    phase: str
    outcome: str
    outcome_text: str
    attempt: int
    hosts: tuple[str, ...]
    cordoned: tuple[str, ...]
    host_history: tuple[HostHistory, ...]
    step: int
    loss: float | None
    last_good_step: int | None
    num_failures: int
    num_rollbacks: int
    skipped_batches: tuple[str, ...]
    shadows: tuple[str, ...]  # the newest judgements that were not acted on
    decisions: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The document that `prism supervise status --json` prints."""
        return {"schema": "prism.supervise-status/1", **asdict(self)}


def read_status(run_dir: Path, num_decisions: int = 10) -> RunStatus:
    """Read a run folder."""
    found = read_snapshot(run_dir, SuperviseConfig())
    if found is None:
        raise BadFileError(f"{run_dir}: no supervised run here; name the folder given as --run-dir")
    state = found.state
    steps = [
        event
        for event in Watch(attempt_dir(run_dir, state.attempt), found.read_bytes).poll(0.0)
        if isinstance(event, events.StepDone)
    ]
    saved = [
        event.step
        for event in Watch(attempt_dir(run_dir, state.attempt)).poll(0.0)
        if isinstance(event, events.Saved) and event.healthy
    ]
    log = run_dir / DECISIONS_FILE
    decisions = log.read_text(errors="replace").splitlines()[-num_decisions:] if log.exists() else []
    return RunStatus(
        run_dir=str(run_dir),
        supervised=is_supervised(run_dir),
        phase=state.phase.value,
        outcome=state.outcome,
        outcome_text=state.outcome_text,
        attempt=state.attempt,
        hosts=state.hosts,
        cordoned=state.book.cordoned(),
        host_history=_read_history(state.book, RunClock(found.clock).now_s()),
        step=steps[-1].step if steps else state.last_step,
        loss=steps[-1].loss if steps else None,
        last_good_step=max([*state.saved_steps, *saved], default=None),
        num_failures=len(state.failures),
        num_rollbacks=state.num_rollbacks,
        skipped_batches=tuple(map(str, state.skip)),
        shadows=tuple(f"attempt {one.attempt}, {one.judgement}: {one.text}" for one in state.shadows),
        decisions=tuple(decisions),
    )


def _read_history(book: HostBook, now_s: float) -> tuple[HostHistory, ...]:
    return tuple(
        HostHistory(
            host=host,
            num_cordons=record.num_cordons,
            reasons=tuple(record.reasons),
            hours_left=round(max(0.0, (record.cordoned_until_s or 0.0) - now_s) / 3_600.0, 2),
        )
        for host, record in book.records.items()
        if record.num_cordons
    )


def is_supervised(run_dir: Path) -> bool:
    """Whether some supervisor holds the run's lock."""
    try:
        descriptor = os.open(run_dir / "lock", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
