"""VERDICT: how a job ended, why, what to do about it, and the log lines that prove it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from prism.errors import BadRowError
from prism.records.causes import CATEGORY_OF_REASON, FAILURE_REASONS, NO_FAILURE, UNKNOWN, Category, Cause, cause_of

__all__ = ["CATEGORY_OF_REASON", "FAILURE_REASONS", "NO_FAILURE", "Action", "Category", "EvidenceLine", "Verdict"]
Action = Literal["restart", "isolate_and_restart", "rollback", "stop", "none"]
_UNSET = Cause(name="")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceLine:
    """A log line that supports the verdict; `line` counts from 1 in `file`."""

    line: int
    text: str
    file: str | None = None
    origin: str | None = None  # who wrote it: kernel, scheduler, launcher, framework or application


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How one job ended and the root cause if it failed; `notes` says what the logs cannot show.

    `reason` of `prism explain` is one of the 29; `cause` may say what they have no word for, such as a signal. All of
    `reason`, `category`, `action` and `outcome` may hold a value of a newer version.
    """

    log: str
    reason: str
    category: str
    action: str
    confidence: float
    outcome: str = ""
    cause: Cause = _UNSET
    evidence: tuple[EvidenceLine, ...] = ()
    hosts: tuple[str, ...] = ()
    first_rank: int | None = None
    lines_read: int = 0
    lines_kept: int = 0
    mitigation: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.cause is _UNSET:
            object.__setattr__(self, "cause", cause_of(self.reason))
        if not self.outcome:
            object.__setattr__(self, "outcome", self.cause.outcome)

    @property
    def says(self) -> str:
        """What ended the job, in words."""
        return self.cause.text or self.cause.name

    def to_json(self) -> dict[str, Any]:
        """The document form that `prism explain --json` prints."""
        document = asdict(self)
        document["cause"] = self.cause.to_json()
        document["hosts"], document["notes"] = list(self.hosts), list(self.notes)
        document["evidence"] = [{k: v for k, v in asdict(e).items() if v is not None} for e in self.evidence]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any], where: str = "verdict") -> Verdict:
        """Read what `to_json` wrote; a key or value that a newer version added does no harm."""
        for key in ("log", "reason", "action"):
            if not isinstance(document.get(key), str):
                raise BadRowError(f"{where}: '{key}' is {document.get(key)!r}, expected a word of `prism explain`")
        known = {k: document[k] for k in cls.__dataclass_fields__ if k in document}
        known.setdefault("category", cause_of(document["reason"]).category)
        known["confidence"] = float(document.get("confidence") or 0.0)
        cause = document.get("cause")
        known["cause"] = Cause.from_json(cause) if isinstance(cause, Mapping) else cause_of(document["reason"])
        known["hosts"], known["notes"] = tuple(document.get("hosts") or ()), tuple(document.get("notes") or ())
        known["evidence"] = tuple(_read_evidence(line) for line in document.get("evidence") or ())
        return cls(**known)


def unknown_verdict(log: str = "", action: Action = "restart") -> Verdict:
    """The verdict where nothing says why."""
    return Verdict(log=log, reason=UNKNOWN, category="unknown", action=action, confidence=0.0)


def _read_evidence(line: Mapping[str, Any]) -> EvidenceLine:
    return EvidenceLine(**{key: line[key] for key in EvidenceLine.__dataclass_fields__ if key in line})
