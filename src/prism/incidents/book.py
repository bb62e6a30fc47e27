"""The book of incidents: an event comes in, actions go out; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from prism.incidents.events import (
    DAY_NS,
    Acknowledged,
    Action,
    Closed,
    Event,
    Handed,
    Keep,
    Look,
    Sighting,
    SourceLost,
    Studied,
    Tell,
    Tick,
)
from prism.incidents.incident import Change, Incident, Place, Sight, State, Tells, Witness
from prism.incidents.kinds import SEVERITIES, kind_of, words
from prism.incidents.merging import MergeConfig, is_same_fault
from prism.records.findings import label_alert


@dataclass(frozen=True, slots=True, kw_only=True)
class BookConfig:
    """When something unseen is lost sight of, when it is forgotten, and what is worth telling."""

    merge: MergeConfig = field(default_factory=MergeConfig)
    expire_ns: int = DAY_NS  # what nobody saw for so long is history, and calls nobody
    kept_ns: int = 400 * DAY_NS
    least_lost_gpu_s: float = 0.0  # cheaper ones are shown and told to nobody
    worse: float = 4.0  # told again when it costs so many times what it cost when it was told
    most_history: int = 200


@dataclass(slots=True)
class IncidentBook:
    """All incidents, and what each source said last."""

    config: BookConfig = field(default_factory=BookConfig)
    incidents: dict[str, Incident] = field(default_factory=dict)
    next_id: int = 1
    _job_hosts: dict[str, frozenset[str]] = field(default_factory=dict)  # by job key
    _told_cost: dict[str, float] = field(default_factory=dict)
    _changed: dict[str, None] = field(default_factory=dict)
    _by_key: dict[tuple[str, str], str] = field(default_factory=dict)  # id, by source and key of a witness
    _by_source: dict[str, set[str]] = field(default_factory=dict)

    def restore(self, incidents: Iterable[Incident]) -> None:
        """Go on with what an earlier process stored."""
        for one in incidents:
            self._put(one)
            self.next_id = max(self.next_id, _number(one.id) + 1)
        self._changed = {}

    def handle(self, event: Event) -> list[Action]:
        """What to store and whom to tell after an event."""
        self._changed = {}
        match event:
            case Look():
                self._take_look(event)
            case SourceLost():
                self._lose_source(event)
            case Acknowledged() if event.id in self.incidents:
                found = self.incidents[event.id]
                self._put(_note(replace(found, acknowledged_by=event.who or "a person", acknowledged_ns=event.now_ns),
                                event.now_ns, "acknowledged", f"by {event.who or 'a person'}"))  # fmt: skip
            case Closed() if event.id in self.incidents:
                who, found = event.who or "a person", self.incidents[event.id]
                self._put(
                    _note(replace(found, closed_ns=event.now_ns, closed_by=who), event.now_ns, "closed", f"by {who}")
                )
            case Handed() if event.id in self.incidents:
                self._put(replace(self.incidents[event.id], waits=()))
            case Tick():
                self._forget(event.now_ns)
            case _:
                pass
        if isinstance(event, Tick):
            self._judge(list(self.incidents), event.now_ns)
        elif not isinstance(event, Handed):
            self._judge(list(self._changed), event.now_ns)
        return list(self._actions())

    def open(self) -> list[Incident]:
        """What is sick now, or was when it was lost sight of; worst first."""
        found = [one for one in self.incidents.values() if one.state in ("open", "lost")]
        return sorted(found, key=lambda one: (-one.badness, one.since_ns))

    # ---- looks

    def _take_look(self, look: Look) -> None:
        for studied in look.studied:
            self._job_hosts[studied.job_key] = frozenset(studied.hosts)
        for sighting in look.sightings:
            if sighting.job_key and sighting.job_hosts:
                self._job_hosts[sighting.job_key] = frozenset(sighting.job_hosts)
        shown = {sighting.key for sighting in look.sightings}
        for found in self._of_source(look.source) if look.alive else ():
            for witness in found.witnesses:
                if witness.source == look.source and witness.key not in shown and witness.sight != "well":
                    found = self._miss(found, witness, look)
            self._put(found)
        for sighting in look.sightings:
            self._see(look, sighting)
        if look.alive:
            self._see_source(look)

    def _of_source(self, source: str) -> list[Incident]:
        return [self.incidents[id] for id in sorted(self._by_source.get(source, ()), key=_number)]

    def _miss(self, found: Incident, witness: Witness, look: Look) -> Incident:
        """A source shows an incident no longer: it is over where the source has studied its job since."""
        if kind_of(found.kind).family == "source":
            return found
        seen = next((one for one in look.studied if self._is_of(found, one) and one.until_ns > witness.until_ns), None)
        if seen is not None:
            return _set_sight(found, witness, "well", seen.text)
        return _set_sight(found, witness, "lost", f"{look.tool} shows it no longer, and does not say that it is over")

    def _is_of(self, found: Incident, studied: Studied) -> bool:
        return bool(found.job_key) and found.job_key == studied.job_key

    def _see(self, look: Look, sighting: Sighting) -> None:
        found = self._find(look.source, sighting, look.tool)
        if found is None:
            if not sighting.well or look.now_ns - sighting.until_ns < self.config.expire_ns:
                self._put(self._begin(look, sighting))  # what is over already is kept, and told to nobody
            return
        witness = _witness(look, sighting)
        before = next((w for w in found.witnesses if (w.source, w.key) == (look.source, sighting.key)), None)
        if before is not None and not look.alive and witness.until_ns <= before.until_ns:
            return  # the last words of a command that ended were taken before
        others = tuple(w for w in found.witnesses if w is not before)
        now = replace(found, witnesses=(*others, witness))
        if sighting.until_ns > found.closed_ns:
            now = replace(now, closed_ns=0, closed_by="")
        if before is None:
            now = _note(now, look.now_ns, "seen", f"by {look.tool} too, as {words(sighting.kind)} of {sighting.place}")
        self._put(self._name_better(now, sighting, look.now_ns))

    def _name_better(self, found: Incident, sighting: Sighting, now_ns: int) -> Incident:
        """The graver kind, or the one closer to the cause, names the incident; so does the host of an endpoint."""
        old, new = kind_of(found.kind), kind_of(sighting.kind)
        if sighting.cause and not found.cause:
            found = replace(found, cause=sighting.cause)
        if sighting.advice and not found.advice:
            found = replace(found, advice=sighting.advice)
        if sighting.hosts and not set(sighting.hosts) <= set(found.hosts):
            found = replace(found, hosts=tuple(dict.fromkeys((*found.hosts, *sighting.hosts))))
        widens = found.place.type == "endpoint" and sighting.place.type == "host"
        if new.rank > old.rank or (new.rank == old.rank and widens):
            if found.kind != sighting.kind:
                found = _note(found, now_ns, "became", f"{words(sighting.kind)} of {sighting.place}")
            place = sighting.place if sighting.place.type != "job" or new.rank > 2 else found.place
            found = replace(found, kind=sighting.kind, place=place, job=sighting.job or found.job,
                            job_key=sighting.job_key or found.job_key, advice=sighting.advice,
                            cause=sighting.cause or found.cause)  # fmt: skip
        return found

    def _find(self, source: str, sighting: Sighting, tool: str) -> Incident | None:
        known = self._by_key.get((source, sighting.key))
        if known is not None:
            return self.incidents[known]
        for found in reversed(list(self.incidents.values())):
            if found.state == "expired" or sighting.well:
                continue
            if is_same_fault(found, sighting, tool, self._hosts_of(found), self.config.merge):
                return found
        return None

    def _hosts_of(self, found: Incident) -> frozenset[str]:
        return self._job_hosts.get(found.job_key, frozenset())

    def _begin(self, look: Look, sighting: Sighting) -> Incident:
        place = sighting.place
        found = Incident(
            id=f"i-{self.next_id}",
            kind=sighting.kind,
            job=sighting.job,
            job_key=sighting.job_key,
            place=place,
            hosts=sighting.hosts,
            witnesses=(_witness(look, sighting),),
            cause=sighting.cause,
            advice=sighting.advice,
            labels=label_alert(sighting.kind, sighting.job, place.type, place.id),
        )
        self.next_id += 1
        return _note(found, look.now_ns, "opened", f"{look.tool}: {words(sighting.kind)} of {place}")

    # ---- sources

    def _lose_source(self, event: SourceLost) -> None:
        lost = 0
        for found in self._of_source(event.source):
            for witness in found.witnesses:
                if witness.source == event.source and witness.sight == "sees" and witness.key != _SOURCE_KEY:
                    found = _set_sight(found, witness, "lost", event.why)
                    lost += found.state == "open"
            self._put(found)
        if event.state == "ended" and not event.blind and not lost:
            return
        kind = "watch_lost" if event.tool == "watch" and event.state != "damaged" else "source_lost"
        suffix = f"; {lost} open {'incident is' if lost == 1 else 'incidents are'} lost sight of" if lost else ""
        before = self._find(event.source, _SOURCE_SIGHTING, event.tool)
        look = Look(now_ns=event.now_ns, source=event.source, tool=event.tool, at_ns=event.now_ns, holds_ns=0)
        sighting = replace(
            _SOURCE_SIGHTING, kind=kind, place=Place(type="source", id=event.source), since_ns=event.since_ns,
            until_ns=event.now_ns, text=event.why + (suffix if before is None else ""), gpus_lost=0.0,
        )  # fmt: skip
        if before is None:
            self._put(self._begin(look, sighting))
        elif before.state == "open":
            (witness,) = before.witnesses
            self._put(replace(before, witnesses=(replace(witness, until_ns=event.now_ns),)))
        else:
            self._put(_note(replace(before, kind=kind, witnesses=(_witness(look, sighting),)), event.now_ns, "again"))

    def _see_source(self, look: Look) -> None:
        """A source that can be read again is well."""
        found = self._find(look.source, _SOURCE_SIGHTING, look.tool)
        if found is not None and found.witnesses[0].sight != "well":
            self._put(_set_sight(found, found.witnesses[0], "well", f"{look.source} is read again"))

    # ---- states

    def _judge(self, ids: Iterable[str], now_ns: int) -> None:
        """The state of each incident follows from what its witnesses say."""
        for found in [self.incidents[id] for id in ids if id in self.incidents]:
            state = self._state_of(found, now_ns)
            if state != found.state:
                fresh = replace(found, state=state)
                if state == "open" and found.state == "resolved":
                    fresh = replace(fresh, acknowledged_by="", acknowledged_ns=0)
                word = {"lost": "lost sight of", "open": "seen again"}.get(state, state)
                found = _note(fresh, now_ns, word, fresh.why_state)
                self._put(found)
            tells = self._due(found, now_ns)
            if tells is not None:
                told = found.told if tells == "worse" else tells == "opened"
                self._told_cost[found.id] = found.lost_gpu_s(now_ns)
                self._put(replace(found, told=told, waits=(*found.waits, tells), num_told=found.num_told + 1))

    def _state_of(self, found: Incident, now_ns: int) -> State:
        if found.state == "expired":
            return "expired"
        if found.closed_ns:
            return "resolved"
        sights = {self._sight_of(found, witness, now_ns) for witness in found.witnesses}
        if "sees" in sights:
            return "open"
        if "lost" not in sights:
            return "resolved"
        return "expired" if now_ns - found.until_ns > self.config.expire_ns else "lost"

    def _sight_of(self, found: Incident, witness: Witness, now_ns: int) -> Sight:
        """A document of a command that ran once shows its time; after a while nobody knows any more."""
        if witness.sight != "sees" or not witness.holds_ns:
            return witness.sight
        old = now_ns - witness.until_ns > self.config.expire_ns
        unseen = now_ns - max(witness.until_ns, witness.at_ns) > witness.holds_ns
        return "lost" if old or unseen else "sees"

    def _due(self, found: Incident, now_ns: int) -> Tells | None:
        if found.state == "resolved":
            return "resolved" if found.told else None
        if found.state != "open":
            return None
        if not found.told:
            stands = kind_of(found.kind).family not in ("slow", "network")
            dear = stands or found.lost_gpu_s(now_ns) >= self.config.least_lost_gpu_s
            return "opened" if dear and found.severity != "info" else None
        before = self._told_cost.get(found.id)
        if before is None:
            self._told_cost[found.id] = found.lost_gpu_s(now_ns)
            return None
        graver = any(change.what == "became" and change.at_ns == now_ns for change in found.history[-2:])
        if graver and SEVERITIES.index(found.severity) == len(SEVERITIES) - 1:
            return "worse"
        grown = found.lost_gpu_s(now_ns) >= self.config.worse * max(before, 60.0)
        return "worse" if grown and not found.acknowledged_by else None

    def _forget(self, now_ns: int) -> None:
        for id, found in list(self.incidents.items()):
            if (
                found.state in ("resolved", "expired")
                and now_ns - max(found.until_ns, found.history[-1].at_ns) > self.config.kept_ns
            ):
                del self.incidents[id]
                for witness in found.witnesses:
                    self._by_key.pop((witness.source, witness.key), None)
                    self._by_source.get(witness.source, set()).discard(id)

    # ---- keeping

    def _put(self, found: Incident) -> None:
        if self.incidents.get(found.id) == found:
            return
        if len(found.history) > self.config.most_history:
            found = replace(found, history=(found.history[0], *found.history[-self.config.most_history + 1 :]))
        self.incidents[found.id] = found
        for witness in found.witnesses:
            self._by_key[witness.source, witness.key] = found.id
            self._by_source.setdefault(witness.source, set()).add(found.id)
        self._changed[found.id] = None

    def _actions(self) -> Iterable[Action]:
        kept = [self.incidents[id] for id in self._changed if id in self.incidents]
        yield from (Keep(incident=one) for one in kept)
        yield from pending(kept)


def pending(incidents: Iterable[Incident]) -> Iterator[Tell]:
    """What is decided and not handed to the sender yet, also after a crash between the two."""
    for one in incidents:
        for place, what in enumerate(one.waits):
            yield Tell(incident=one, what=what, number=one.num_told - len(one.waits) + place + 1)


_SOURCE_KEY = "source"
_SOURCE_SIGHTING = Sighting(
    key=_SOURCE_KEY, kind="source_lost", place=Place(type="source", id=""), since_ns=0, until_ns=0, text="", sure=1.0
)


def _rate(sighting: Sighting) -> float:
    """GPU-hours lost in an hour."""
    if sighting.gpus_lost is not None:
        return sighting.gpus_lost
    return sighting.lost_gpu_s / max(1.0, (sighting.until_ns - sighting.since_ns) / 1e9)


def _witness(look: Look, sighting: Sighting) -> Witness:
    return Witness(
        source=look.source,
        tool=look.tool,
        key=sighting.key,
        text=sighting.text,
        sure=sighting.sure,
        lost_gpu_s=sighting.lost_gpu_s,
        since_ns=sighting.since_ns,
        until_ns=sighting.until_ns,
        at_ns=look.at_ns,
        gpus_lost=_rate(sighting),
        holds_ns=look.holds_ns,
        sight="well" if sighting.well else "sees",
        why=sighting.well,
        link=sighting.link,
    )


def _number(id: str) -> int:
    return int(id.partition("-")[2])


def _set_sight(found: Incident, witness: Witness, sight: Sight, why: str) -> Incident:
    changed = replace(witness, sight=sight, why=why)
    return replace(found, witnesses=tuple(changed if one == witness else one for one in found.witnesses))


def _note(found: Incident, at_ns: int, what: str, text: str = "") -> Incident:
    return replace(found, history=(*found.history, Change(at_ns=at_ns, what=what, text=text)))
