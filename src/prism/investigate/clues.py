"""A clue: what one source says happened, in one shape, so that sources can agree or disagree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

SuspectType = Literal["rank", "host", "gpu", "link", "program"]
Source = Literal["flight_recorder", "flows", "log", "kineto", "counters", "ras", "inspector", "stacks", "rank_logs"]
# What happens to a job: it stops (a hang, or the end of a process), or it runs on slowly.
Effect = Literal["stop", "slow"]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Suspect:
    """Someone who may be to blame."""

    type: SuspectType
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Clue:
    """What one source says: what happened, who did it, and how sure that source is alone."""

    source: Source
    what: str
    text: str
    suspects: tuple[Suspect, ...]  # together; empty where the source names nobody
    since_ns: int | None
    confidence: float
    alternatives: tuple[Suspect, ...] = ()
    advice: str = ""
    shows: Effect | None = None  # that the job stopped, or that it ran on; None: the source did not see the job itself
    causes: tuple[Effect, ...] = ("stop", "slow")  # what its suspects can do to a job
    one_of: bool = False  # whether one of the suspects is meant, and not all of them


def host_of(suspect: Suspect, hosts: Mapping[str, str]) -> str | None:
    """The host that a suspect sits on, where that is known."""
    if suspect.type == "host":
        return suspect.id
    if suspect.type == "gpu":
        return suspect.id.split(" ")[0]
    return hosts.get(suspect.id) if suspect.type == "rank" else None
