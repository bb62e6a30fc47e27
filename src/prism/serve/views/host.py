"""The Host page: what every source says about one host, now and in the past; and the feed of findings."""

from __future__ import annotations

from prism.serve.history.database import ReadableIndex
from prism.serve.history.notes import Notes
from prism.serve.history.queries import Asked, find_entries
from prism.serve.shapes.history import FeedDocument, FeedRow, HostDocument
from prism.serve.snapshot import Snapshot
from prism.serve.sources.watched import ToldFindings
from prism.serve.views.cluster import describe_cluster
from prism.serve.views.failures import list_hosts
from prism.serve.views.history import to_annotation_row, to_row

_MOST_EVENTS = 200


def describe_host(
    snapshot: Snapshot, index: ReadableIndex, notes: Notes, host: str, *, offset: int = 0, limit: int = 200
) -> HostDocument | None:
    """Everything that is known about a host; None if nothing is."""
    page = find_entries(index, Asked(host=host, offset=offset, limit=limit))
    row = next((row for row in describe_cluster(snapshot).hosts if row.host == host), None)
    known = next((entry for entry in list_hosts(snapshot) if entry.host == host), None)
    remarks = [note for note in notes.annotations(host=host) if note.host == host]
    if row is None and known is None and not page.total and not remarks:
        return None
    return HostDocument(
        host=host,
        state="unknown" if row is None else row.state,
        why="" if row is None else row.why,
        jobs=() if row is None else row.jobs,
        addresses=() if row is None else tuple(nic.address for nic in row.nics),
        switches=() if row is None else tuple(dict.fromkeys(nic.switch for nic in row.nics if nic.switch)),
        known=known,
        entries=tuple(to_row(entry) for entry in page.rows),
        total=page.total,
        annotations=tuple(to_annotation_row(note) for note in remarks),
    )


def describe_feed(snapshot: Snapshot, *, offset: int = 0, limit: int = _MOST_EVENTS) -> FeedDocument:
    """The lines that watches printed, newest first."""
    rows = snapshot.once("feed", lambda: _list_events(snapshot))
    return FeedDocument(events=rows[offset : offset + limit], total=len(rows))


def _list_events(snapshot: Snapshot) -> tuple[FeedRow, ...]:
    found = [
        FeedRow(
            id=told.id,
            event=told.event,
            reported_ns=str(told.reported_ns),
            job=told.finding.job,
            job_key=f"{file.path.rpartition('/')[0] or '.'}~{told.finding.job}",
            kind=told.finding.kind,
            culprit_type=told.finding.culprit.type,
            culprit=told.finding.culprit.id,
            start_ns=str(told.finding.start_ns),
            end_ns=str(told.finding.end_ns),
            lost_gpu_seconds=told.finding.lost_gpu_seconds,
            score=told.finding.score,
            evidence=told.finding.evidence,
        )
        for file in snapshot.all_of(ToldFindings)
        for told in file.events
    ]
    return tuple(sorted(found, key=lambda row: -int(row.reported_ns)))
