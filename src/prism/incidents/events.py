"""What happens to incidents, and what then is to be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prism.incidents.incident import Incident, Place, Tells

HOUR_NS = 3_600 * 10**9  # what a command found that ran once is of its time; after this nobody knows any more
DAY_NS = 24 * HOUR_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One problem as one source shows it now. `well`: evidence that it is over; "" while it goes on."""

    key: str  # the same for as long as the source means the same problem
    kind: str
    place: Place
    since_ns: int
    until_ns: int
    text: str
    sure: float
    job: str = ""
    job_key: str = ""
    hosts: tuple[str, ...] = ()  # of the place
    job_hosts: tuple[str, ...] = ()
    lost_gpu_s: float = 0.0
    gpus_lost: float | None = None  # None: the cost over the time it took
    cause: str = ""
    advice: str = ""
    well: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Studied:
    """A source has looked at a job until a moment and would have shown what is wrong; `text` says what it compared."""

    job_key: str
    hosts: tuple[str, ...]
    until_ns: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened."""

    now_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Look(Event):
    """Everything that a source shows, which was written at `at_ns`.

    `holds_ns`: how long its words hold; 0 for one that is written anew as long as its command runs. `alive`: its
    command runs, or has done its work.
    """

    source: str
    tool: str
    at_ns: int
    sightings: tuple[Sighting, ...] = ()
    studied: tuple[Studied, ...] = ()
    holds_ns: int = HOUR_NS
    alive: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLost(Event):
    """A source is damaged, late, gone, or its command ended: what it told is neither known to go on nor to be over."""

    source: str
    tool: str
    state: Literal["damaged", "late", "gone", "ended"]
    why: str
    since_ns: int
    blind: bool = False  # it watched something that still runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged(Event):
    """A person has taken it up."""

    id: str
    who: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed(Event):
    """A person says that it is over."""

    id: str
    who: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed(Event):
    """What was to be told is in the sender's queue."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Event):
    """Time passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Store an incident as it is now."""

    incident: Incident


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Tell people; the incident is stored first."""

    incident: Incident
    what: Tells
    number: int  # counts what was told of it


Action = Keep | Tell
