"""`prism diagnose`: every training job on the cluster, from its flows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism.cli.flows import read_sources
from prism.cli.options import JsonFlag, OutputDir, QuietFlag, SkipBadRows, VerboseFlag, examples
from prism.cli.terminal import note, progress, show, show_json, table

if TYPE_CHECKING:
    from rich.table import Table

    from prism.observe import Diagnosis, JobDiagnosis

EPILOG = examples(
    "prism diagnose flows.parquet --topology topology.csv",
    "prism diagnose exports/ --topology topology.csv --output report/",
    "prism diagnose flows.parquet --json",
)


def run_diagnose(
    flows: Annotated[
        list[Path], typer.Argument(help="Flow files (Parquet, CSV, JSON Lines, Arrow) or folders of them.")
    ],
    topology: Annotated[Path | None, typer.Option(help="CSV with address, host, rail, switch of every NIC.")] = None,
    output: OutputDir = None,
    skip_bad_rows: SkipBadRows = False,
    json: JsonFlag = False,
    verbose: VerboseFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Find the jobs in network flows, their parallelism, their steps, and what slows them down."""
    from prism.observe import diagnose
    from prism.records import TOPOLOGY, read_table

    read = read_sources(flows, skip_bad_rows, packet_bytes=4096)
    known = None if topology is None else read_table(topology, TOPOLOGY)
    with progress("diagnosing"):
        diagnosis = diagnose(read.flows, known)
    if output is not None:
        write_diagnosis(diagnosis, output)
        note(f"wrote timeline.parquet, timeline.perfetto-trace and diagnosis.json to {output}")
    if json:
        show_json(diagnosis.to_json())
        return
    show_diagnosis(diagnosis)


def show_diagnosis(diagnosis: Diagnosis) -> None:
    """Print the jobs and findings for a person."""
    show(_jobs_table(diagnosis))
    if diagnosis.findings:
        show(_findings_table(diagnosis))
    else:
        show("Nothing is out of the ordinary.")
    for line in diagnosis.notes:
        note(f"note: {line}")


def write_diagnosis(diagnosis: Diagnosis, folder: Path) -> None:
    """Write the timeline, as a table and as a trace, and the diagnosis as JSON."""
    import json

    from prism.observe import build_timeline
    from prism.records import findings_to_frame, write_perfetto

    folder.mkdir(parents=True, exist_ok=True)
    spans = build_timeline(diagnosis)
    spans.write_parquet(folder / "timeline.parquet")
    write_perfetto(spans, folder / "timeline.perfetto-trace", findings=findings_to_frame(diagnosis.findings))
    (folder / "diagnosis.json").write_text(json.dumps(diagnosis.to_json()) + "\n")


def _jobs_table(diagnosis: Diagnosis) -> Table:
    rows = [
        (job.id, f"{len(job.hosts):,}", f"{len(job.endpoints):,}", _layout(job), *_step_cells(job))
        for job in diagnosis.jobs
    ]
    columns = ("job", ">hosts", ">endpoints", "layout", ">steps", ">step time", "trend")
    return table("Jobs", columns, rows)


def _layout(job: JobDiagnosis) -> str:
    document = job.layout.to_json()
    parts = [f"{d}{document[d]}" for d in ("dp", "tp", "pp", "cp", "ep") if document[d] != 1]
    return " ".join(p.replace("None", "?") for p in parts) or "dp1"


def _step_cells(job: JobDiagnosis) -> tuple[str, str, str]:
    lengths = ((job.steps["end_ns"] - job.steps["start_ns"]) / 1e9).to_list()
    if not lengths:
        return "0", "unknown", ""
    middle = sorted(lengths)[len(lengths) // 2]
    return f"{len(lengths):,}", f"{middle:.3f} s", sparkline(lengths[-32:])


def sparkline(values: list[float]) -> str:
    """A tiny plot of a series in one line of text, from zero to its maximum."""
    bars = "▁▂▃▄▅▆▇█"
    top = max(values) or 1.0
    return "".join(bars[min(7, int(8 * v / top))] for v in values)


def _findings_table(diagnosis: Diagnosis) -> Table:
    rows = [
        (
            f.kind,
            f.job,
            f"{f.culprit.type} {f.culprit.id}",
            f"{f.lost_gpu_seconds:,.0f}",
            f"{100 * f.score:.0f} %",
            f.evidence,
        )
        for f in diagnosis.findings[:20]
    ]
    return table("Findings, worst first", ("what", "job", "culprit", ">GPU s lost", ">sure", "evidence"), rows)
