"""INCIDENT: one problem from its first sign to its end: who, what, since when, how sure, cost, evidence, what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from prism.incidents.kinds import Owner, Severity, kind_of

State = Literal["open", "lost", "resolved", "expired"]  # lost: lost sight of, neither known to go on nor to be over
Sight = Literal["sees", "well", "lost"]
Tells = Literal["opened", "worse", "resolved", "test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What an incident is about: an endpoint, host, link, switch, stage, group, job, part or source."""

    type: str
    id: str

    def __str__(self) -> str:
        names = self.id.split(",")
        return f"{self.type} {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """What one source says of an incident, and whether it still sees it."""

    source: str  # path of the document
    tool: str  # the command that wrote it
    key: str  # of the sighting within the source
    text: str  # what was measured or read, with units
    sure: float
    lost_gpu_s: float
    since_ns: int
    until_ns: int  # the last moment that the source saw it
    at_ns: int  # when the source was written
    gpus_lost: float = 0.0  # GPU-hours that it takes in an hour
    holds_ns: int = 0  # how long the words of a source hold that is not written anew; 0: it is, while they are true
    sight: Sight = "sees"
    why: str = ""  # evidence that it is well again, or why it is lost sight of
    link: str = ""  # path and query of the page that shows it


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One line of the history of an incident."""

    at_ns: int
    what: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One problem. It is changed by the book alone."""

    id: str
    kind: str
    job: str  # as people call it; "" where it is about no job
    job_key: str
    place: Place
    hosts: tuple[str, ...]
    witnesses: tuple[Witness, ...]
    cause: str = ""  # a sentence, where a log or an exit code says it
    advice: str = ""
    labels: Mapping[str, str] = ()  # type: ignore[assignment]  # of its alert; they never change
    acknowledged_by: str = ""
    acknowledged_ns: int = 0
    closed_ns: int = 0  # by a person, whose word counts until the next sighting
    closed_by: str = ""
    state: State = "open"
    told: bool = False  # people were told that it is open
    waits: tuple[Tells, ...] = ()  # what is decided and not handed to the sender yet
    num_told: int = 0
    history: tuple[Change, ...] = ()

    @property
    def since_ns(self) -> int:
        """Its first sign."""
        return min(witness.since_ns for witness in self.witnesses)

    @property
    def until_ns(self) -> int:
        """The last moment at which a source saw it."""
        return max(witness.until_ns for witness in self.witnesses)

    @property
    def sure(self) -> float:
        """How sure its surest source is, from 0 to 1."""
        return max(witness.sure for witness in self.witnesses)

    @property
    def gpus_lost(self) -> float:
        """GPU-hours that it takes in an hour, by the sources that see it."""
        seen = [witness.gpus_lost for witness in self.witnesses if witness.sight == "sees"]
        return max(seen or [witness.gpus_lost for witness in self.witnesses])

    @property
    def severity(self) -> Severity:
        """How urgent it is."""
        return kind_of(self.kind).severity

    @property
    def owner(self) -> Owner:
        """Who should look first."""
        return kind_of(self.kind).owner

    @property
    def badness(self) -> float:
        """What "worst first" means: GPU-hours lost per hour times sureness."""
        return self.gpus_lost * self.sure

    @property
    def title(self) -> str:
        """One sentence."""
        where = f" ({self.job})" if self.job and self.place.type not in ("job", "log") else ""
        return f"{self.place}{where} {kind_of(self.kind).says}"

    @property
    def action(self) -> str:
        """What to do."""
        return self.advice or kind_of(self.kind).advice

    @property
    def evidence(self) -> str:
        """What the surest source says."""
        return max(self.witnesses, key=lambda w: (w.sight == "sees", w.sure, w.until_ns)).text

    @property
    def why_state(self) -> str:
        """Why it is lost sight of or resolved: the words of each source that says so."""
        if self.state == "resolved" and self.closed_ns:
            return f"closed by {self.closed_by or 'a person'}"
        if self.state == "expired":
            return "nobody has seen it for a day, and nothing shows that it is well"
        wanted = {"resolved": "well", "lost": "lost"}.get(self.state)
        return "; ".join(dict.fromkeys(w.why for w in self.witnesses if w.sight == wanted and w.why))

    def lost_gpu_s(self, now_ns: int) -> float:
        """The cost so far; what stands still goes on costing until somebody sees it well."""
        known = max(witness.lost_gpu_s for witness in self.witnesses)
        stands = kind_of(self.kind).family == "stopped" and self.state in ("open", "lost")
        idle = self.gpus_lost * max(0, now_ns - self.since_ns) / 1e9 if stands else 0.0
        return max(known, idle)

    def to_json(self) -> dict[str, Any]:
        """As it is stored."""
        return {**asdict(self), "labels": dict(self.labels)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Incident:
        """Read what `to_json` wrote; a field of a newer version is left out."""
        known = {name: document[name] for name in cls.__dataclass_fields__ if name in document}
        known["place"] = Place(**known["place"])
        known["witnesses"] = tuple(_read(Witness, row) for row in known["witnesses"])
        known["history"] = tuple(_read(Change, row) for row in known["history"])
        known["hosts"], known["waits"] = tuple(known["hosts"]), tuple(known.get("waits", ()))
        return cls(**known)


def _read(shape: type[Any], row: Mapping[str, Any]) -> Any:
    return shape(**{name: row[name] for name in shape.__dataclass_fields__ if name in row})
