"""What is in the folder, and the reports of other commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
    """The content of the folder, in numbers."""

    folder: str
    version: int
    num_files: int
    num_jobs: int
    num_sick: int  # incidents that are open, or lost sight of
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The version of what is served; it grows when a file changes."""

    version: int
    looked_ns: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedRow:
    """A printed document in a list; `line` sums it up."""

    path: str
    kind: str
    line: str
    updated_ns: str
    has_page: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportsDocument:
    """All of them, the newest first."""

    reports: tuple[PrintedRow, ...]
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedDocument:
    """One of them; `document` as the command printed it, but for risks that are left out."""

    report: PrintedRow
    document: dict[str, Any]
    risks_left_out: int
