"""The record of a run: its status, and everything that decisions need."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from prism.recover.progress import BatchRange
from prism.recover.supervise.config import SuperviseConfig
from prism.recover.supervise.hosts import HostBook
from prism.recover.supervise.losses import LossWatch
from prism.recover.supervise.pace import Pace
from prism.recover.supervise.restarts import Failure
from prism.recover.supervise.rollbacks import RollbackHistory


class Phase(StrEnum):
    """The phase of a run."""

    NEW = "new"
    RUNNING = "running"
    STOPPING = "stopping"  # we ended it and wait for its processes
    EXPLAINING = "explaining"
    EXAMINING = "examining"
    WAITING = "waiting"  # for a pause to pass or a host to come back
    OVER = "over"


class Cause(StrEnum):
    """Why the supervisor ended an attempt."""

    HANG = "hang"
    SLOW = "slow"
    SPIKE = "spike"
    CORRUPTION = "corruption"
    ASKED = "asked"
    RISK = "risk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A judgement that was not acted on."""

    at_s: float
    attempt: int
    judgement: str
    text: str


@dataclass(slots=True, kw_only=True)
class JobRecord:
    """Everything, apart from the settings, that a restarted supervisor needs."""

    config: SuperviseConfig = field(default_factory=SuperviseConfig)
    command: list[str] = field(default_factory=list)  # empty: the manifest's
    phase: Phase = Phase.NEW
    cause: Cause | None = None
    attempt: int = 0
    hosts: tuple[str, ...] = ()
    last_step: int = -1  # of this attempt
    best_step: int = -1  # of the run
    saved_steps: list[int] = field(default_factory=list)  # committed and healthy, in use
    folder: str = ""
    memory: str = ""
    resume_step: int | None = None
    skip: list[BatchRange] = field(default_factory=list)
    num_rollbacks: int = 0
    rollbacks: RollbackHistory = field(default_factory=RollbackHistory)
    failed_at_step: int = -1  # the last step that any failed attempt reached
    told_at_step: int = -1  # the last step that any preempted attempt reached
    told_in_vain: int = 0  # consecutive preempted attempts that reached no new step
    launched_s: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    preempted: bool = False
    save_trouble: bool = False
    due_s: float = 0.0
    own_code: int | None = None  # of the attempt's command, where it ended by itself
    outcome: str = ""
    outcome_text: str = ""
    losses: LossWatch = field(default_factory=LossWatch)
    pace: Pace = field(default_factory=Pace)
    shadows: list[Judged] = field(default_factory=list)  # the newest judgements that were not acted on
    book: HostBook = field(default_factory=HostBook)
    per_day: dict[str, float] = field(default_factory=dict)  # failures of each host, as predicted

    @property
    def place(self) -> str:
        """How far the attempt is, in words."""
        return (
            f"at step {self.last_step}" if self.last_step >= 0 else f"before the first step of attempt {self.attempt}"
        )

    @property
    def exit_code(self) -> int:
        """The exit code of the run: that of a command that failed, in the form that a shell reports."""
        if self.outcome == "done":
            return 0
        code = self.own_code if self.outcome == "failed" else None
        return 1 if not code else code if code > 0 else 128 - code

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.phase is Phase.OVER
