"""A job's timeline as a Perfetto trace, to open there or to keep."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from prism.records import findings_to_frame, write_perfetto
from prism.serve.library import Library
from prism.serve.timelines import NoTimelineError, read_spans
from prism.serve.views.job import find_diagnosed, find_timeline


def write_trace(library: Library, key: str, from_ns: int | None, to_ns: int | None, path: Path) -> None:
    """Write the spans and findings of a job, or of a window of it, as a trace."""
    source = find_timeline(library.snapshot_of(key), key)
    if source is None:
        raise NoTimelineError(f"{key}: no timeline of that name in the folder")
    spans = read_spans(library.folder, source)
    if from_ns is not None:
        spans = spans.filter(pl.col("end_ns") > source.origin_ns + from_ns)
    if to_ns is not None:
        spans = spans.filter(pl.col("start_ns") < source.origin_ns + to_ns)
    diagnosed = find_diagnosed(library.snapshot_of(key), key)
    findings = [f for f in diagnosed[0].findings if f.job == source.job] if diagnosed else []
    write_perfetto(spans, path, findings=findings_to_frame(findings) if findings else None)
