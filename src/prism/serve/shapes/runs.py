"""Supervised runs and their failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prism.serve.shapes.jobs import Health

Tone = Literal["good", "info", "warning", "bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A supervised run in a table."""

    key: str
    place: str
    health: Health
    state: str
    attempt: int
    step: int | None  # null before one was seen
    last_good_step: int | None
    num_failures: int
    num_rollbacks: int
    skipped: tuple[str, ...]
    supervised: bool
    updated_ns: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One decision: what was seen, what was done about it."""

    time_s: float
    tone: Tone
    title: str
    details: tuple[str, ...]
    verdict_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPoint:
    """A reported loss; null where it was not finite."""

    attempt: int
    step: int
    time_s: float
    loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something on the loss curve."""

    kind: Literal["saved", "save_failed", "restored", "broken", "failure", "rollback"]
    attempt: int
    step: int
    time_s: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InvestigationRow:
    """The verdict that `prism investigate` left in an attempt's folder."""

    attempt: int
    path: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDocument:
    """One run: its story and its loss curve with marks."""

    run: RunRow
    story: tuple[Chapter, ...]
    losses: tuple[LossPoint, ...]
    losses_left_out: int
    marks: tuple[Mark, ...]
    investigations: tuple[InvestigationRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLine:
    """A line of a log; `cited` where the verdict rests on it."""

    line: int
    text: str
    cited: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Evidence in its place. `file` is "" where the log is not in the folder, so that only cited lines are known."""

    file: str
    lines: tuple[ContextLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow:
    """A verdict in a table; `id` asks for its context."""

    id: str
    origin: str  # file of verdicts, or the run whose supervisor asked
    log: str
    reason: str
    cause: str  # in words
    outcome: str
    category: str
    action: str
    confidence: float
    hosts: tuple[str, ...]
    first_rank: int | None
    evidence: str  # the first line
    mitigation: str
    lines_read: int
    lines_kept: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictDocument:
    """A verdict with its evidence in place."""

    verdict: VerdictRow
    context: tuple[Context, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostHistory:
    """What is known against a host."""

    host: str
    cordoned: bool
    num_failures: int
    num_strikes: int
    num_cordons: int
    num_findings: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailuresDocument:
    """Everything on the page but the details of one verdict or run."""

    verdicts: tuple[VerdictRow, ...]
    hosts: tuple[HostHistory, ...]
    runs: tuple[RunRow, ...]
