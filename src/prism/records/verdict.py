"""VERDICT: why a job failed, what to do about it, and the log lines that prove it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from prism.errors import BadRowError

Category = Literal["infrastructure", "framework", "script", "unknown"]
Action = Literal["restart", "isolate_and_restart", "rollback", "stop", "none"]
NO_FAILURE = "none"

_REASONS: Mapping[Category, str] = {
    "infrastructure": (
        "NVLinkError CUDAError NodeFailure ECCError NetworkError ConnectionError S3StorageError NCCLTimeoutError "
        "NCCLRemoteError"
    ),
    "framework": (
        "DataloaderKilled AttributeError OutOfMemoryError RuntimeError AssertionError ValueError ZeroDivisionError "
        "ModelLoadingError DatasetLoadingError"
    ),
    "script": (
        "FileNotFoundError OSError TypeError NameError PermissionError ImportError KeyError SyntaxError "
        "ArgumentError CalledProcessError IndexError"
    ),
    "unknown": f"Unknown {NO_FAILURE}",
}
CATEGORY_OF_REASON: Mapping[str, Category] = {
    reason: category for category, reasons in _REASONS.items() for reason in reasons.split()
}
"""The 29 failure reasons of the Acme study (NSDI 2024) and the class each belongs to, `Unknown`, and `none`."""
FAILURE_REASONS: tuple[str, ...] = tuple(reason for reason in CATEGORY_OF_REASON if reason != NO_FAILURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceLine:
    """A log line that supports the verdict; `line` counts from 1 in `file`."""

    line: int
    text: str
    file: str | None = None
    origin: str | None = None  # who wrote it: kernel, scheduler, launcher, framework or application


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The root cause of one job's failure, or that it did not fail; `notes` says what the logs cannot show."""

    log: str
    reason: str
    category: Category
    action: Action
    confidence: float
    evidence: tuple[EvidenceLine, ...] = ()
    hosts: tuple[str, ...] = ()
    first_rank: int | None = None
    lines_read: int = 0
    lines_kept: int = 0
    mitigation: str = ""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The document form that `prism explain --json` prints."""
        document = asdict(self)
        document["hosts"], document["notes"] = list(self.hosts), list(self.notes)
        document["evidence"] = [{k: v for k, v in asdict(e).items() if v is not None} for e in self.evidence]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any], where: str = "verdict") -> Verdict:
        """Read what `to_json` wrote."""
        for key, allowed in (
            ("reason", tuple(CATEGORY_OF_REASON)),
            ("category", get_args(Category)),
            ("action", get_args(Action)),
        ):
            if document.get(key) not in allowed:
                raise BadRowError(f"{where}: '{key}' is {document.get(key)!r}, expected one of {', '.join(allowed)}")
        known = {k: document[k] for k in cls.__dataclass_fields__ if k in document}
        known["hosts"], known["notes"] = tuple(document.get("hosts", ())), tuple(document.get("notes", ()))
        known["evidence"] = tuple(EvidenceLine(**e) for e in document.get("evidence", ()))
        return cls(**known)
