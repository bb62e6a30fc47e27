"""The Reports page: what investigate, compare, predict, goodput and place printed, newest first."""

from __future__ import annotations

from prism.serve.shapes.reports import PrintedDocument, PrintedRow, ReportsDocument
from prism.serve.snapshot import Snapshot
from prism.serve.sources.characterized import Characterized
from prism.serve.sources.printed import Printed, say_in_a_line

_MOST_REPORTS = 500
_MOST_RISKS = 200


def list_reports(snapshot: Snapshot) -> list[Printed]:
    """The sources, newest first."""
    return sorted(snapshot.all_of(Printed), key=lambda source: -source.updated_ns)


def describe_reports(snapshot: Snapshot) -> ReportsDocument:
    """The list."""
    found = list_reports(snapshot)
    return ReportsDocument(
        reports=tuple(_describe(source) for source in found[:_MOST_REPORTS]),
        left_out=max(0, len(found) - _MOST_REPORTS),
    )


def describe_report(snapshot: Snapshot, path: str) -> PrintedDocument | None:
    """One document; None where none has that path."""
    source = next((source for source in snapshot.all_of(Printed) if source.path == path), None)
    if source is None:
        return None
    document, left_out = dict(source.document), 0
    many = {"prediction": "risks", "advice": "nodes"}.get(source.kind)
    if many is not None:
        left_out = max(0, len(document[many]) - _MOST_RISKS)
        document[many] = document[many][:_MOST_RISKS]
    return PrintedDocument(report=_describe(source), document=document, risks_left_out=left_out)


def find_page(snapshot: Snapshot, key: str) -> str | None:
    """The stand-alone page that a command left: of a characterization by its key, of a printed report by its path."""
    pages = {f"{source.place}~report": source.page for source in snapshot.all_of(Characterized)}
    pages |= {source.path: source.page for source in snapshot.all_of(Printed)}
    return pages.get(key)


def _describe(source: Printed) -> PrintedRow:
    return PrintedRow(
        path=source.path,
        kind=source.kind,
        line=say_in_a_line(source),
        updated_ns=str(source.updated_ns),
        has_page=source.page is not None,
    )
