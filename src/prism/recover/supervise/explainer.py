"""Why an attempt ended: from exit codes first, then from the ranks' logs with `prism explain`."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from prism.errors import PrismError
from prism.records.causes import CRASH_SIGNALS, PREEMPTED, cause_of, signal_name
from prism.records.verdict import Verdict, unknown_verdict
from prism.recover.supervise.exits import Ending, read_ending, write_own_words
from prism.recover.supervise.restarts import SURE_ENOUGH


class Explainer(Protocol):
    """Turns an attempt's folder and exit code into a verdict."""

    def __call__(self, folder: Path, code: int | None) -> Verdict:
        """Say why the attempt ended."""


def explain_logs(folder: Path, code: int | None = None) -> Verdict:
    """A signal or a lost peer takes precedence over any traceback. If nothing is clear the reason is Unknown."""
    logs = sorted(folder.glob("*.log"))  # the other files there are written by the supervisor
    ending = read_ending(logs, code)
    if ending.told_to_go:
        return _verdict(folder, PREEMPTED, "it was asked to end (SIGTERM)", ending)
    said = _read(folder, logs, ending)
    if ending.signal is not None:
        return _by_signal(folder, ending, said)
    if ending.peer_lost and said.category != "infrastructure":
        text = "a rank lost the connection to another; the first that went left no other sign"
        return _verdict(folder, "ConnectionError", text, ending)
    return said


def _read(folder: Path, logs: list[Path], ending: Ending) -> Verdict:
    from prism.evidence.logs import diagnose, read_job

    try:
        with tempfile.TemporaryDirectory(prefix="prism-explain-") as copies:
            for path in logs:
                write_own_words(path, Path(copies) / path.name, ending.rank)
            found = diagnose(read_job(copies)).verdict
    except (PrismError, OSError):
        found = None
    if found is None or found.cause.kind in ("unknown", "none"):
        return unknown_verdict(str(folder))
    return replace(found, log=str(folder))


def _by_signal(folder: Path, ending: Ending, said: Verdict) -> Verdict:
    """A crash may have left a reason that names hosts; a plain kill has none in the log.

    Nor has a crash of which the log only repeats the exit code.
    """
    assert ending.signal is not None
    name = signal_name(ending.signal)
    if name in CRASH_SIGNALS and said.category == "infrastructure" and said.confidence >= SURE_ENOUGH:
        return said
    who = "the command" if ending.rank is None else f"rank {ending.rank}"
    return _verdict(folder, name, f"{who} was {cause_of(name).text}", ending)


def _verdict(folder: Path, reason: str, mitigation: str, ending: Ending) -> Verdict:
    return Verdict(
        log=str(folder),
        reason=reason,
        category=cause_of(reason).category,
        action="restart",
        confidence=0.5,
        first_rank=ending.rank,
        mitigation=mitigation,
    )
