"""The Datacenter page: reports of `prism characterize`, and an overview of all that is served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prism.serve.snapshot import Snapshot
from prism.serve.sources.characterized import Characterized
from prism.serve.sources.evaluated import Evaluated
from prism.serve.sources.supervised import Supervised
from prism.serve.views.failures import list_verdicts
from prism.serve.views.jobs import key_of
from prism.serve.views.looks import find_now
from prism.serve.views.reports import list_reports

_MOST_SOURCES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow:
    """A report of one or more clusters; `page` where the stand-alone page is there too."""

    key: str
    place: str
    clusters: tuple[dict[str, Any], ...]
    comparison: dict[str, Any]
    page: bool
    updated_ns: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DatacenterDocument:
    """All reports."""

    reports: tuple[ReportRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemRow:
    """A file that is gone, broken, or has not been written to for long although something should."""

    path: str
    state: str
    message: str
    since_ns: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """Something that was found in the folder."""

    kind: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewDocument:
    """What there is to see, in numbers."""

    folder: str
    version: int
    num_files: int
    num_jobs: int
    num_findings: int
    num_verdicts: int
    num_runs: int
    num_evaluations: int
    num_reports: int
    num_printed: int  # investigations, comparisons, predictions, goodput
    files_left_out: bool  # more files are in the folder than are looked at
    num_archived: int  # sources that are in the history only, because many newer ones are shown
    price_per_gpu_hour: float | None
    currency: str
    looked_ns: str
    sources: tuple[SourceRow, ...]
    problems: tuple[ProblemRow, ...]


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
    """What a GPU costs by the hour; None where nobody said."""

    per_gpu_hour: float | None = None
    currency: str = "$"


_NO_PRICE = Price()


def describe_overview(snapshot: Snapshot, folder: str, price: Price = _NO_PRICE) -> OverviewDocument:
    """What the folder holds."""
    return OverviewDocument(
        num_archived=snapshot.num_archived,
        price_per_gpu_hour=price.per_gpu_hour,
        currency=price.currency,
        folder=folder,
        version=snapshot.version,
        num_files=snapshot.num_files,
        num_jobs=len(find_now(snapshot).jobs),
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
