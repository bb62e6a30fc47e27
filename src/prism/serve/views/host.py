"""The Host page: what every source says about one host, now and in the past."""

from __future__ import annotations

from prism.serve.history.database import ReadableIndex
from prism.serve.history.notes import Notes
from prism.serve.history.queries import Asked, find_entries
from prism.serve.shapes.history import HostDocument
from prism.serve.snapshot import Snapshot
from prism.serve.views.cluster import describe_cluster
from prism.serve.views.failures import list_hosts
from prism.serve.views.history import to_annotation_row, to_row


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
