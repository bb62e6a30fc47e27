"""The Datacenter page: reports of `prism characterize`, and an overview of all that is served."""

from __future__ import annotations

from dataclasses import dataclass

from prism.serve.shapes.reports import DatacenterDocument, OverviewDocument, ProblemRow, ReportRow, SourceRow
from prism.serve.snapshot import Snapshot
from prism.serve.sources.characterized import Characterized
from prism.serve.sources.evaluated import Evaluated
from prism.serve.sources.supervised import Supervised
from prism.serve.views.failures import list_verdicts
from prism.serve.views.jobs import key_of
from prism.serve.views.looks import find_now
from prism.serve.views.reports import list_reports

_MOST_SOURCES = 500


def describe_datacenters(snapshot: Snapshot) -> DatacenterDocument:
    """The page's document."""
    return DatacenterDocument(
        reports=tuple(
            ReportRow(
                key=key_of(source.place, "report"),
                place=source.place,
                clusters=tuple(dict(cluster) for cluster in source.clusters),
                comparison=dict(source.comparison),
                page=source.page is not None,
                updated_ns=str(source.updated_ns),
            )
            for source in snapshot.all_of(Characterized)
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of a GPU-hour; None if none was given."""

    per_gpu_hour: float | None = None
    currency: str = "$"


_NO_PRICE = Price()


def describe_overview(snapshot: Snapshot, folder: str, price: Price = _NO_PRICE, num_sick: int = 0) -> OverviewDocument:
    """What the folder holds."""
    return OverviewDocument(
        num_archived=snapshot.num_archived,
        price_per_gpu_hour=price.per_gpu_hour,
        currency=price.currency,
        folder=folder,
        version=snapshot.version,
        num_files=snapshot.num_files,
        num_jobs=len(find_now(snapshot).jobs),
        num_sick=num_sick,
        num_findings=len(find_now(snapshot).findings),
        num_verdicts=sum(1 for _ in list_verdicts(snapshot)),
        num_runs=len(snapshot.all_of(Supervised)),
        num_evaluations=len(snapshot.all_of(Evaluated)),
        num_reports=len(snapshot.all_of(Characterized)),
        num_printed=len(list_reports(snapshot)),
        files_left_out=snapshot.files_left_out,
        looked_ns=str(snapshot.looked_ns),
        sources=tuple(
            SourceRow(kind=type(source).__name__.lower(), place=getattr(source, "place", getattr(source, "path", "")))
            for source in snapshot.sources[:_MOST_SOURCES]
        ),
        problems=tuple(
            ProblemRow(path=state.path, state=state.state, message=state.message, since_ns=str(state.since_ns))
            for state in snapshot.states[:_MOST_SOURCES]
        ),
    )
