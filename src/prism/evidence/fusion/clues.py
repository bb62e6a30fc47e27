"""A clue: what one source reports, in a common form, so that sources can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

SuspectType = Literal["rank", "host", "gpu", "link", "program"]
Source = Literal["flight_recorder", "flows", "log", "kineto", "counters", "ras", "inspector", "stacks", "rank_logs"]
# What can happen to a job: it stops (a hang, or the end of a process), or it continues slowly.
Effect = Literal["stop", "slow"]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Suspect:
    """A possible culprit."""

    type: SuspectType
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Clue:
    """What one source reports: what happened, the culprit, and the confidence of this source alone."""

    source: Source
    what: str
    text: str
    suspects: tuple[Suspect, ...]  # together; empty if the source names no culprit
    since_ns: int | None
    confidence: float
    alternatives: tuple[Suspect, ...] = ()
    advice: str = ""
    shows: Effect | None = None  # whether the job stopped or continued; None: the source did not see the job itself
    causes: tuple[Effect, ...] = ("stop", "slow")  # what its suspects can do to a job
    one_of: bool = False  # whether one of the suspects is meant, and not all of them


def host_of(suspect: Suspect, hosts: Mapping[str, str]) -> str | None:
    """The host of a suspect, if it is known."""
    if suspect.type == "host":
        return suspect.id
    if suspect.type == "gpu":
        return suspect.id.split(" ")[0]
    return hosts.get(suspect.id) if suspect.type == "rank" else None
