"""The History page: past jobs and days, two of them side by side, and a search."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from prism.errors import BadFileError
from prism.serve.history.database import ReadableIndex
from prism.serve.history.entries import DAY_NS
from prism.serve.history.notes import Annotation, Notes
from prism.serve.history.queries import (
    Asked,
    StoredEntry,
    find_days,
    find_entries,
    find_hosts,
    list_jobs_of,
)
from prism.serve.shapes.history import (
    AnnotationRow,
    DayRow,
    DifferenceDocument,
    DifferenceRow,
    EntryRow,
    FoundHost,
    HistoryDocument,
    HistoryJobsDocument,
    SearchDocument,
)

_GROUPS = {
    "jobs": ("look",),
    "runs": ("run",),
    "findings": ("finding",),
    "verdicts": ("verdict",),
    "reports": ("evaluation", "prediction", "investigation", "comparison", "goodput", "placement", "characterization"),
}
_MOST_OF_GROUP = 20
_DAY = re.compile(r"day:(\d{4}-\d{2}-\d{2})(?::(.{1,512}))?")


class NoSuchEntryError(BadFileError):
    """The index holds nothing of that name."""


def describe_history(index: ReadableIndex, notes: Notes, asked: Asked) -> HistoryDocument:
    """The page's document."""
    page = find_entries(index, asked)
    return HistoryDocument(
        entries=tuple(to_row(entry) for entry in page.rows),
        total=page.total,
        days=tuple(find_days(index, asked)),
        annotations=tuple(to_annotation_row(note) for note in notes.annotations(asked.job, asked.host)),
        num_waiting=index.num_waiting,
    )


def describe_history_jobs(index: ReadableIndex, limit: int) -> HistoryJobsDocument:
    """Jobs to choose from."""
    jobs = tuple(to_row(entry) for entry in list_jobs_of(index, limit))
    return HistoryJobsDocument(jobs=jobs, num_waiting=index.num_waiting)


def describe_difference(index: ReadableIndex, first: str, second: str) -> DifferenceDocument:
    """Two things side by side, each an entry's `ref` or a day as day:2026-01-31, or day:2026-01-31:JOB."""
    (name_a, a), (name_b, b) = _find_side(index, first), _find_side(index, second)
    return DifferenceDocument(first=name_a, second=name_b, rows=tuple(_compare(a, b)))


def search(index: ReadableIndex, text: str) -> SearchDocument:
    """Jobs, hosts, runs, findings, verdicts and reports that hold every word."""
    found: dict[str, list[StoredEntry]] = {}
    total = 0
    for group, kinds in _GROUPS.items():
        rows: list[StoredEntry] = []
        for kind in kinds:
            page = find_entries(index, Asked(kind=kind, text=text, limit=_MOST_OF_GROUP))
            rows += page.rows
            total += page.total
        found[group] = sorted(rows, key=lambda row: -row.until_ns)[:_MOST_OF_GROUP]
    words = text.split()
    hosts = find_hosts(index, words[0], _MOST_OF_GROUP) if len(words) == 1 else []
    return SearchDocument(
        text=text,
        hosts=tuple(FoundHost(host=host, num_entries=num) for host, num in hosts),
        jobs=tuple(map(to_row, found["jobs"])),
        runs=tuple(map(to_row, found["runs"])),
        findings=tuple(map(to_row, found["findings"])),
        verdicts=tuple(map(to_row, found["verdicts"])),
        reports=tuple(map(to_row, found["reports"])),
        total=total + len(hosts),
    )


def to_row(entry: StoredEntry) -> EntryRow:
    """A row of the index in the shape of the API."""
    values = {field.name: getattr(entry, field.name) for field in fields(StoredEntry)}
    values |= {"at_ns": str(entry.at_ns), "until_ns": str(entry.until_ns)}
    return EntryRow(**values, ref=f"{entry.kind}:{entry.key}:{entry.at_ns}", page=_page_of(entry))


def to_annotation_row(note: Annotation) -> AnnotationRow:
    """A remark in the shape of the API."""
    return AnnotationRow(
        id=note.id,
        at_ns=str(note.at_ns),
        text=note.text,
        author=note.author,
        job=note.job,
        host=note.host,
        written_ns=str(note.written_ns),
    )


def _page_of(entry: StoredEntry) -> str:
    """The page that shows it, with the moment in question where that page has a timeline."""
    match entry.kind:
        case "look":
            return f"/job?{urlencode({'key': entry.key})}"
        case "finding":
            margin = max(1_000, (entry.until_ns - entry.at_ns) // 10)
            window = {"key": entry.key, "from": entry.at_ns - margin, "to": entry.until_ns + margin}
            return f"/job?{urlencode(window)}"
        case "run" | "run_day":
            return f"/failures?{urlencode({'run': entry.key})}"
        case "verdict":
            return f"/failures?{urlencode({'verdict': entry.key})}"
        case "evaluation":
            return f"/evaluation?{urlencode({'key': entry.key})}"
        case "characterization":
            return "/datacenter"
        case "investigation" | "comparison" | "goodput" | "placement":
            return f"/reports?{urlencode({'path': entry.key})}"
        case _:
            by_path = not entry.key.rpartition("~")[1]
            return f"/reports?{urlencode({'path': entry.key})}" if by_path else f"/job?{urlencode({'key': entry.key})}"


def _find_side(index: ReadableIndex, ref: str) -> tuple[str, dict[str, float | None]]:
    day = _DAY.fullmatch(ref)
    if day is not None:
        return _find_day(index, day[1], day[2] or "")
    kind, _, rest = ref.partition(":")
    key, _, at_ns = rest.rpartition(":")
    found = find_entries(index, Asked(kind=kind, key=key, limit=1_000)).rows if key else ()
    entry = next((row for row in found if str(row.at_ns) == at_ns), None)
    if entry is None:
        raise NoSuchEntryError(f"{ref}: not in the history; take `ref` from /api/history, or write day:2026-01-31")
    return f"{entry.kind} {entry.key}", {
        "step_s": entry.step_s,
        "num_steps": entry.num_steps,
        "gpus": entry.gpus,
        "restarts": entry.restarts,
        "goodput": entry.goodput,
        "num_findings": entry.num_findings,
        "lost_gpu_s": entry.lost_gpu_s,
        "duration_s": (entry.until_ns - entry.at_ns) / 1e9,
    }


def _find_day(index: ReadableIndex, text: str, job: str) -> tuple[str, dict[str, float | None]]:
    try:
        begin = int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 10**9
    except (ValueError, OverflowError):
        raise NoSuchEntryError(f"{text}: not a day; write it as 2026-01-31") from None
    found = find_days(index, Asked(job=job, from_ns=begin, to_ns=begin + DAY_NS - 1))
    day = next((row for row in found if row.day == text), None)
    if day is None:
        raise NoSuchEntryError(f"{text}: nothing in the history ended on that day{f' for {job}' if job else ''}")
    values: dict[str, Any] = {field.name: getattr(day, field.name) for field in fields(DayRow) if field.name != "day"}
    return f"{text}{f' {job}' if job else ''}", values


_UNITS = {"step_s": "s", "lost_gpu_s": "GPU s", "gpu_s": "GPU s", "duration_s": "s", "goodput": "share"}


def _compare(a: dict[str, float | None], b: dict[str, float | None]) -> Iterator[DifferenceRow]:
    for name in dict.fromkeys((*a, *b)):
        first, second = a.get(name), b.get(name)
        ratio = second / first if first and second is not None else None
        yield DifferenceRow(name=name, unit=_UNITS.get(name, ""), first=first, second=second, ratio=ratio)
