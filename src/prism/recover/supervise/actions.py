"""What the supervisor can do. Every action can be repeated without harm, because a crash may interrupt it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from prism.records.documents import convert
from prism.recover.progress import BatchRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch(Action):
    """Start an attempt. No hosts named: the launcher chooses `num_hosts`, none of the excluded."""

    attempt: int
    hosts: tuple[str, ...]
    num_hosts: int
    excluded: tuple[str, ...] = ()
    resume_step: int | None = None
    skip: tuple[BatchRange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill(Action):
    """End every process of an attempt; with grace they are asked first, so that they can save."""

    attempt: int
    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeStacks(Action):
    """Write the stack of every process of an attempt to a file."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LookClosely(Action):
    """Look at the stacks of a silent attempt twice; nothing is stopped for it."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explain(Action):
    """Find out from its exit code and logs why an attempt ended."""

    attempt: int
    code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Examine(Action):
    """Test hosts against each other."""

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon(Action):
    """Take a host out of use for a while."""

    host: str
    reason: str
    hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncordon(Action):
    """Put a host back into use."""

    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardAfter(Action):
    """Set checkpoints later than a step aside."""

    folder: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify(Action):
    """Report to the operator."""

    level: Literal["info", "warning", "page"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow(Action):
    """A judgement that is not switched on: what was seen, and what would have been done. Nothing is done."""

    judgement: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Action):
    """The run is over."""

    outcome: Literal["done", "stopped", "failed"]
    text: str
    memory: str = ""  # staged states to remove on this host


KINDS: dict[str, type[Action]] = {kind.__name__: kind for kind in Action.__subclasses__()}


def action_from_json(document: dict[str, Any]) -> Action:
    """Read an action from the journal's JSON."""
    return convert({key: value for key, value in document.items() if key != "action"}, KINDS[document["action"]])
