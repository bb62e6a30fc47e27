"""`prism flows`: look at flow records and convert them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism.cli.options import JsonFlag, QuietFlag, SkipBadRows, VerboseFlag, examples
from prism.cli.terminal import note, progress, show, show_json, table

if TYPE_CHECKING:
    from rich.table import Table

    from prism.records import FlowsRead
    from prism.records.flow_summary import FlowSummary

app = typer.Typer(help="Look at flow records and convert them.", no_args_is_help=True)

Sources = Annotated[list[Path], typer.Argument(help="Flow files (Parquet, CSV, JSON Lines, Arrow) or folders of them.")]
PacketBytes = Annotated[int, typer.Option(help="Bytes per packet where a file counts packets only.", min=1)]


@app.command("info", epilog=examples("prism flows info flows.parquet", "prism flows info exports/ --json"))
def show_info(
    sources: Sources,
    skip_bad_rows: SkipBadRows = False,
    packet_bytes: PacketBytes = 4096,
    json: JsonFlag = False,
    verbose: VerboseFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Rows, time span, endpoints, rate, and what is missing."""
    from prism.records.flow_summary import summarize_flows

    read = read_sources(sources, skip_bad_rows, packet_bytes)
    summary = summarize_flows(read.flows)
    if json:
        show_json({"schema": "prism.flows-info/1", **asdict(summary), "report": asdict(read.report)})
        return
    show(_render(summary, read))


@app.command(
    "convert",
    epilog=examples("prism flows convert nfdump.csv flows.parquet", "prism flows convert exports/ all.jsonl"),
)
def convert(
    sources: Sources,
    output: Annotated[Path, typer.Argument(help="File to write; its ending chooses the format.")],
    skip_bad_rows: SkipBadRows = False,
    packet_bytes: PacketBytes = 4096,
    json: JsonFlag = False,
    verbose: VerboseFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Rewrite flow records from any tool as FLOWS columns, in nanoseconds."""
    from prism.records import write_flows

    read = read_sources(sources, skip_bad_rows, packet_bytes)
    write_flows(read.flows, output)
    if json:
        show_json({"schema": "prism.flows-convert/1", "output": str(output), "report": asdict(read.report)})
        return
    note(f"wrote {read.report.rows:,} flows to {output}")


def read_sources(sources: list[Path], skip_bad_rows: bool, packet_bytes: int) -> FlowsRead:
    """Read flow files with a progress bar, and say what was left out."""
    from prism.records import FlowOptions, load_flows
    from prism.records.files import expand

    options = FlowOptions(skip_bad_rows=skip_bad_rows, packet_bytes=packet_bytes)
    total = sum(path.stat().st_size for path in expand(sources))
    with progress("reading flows", total) as advance:
        read = load_flows(sources, options, progress=advance)
    for line in read.report.skipped_files:
        note(f"left out: {line}")
    for reason, count in read.report.skipped_rows.items():
        note(f"left out: {count:,} rows: {reason}")
    return read


def _render(summary: FlowSummary, read: FlowsRead) -> Table:
    span_s = (summary.end_ns - summary.start_ns) / 1e9 if summary.end_ns and summary.start_ns is not None else 0.0
    rows = [
        ("flows", f"{summary.rows:,} in {read.report.files:,} file{'s' if read.report.files != 1 else ''}"),
        ("time span", f"{span_s:,.3f} s, from {_when(summary.start_ns)}"),
        ("endpoints", f"{summary.endpoints:,} in {summary.pairs:,} directed pairs"),
        ("traffic", f"{_size(summary.bytes)}" + (f", {summary.gbit_per_s:,.2f} Gbit/s" if summary.gbit_per_s else "")),
        ("busiest senders", ", ".join(f"{a} ({_size(b)})" for a, b in summary.busiest) or "none"),
        ("sampling", f"up to 1 in {summary.max_sampling_rate:,}" if summary.max_sampling_rate else "not stated"),
        ("no end time", f"{summary.without_end:,} flows"),
        ("odd", f"{summary.zero_bytes:,} of zero bytes, {summary.same_endpoint:,} from an endpoint to itself"),
        ("columns missing", ", ".join(summary.missing_columns) or "none"),
        *(("note", line) for line in read.report.notes),
    ]
    return table(None, ("", ""), rows)


def _when(ns: int | None) -> str:
    from datetime import UTC, datetime

    if ns is None:
        return "nowhere"
    if ns < 10**17:
        return f"{ns / 1e9:,.3f} s (not a date)"
    return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if abs(count) < 1000 or unit == "PB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")
