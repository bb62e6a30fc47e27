"""The front page, the page of an incident, and the hours that were lost."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from prism.incidents.incident import Incident
from prism.incidents.kinds import kind_of
from prism.serve.history.database import ReadableIndex
from prism.serve.history.queries import Asked, StoredEntry, find_entries
from prism.serve.shapes.incidents import (
    ChangeRow,
    HoursDay,
    HoursDocument,
    IncidentDocument,
    IncidentRow,
    IncidentsDocument,
    KnownSource,
    LossRow,
    WitnessRow,
)
from prism.serve.snapshot import Snapshot
from prism.serve.sources.watched import Watched
from prism.serve.views.datacenter import Price
from prism.serve.views.looks import find_now
from prism.serve.witnesses import path_of, tool_of

_HOUR_NS = 3_600 * 10**9
_DAY_NS = 24 * _HOUR_NS
_MOST_ENTRIES = 10_000
_MOST_SOURCES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedIncidents:
    """Which incidents of the past."""

    text: str = ""
    from_ns: int | None = None
    to_ns: int | None = None
    offset: int = 0
    limit: int = 50


def describe_incidents(
    incidents: Iterable[Incident], snapshot: Snapshot, asked: AskedIncidents, *, writable: bool, trouble: str
) -> IncidentsDocument:
    """The front page's document."""
    every = list(incidents)
    sick = [one for one in every if one.state in ("open", "lost") and _matches(one, asked.text)]
    past = [one for one in every if one.state in ("resolved", "expired") and _is_asked(one, asked)]
    past.sort(key=lambda one: -one.until_ns)
    sick.sort(key=lambda one: (-one.badness, one.since_ns))
    return IncidentsDocument(
        now=tuple(to_row(one) for one in sick),
        past=tuple(to_row(one) for one in past[asked.offset : asked.offset + asked.limit]),
        total=len(past),
        sources=tuple(_list_sources(snapshot)),
        num_jobs=len(find_now(snapshot).jobs),
        writable=writable,
        trouble=trouble,
    )


def count_sick(incidents: Iterable[Incident]) -> int:
    """How many are open, or lost sight of."""
    return sum(one.state in ("open", "lost") for one in incidents)


def describe_incident(incidents: Iterable[Incident], id: str, *, writable: bool) -> IncidentDocument | None:
    """One incident; None where there is none of that id."""
    found = next((one for one in incidents if one.id == id), None)
    if found is None:
        return None
    return IncidentDocument(
        incident=to_row(found),
        witnesses=tuple(
            WitnessRow(
                source=w.source, tool=w.tool, text=w.text, confidence=w.sure, lost_gpu_s=w.lost_gpu_s,
                since_ns=str(w.since_ns), until_ns=str(w.until_ns), written_ns=str(w.at_ns), sight=w.sight, why=w.why,
                link=w.link,
            )
            for w in found.witnesses
        ),
        history=tuple(ChangeRow(at_ns=str(one.at_ns), what=one.what, text=one.text) for one in reversed(found.history)),
        writable=writable,
    )  # fmt: skip


def to_row(one: Incident) -> IncidentRow:
    """An incident as a row; its cost is that of its last change, and its page counts on."""
    return IncidentRow(
        id=one.id,
        title=one.title,
        action=one.action,
        kind=one.kind,
        severity=one.severity,
        owner=one.owner,
        state=one.state,
        why_state=one.why_state,
        job=one.job,
        job_key=one.job_key,
        place_type=one.place.type,
        place=one.place.id,
        hosts=one.hosts,
        cause=one.cause,
        since_ns=str(one.since_ns),
        until_ns=str(one.until_ns),
        confidence=one.sure,
        gpus_lost=one.gpus_lost,
        badness=one.badness,
        lost_gpu_s=one.lost_gpu_s(one.history[-1].at_ns),
        counted_ns=str(one.history[-1].at_ns),
        grows=kind_of(one.kind).family == "stopped" and one.state in ("open", "lost"),
        acknowledged_by=one.acknowledged_by,
        acknowledged_ns=str(one.acknowledged_ns),
        told=one.told,
    )


