"""What `prism characterize --output` wrote: the report of a datacenter, as its own document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prism.errors import BadFileError
from prism.serve.folder import Folder
from prism.serve.sources.place import Place, read_object

REPORT_FILE = "report.json"
PAGE_FILE = "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Characterized:
    """One report; several traces make several clusters."""

    place: str
    clusters: tuple[Mapping[str, Any], ...]
    comparison: Mapping[str, Any]
    page: str | None  # the stand-alone page
    updated_ns: int


def read_characterized(folder: Folder, place: Place) -> Characterized:
    """Read a report."""
    document = read_object(folder, place.path_of(REPORT_FILE))
    clusters = document.get("clusters", [document])
    comparison = document.get("comparison", {})
    if not all(isinstance(part, Mapping) for part in (comparison, *clusters)):
        raise BadFileError(f"{place.path_of(REPORT_FILE)}: not a characterization; run prism characterize again")
    return Characterized(
        place=place.path,
        clusters=tuple({k: v for k, v in cluster.items() if k != "comparison"} for cluster in clusters),
        comparison=comparison,
        page=place.path_of(PAGE_FILE) if PAGE_FILE in place.files else None,
        updated_ns=place.files[REPORT_FILE].mtime_ns,
    )
