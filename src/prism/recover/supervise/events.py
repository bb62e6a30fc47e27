"""What can happen to a supervised run. `now_s` is the time of the run's clock, which never goes back."""

from __future__ import annotations

from dataclasses import dataclass

from prism.records.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened."""

    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Event):
    """Time has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenUp(Event):
    """A person or an init system starts a run again that was stopped or has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RisksRead(Event):
    """The file of risks has changed: failures per day of each host."""

    per_day: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched(Event):
    """The processes of an attempt were started, on these hosts."""

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued(Event):
    """The attempt waits for hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone(Event):
    """A step is done; `trainer_s` is the trainer's monotonic clock. `logged`: read from its log, not reported."""

    step: int
    logged: bool = False
    loss: float | None = None
    grad_norm: float | None = None
    batch: int | None = None
    trainer_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSeen(Event):
    """The job wrote to its log. `in_line`: the log ends within a line."""

    in_line: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked(Event):
    """What two looks at the stacks of a silent attempt showed; `outside`: ranks that hold up all others."""

    attempt: int
    moved: bool
    outside: tuple[int, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(Event):
    """The trainer began something other than steps, such as an evaluation; its silence is not a hang."""

    what: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Event):
    """The trainer continues with steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderOpened(Event):
    """The trainer reported where its checkpoints are, on storage and in memory."""

    folder: str
    memory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored(Event):
    """The trainer continued from a checkpoint."""

    step: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved(Event):
    """A checkpoint was verified and committed."""

    step: int
    healthy: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailed(Event):
    """A checkpoint could not be written; training continues."""

    step: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Degraded(Event):
    """Checkpoints work in a lesser way than configured; training continues."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointBroken(Event):
    """A committed checkpoint was found damaged and set aside."""

    step: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrupted(Event):
    """The trainer found that a rank computes wrong numbers."""

    step: int
    last_clean_step: int  # up to here the state can be trusted
    hosts: tuple[str, ...]  # of the ranks named
    proven: bool  # exactly one rank, and nothing else can be the cause
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempted(Event):
    """The trainer was asked to end; it has saved and exits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited(Event):
    """The attempt is over. `code` None: its processes are gone without an exit code; `host` ended first."""

    code: int | None
    host: str | None = None
    lost: bool = False  # the scheduler says that this host is down
    saved: str = ""  # a file like a checkpoint that is newer than the launch, where no steps are reported


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained(Event):
    """Why the attempt ended, according to its logs."""

    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined(Event):
    """The result of the host test."""

    condemned: tuple[str, ...]
    slow: tuple[str, ...] = ()  # those of them that work, but slowly
    bad_links: tuple[tuple[str, str], ...] = ()
    num_tests: int = 0
    error: str = ""
    note: str = ""  # what a person should know about the tests


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked(Event):
    """A person asks to end the run."""