def describe_hours(
    index: ReadableIndex, incidents: Iterable[Incident], price: Price, from_ns: int | None, to_ns: int | None
) -> HoursDocument:
    """GPU-hours bought by jobs in a range of time, and what was lost of them."""
    now_ns = time.time_ns()
    until_ns = now_ns if to_ns is None else to_ns
    since_ns = until_ns - 30 * _DAY_NS if from_ns is None else from_ns
    looks = _newest_of_each(
        entry
        for kind in ("look", "run")
        for entry in find_entries(index, Asked(kind=kind, from_ns=since_ns, to_ns=until_ns, limit=_MOST_ENTRIES)).rows
    )
    held = [entry for entry in looks if entry.gpus]
    bought = sum(_hours(entry.at_ns, entry.until_ns, since_ns, until_ns) * (entry.gpus or 0) for entry in held)
    found = [one for one in incidents if one.since_ns < until_ns and one.until_ns >= since_ns and one.state != "lost"]
    losses = [(one, _lost_hours(one, since_ns, until_ns, now_ns)) for one in found]
    lost = sum(hours for _, hours in losses)
    unknown = sum(1 for entry in looks if not entry.gpus)
    notes = ["Hours are those that Prism saw: of jobs that it watched, diagnosed or supervised."]
    if unknown:
        notes.append(f"Of {unknown} jobs the number of GPUs is not known: they are left out of the hours bought.")
    if lost > bought:
        notes.append("More was lost than jobs are known to have held: runs that stand still hold GPUs nobody counts.")
    return HoursDocument(
        from_ns=str(since_ns),
        to_ns=str(until_ns),
        bought=bought,
        used=max(0.0, bought - lost),
        lost=lost,
        losses=tuple(_by_kind(losses)),
        days=tuple(_by_day(held, losses, since_ns, until_ns)),
        num_jobs=len(looks),
        price_per_gpu_hour=price.per_gpu_hour,
        currency=price.currency,
        notes=tuple(notes),
    )


def _newest_of_each(entries: Iterable[StoredEntry]) -> list[StoredEntry]:
    """One entry for each job: several looks at one job hold the same GPUs."""
    newest: dict[tuple[str, str, int], StoredEntry] = {}
    for entry in entries:
        name = (entry.cluster, entry.job, entry.at_ns // _HOUR_NS)
        if name not in newest or entry.until_ns > newest[name].until_ns:
            newest[name] = entry
    return list(newest.values())


def _lost_hours(one: Incident, since_ns: int, until_ns: int, now_ns: int) -> float:
    """The share of its cost that fell into a range of time."""
    end_ns = now_ns if one.state == "open" and kind_of(one.kind).family == "stopped" else one.until_ns
    whole = max(1, end_ns - one.since_ns)
    inside = max(0, min(end_ns, until_ns) - max(one.since_ns, since_ns))
    share = inside / whole if end_ns > one.since_ns else 1.0
    return one.lost_gpu_s(now_ns) / 3_600 * share


def _by_kind(losses: list[tuple[Incident, float]]) -> list[LossRow]:
    kinds: dict[str, list[tuple[Incident, float]]] = {}
    for one, hours in losses:
        kinds.setdefault(one.kind, []).append((one, hours))
    rows = []
    for kind, found in kinds.items():
        worst, _ = max(found, key=lambda row: row[1])
        rows.append(
            LossRow(
                kind=kind, family=kind_of(kind).family, num=len(found), gpu_hours=sum(hours for _, hours in found),
                since_ns=str(min(one.since_ns for one, _ in found)), worst=worst.id, worst_title=worst.title,
            )
        )  # fmt: skip
    return sorted(rows, key=lambda row: -row.gpu_hours)


def _by_day(
    held: list[StoredEntry], losses: list[tuple[Incident, float]], since_ns: int, until_ns: int
) -> Iterable[HoursDay]:
    first_ns = since_ns - since_ns % _DAY_NS
    for start_ns in range(first_ns, until_ns, _DAY_NS):
        end_ns = start_ns + _DAY_NS
        bought = sum(_hours(entry.at_ns, entry.until_ns, start_ns, end_ns) * (entry.gpus or 0) for entry in held)
        lost = sum(hours for one, hours in losses if start_ns <= one.since_ns < end_ns)
        if bought or lost:
            yield HoursDay(day=f"{datetime.fromtimestamp(start_ns / 1e9, UTC):%Y-%m-%d}", bought=bought, lost=lost)


def _hours(at_ns: int, until_ns: int, since_ns: int, end_ns: int) -> float:
    return max(0, min(until_ns, end_ns) - max(at_ns, since_ns)) / _HOUR_NS


def _matches(one: Incident, text: str) -> bool:
    whole = " ".join((one.id, one.title, one.kind, one.job, one.cause, one.evidence, *one.hosts)).lower()
    return all(word in whole for word in text.lower().split())


def _is_asked(one: Incident, asked: AskedIncidents) -> bool:
    inside = (asked.from_ns is None or one.until_ns >= asked.from_ns) and (
        asked.to_ns is None or one.since_ns <= asked.to_ns
    )
    return inside and _matches(one, asked.text)


def _list_sources(snapshot: Snapshot) -> Iterable[KnownSource]:
    """Who would know: every source of incidents, with its age, those in trouble first."""
    words = {"broken": "damaged", "stale": "late", "gone": "gone"}
    rows = [
        KnownSource(path=one.path, tool="", state=words[one.state], message=one.message, written_ns=str(one.since_ns))
        for one in snapshot.states
    ]
    known = {row.path for row in rows}
    for source in snapshot.sources:
        path = path_of(source)
        if path is not None and path not in known:
            ended = source.ended if isinstance(source, Watched) else ""
            rows.append(
                KnownSource(path=path, tool=tool_of(source), state="ended" if ended else "ok", message=ended,
                          written_ns=str(source.updated_ns))
            )  # fmt: skip
    rows.sort(key=lambda row: (row.state == "ok", -int(row.written_ns)))
    return rows[:_MOST_SOURCES]
