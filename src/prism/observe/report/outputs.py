"""The folder that `prism diagnose --output` writes."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl

from prism.errors import BadFileError
from prism.observe.diagnosis import Diagnosis
from prism.observe.report.links import measure_links
from prism.observe.report.page import render_report
from prism.records import TOPOLOGY, findings_to_frame, write_perfetto, write_table


def write_outputs(
    diagnosis: Diagnosis, spans: pl.DataFrame, folder: Path, topology: pl.DataFrame | None = None
) -> None:
    """Write report.html, the timeline twice, links.parquet, topology.csv and diagnosis.json, which is written last.

    Without a `topology` the one that was assumed is written: every address a host.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        spans.write_parquet(folder / "timeline.parquet")
        write_perfetto(spans, folder / "timeline.perfetto-trace", findings=findings_to_frame(diagnosis.findings))
        measure_links(diagnosis).write_parquet(folder / "links.parquet")
        used = diagnosis.traffic.endpoints.select("address", "host", "rail", "switch") if topology is None else topology
        write_table(TOPOLOGY.conform(used, "topology"), folder / "topology.csv", TOPOLOGY)
        (folder / "report.html").write_text(render_report(diagnosis, spans), encoding="utf-8")
        (folder / "diagnosis.json").write_text(json.dumps(diagnosis.to_json()) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadFileError(
            f"{error.filename or folder}: cannot be written ({error.strerror}); choose another --output"
        ) from None
