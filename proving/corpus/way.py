"""One way to make a real job fail (or finish): how it is run, and the truth about it by construction."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CATEGORIES = {
    "infrastructure": "CUDAError ConnectionError ECCError NCCLRemoteError NCCLTimeoutError NVLinkError NetworkError "
    "NodeFailure S3StorageError",
    "framework": "AssertionError AttributeError DataloaderKilled DatasetLoadingError ModelLoadingError "
    "OutOfMemoryError RuntimeError ValueError ZeroDivisionError",
    "script": "ArgumentError CalledProcessError FileNotFoundError ImportError IndexError KeyError NameError OSError "
    "PermissionError SyntaxError TypeError",
}
HALVES = ("developer", "held-back")
FINISHED = "none"
UNKNOWN = "Unknown"  # ended by something outside the 29 reasons, such as a time limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a job may write: logs that are kept, and a folder that is not."""

    name: str
    logs: Path
    scratch: Path


class CannotMake(Exception):
    """This machine lacks what the way needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How one job ends, and what a diagnosis should say about it."""

    name: str
    family: str
    reason: str
    make: Callable[[Place], None]
    proof: str  # a regular expression that the logs must hold, or the job did not end as it was meant to
    also: tuple[str, ...] = ()  # reasons that are as true, where the 29 leave it open
    restarts: bool | None = False  # whether starting again is right; None where that is open
    rank: int | None = None
    host: str | None = None


def category_of(reason: str) -> str | None:
    """The category of a reason in the Acme study; None of a run that ended well or by something else."""
    return next((name for name, reasons in CATEGORIES.items() if reason in reasons.split()), None)


def half_of(name: str) -> str:
    """Which half a way belongs to: a matter of its name alone, so it never moves."""
    return HALVES[hashlib.sha256(f"prism corpus {name}".encode()).digest()[0] % 2]
