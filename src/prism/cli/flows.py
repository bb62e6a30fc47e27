"""`prism flows`: look at flow records and convert them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism.cli.options import App, JsonFlag, MapOption, SkipBadRows, examples
from prism.cli.terminal import note, progress, show, show_json, table

if TYPE_CHECKING:
    from rich.table import Table

    from prism.collect.flow_check import FlowCheck
    from prism.collect.tables import FlowOptions, FlowsRead
    from prism.collect.tables.summary import FlowSummary

app = App(help="Look at flow records and convert them.", no_args_is_help=True)

Sources = Annotated[
    list[Path],
    typer.Argument(
        help="Flow files or folders of them: Parquet, CSV, JSON, Arrow, nfcapd, pcap, Zeek, VPC flow logs, SiLK, "
        "sflowtool, goflow2; compressed or not."
    ),
]
PacketBytes = Annotated[int, typer.Option(help="Bytes per packet where a file counts packets only.", min=1)]


@app.command("info", epilog=examples("prism flows info flows.parquet", "prism flows info exports/ --json"))
def show_info(
    sources: Sources,
    map_columns: MapOption = None,
    skip_bad_rows: SkipBadRows = False,
    packet_bytes: PacketBytes = 4096,
    json: JsonFlag = False,
) -> None:
    """Rows, time span, endpoints, rate, and what is missing."""
    from prism.collect.tables.summary import summarize_flows

    read = read_sources(sources, make_options(map_columns, skip_bad_rows, packet_bytes, keep_cut_times=True))
    summary = summarize_flows(read.flows)
    if json:
        show_json({"schema": "prism.flows-info/1", **asdict(summary), "report": asdict(read.report)})
        return
    show(_render(summary, read))


@app.command(
    "check",
    epilog=examples(
        "prism flows check nfcapd.202311142210",
        "prism flows check export.csv --map src=ip_src,start=TIMESTAMP_START:us --save-map mine.yaml",
        "prism flows check sflow.pcap --exporter sonic",
    ),
)
def check(
    sources: Sources,
    map_columns: MapOption = None,
    save_map: Annotated[
        Path | None, typer.Option(help="Save the mapping of --map in this file, for later runs.")
    ] = None,
    exporter: Annotated[
        str | None, typer.Option(help="Show the settings of this exporter only (arista, sonic, hsflowd, ...).")
    ] = None,
    skip_bad_rows: SkipBadRows = False,
    packet_bytes: PacketBytes = 4096,
    json: JsonFlag = False,
) -> None:
    """Say what the records can show: resolution, timeouts, sampling, double export, and which settings to change."""
    from rich.text import Text

    from prism.collect.exporter_settings import SETTINGS
    from prism.collect.flow_check import check_flows

    if exporter is not None and exporter not in SETTINGS:
        raise typer.BadParameter(f"--exporter {exporter}: known are {', '.join(SETTINGS)}")
    read = read_sources(sources, make_options(map_columns, skip_bad_rows, packet_bytes, keep_cut_times=True))
    found = check_flows(read.flows)
    if save_map is not None:
        write_map(map_columns, save_map)
    shown = {exporter: SETTINGS[exporter]} if exporter else SETTINGS
    settings = {
        key: {what: list(getattr(one, what)) for what in found.change if getattr(one, what)}
        for key, one in shown.items()
    }
    settings = {key: what for key, what in settings.items() if what}
    if json:
        document = {**asdict(found), "report": asdict(read.report), "settings": settings}
        show_json({"schema": "prism.flows-check/1", **document})
        return
    show(_render_check(found, read))
    for key, changes in settings.items():
        for lines in changes.values():
            show(Text(f"  {SETTINGS[key].exporter}: " + "; ".join(lines)))


@app.command(
    "topology",
    epilog=examples(
        "prism flows topology leaf-*/config_db.json --output topology.csv",
        "prism flows topology dumps/ --output topology.csv",
        "prism flows topology flows.parquet --auto --output topology.csv",
    ),
)
def make_topology(
    sources: Annotated[
        list[Path], typer.Argument(help="LLDP and address dumps, SONiC config_db.json, NetBox exports; or flows.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="CSV to write: address,host,rail,switch.")],
    auto: Annotated[bool, typer.Option("--auto", help="The sources are flows: guess hosts from them.")] = False,
    map_columns: MapOption = None,
    json: JsonFlag = False,
) -> None:
    """Write the topology file for `--topology`, from what the sources say or by a guess with a confidence."""
    from prism.collect.topology_files import read_topology_sources
    from prism.collect.topology_guess import guess_topology
    from prism.records import TOPOLOGY, write_table

    rule, confidence = "as the sources say", 1.0
    if auto:
        read = read_sources(sources, make_options(map_columns, skip_bad_rows=False, keep_cut_times=True))
        guess = guess_topology(read.flows)
        topology, rule, confidence = guess.topology, guess.rule, guess.confidence
    else:
        topology = read_topology_sources(sources)
    write_table(topology, output, TOPOLOGY)
    hosts = topology["host"].n_unique()
    if json:
        document = {"output": str(output), "addresses": topology.height, "hosts": hosts}
        show_json({"schema": "prism.topology/1", **document, "rule": rule, "confidence": confidence})
        return
    note(f"wrote {topology.height:,} addresses of {hosts:,} hosts to {output}: {rule}, confidence {confidence:g}")


@app.command(
    "convert",
    epilog=examples("prism flows convert nfdump.json flows.parquet", "prism flows convert exports/ all.jsonl"),
)
def convert(
    sources: Sources,
    output: Annotated[Path, typer.Argument(help="File to write; its ending chooses the format.")],
    map_columns: MapOption = None,
    skip_bad_rows: SkipBadRows = False,
    packet_bytes: PacketBytes = 4096,
    json: JsonFlag = False,
) -> None:
    """Rewrite flow records from any tool as FLOWS columns, in nanoseconds."""
    from prism.collect.tables import write_flows

    read = read_sources(sources, make_options(map_columns, skip_bad_rows, packet_bytes, keep_cut_times=True))
    write_flows(read.flows, output)
    if json:
        show_json({"schema": "prism.flows-convert/1", "output": str(output), "report": asdict(read.report)})
        return
    for line in read.report.notes:
        note(f"note: {line}")
    note(f"wrote {read.report.rows:,} flows to {output}")


def make_options(
    map_columns: str | None, skip_bad_rows: bool, packet_bytes: int = 4096, *, keep_cut_times: bool = False
) -> FlowOptions:
    """How to read, from the options of the command line."""
    from prism.collect.tables import FlowOptions
    from prism.collect.tables.aliases import parse_columns

    return FlowOptions(
        skip_bad_rows=skip_bad_rows,
        packet_bytes=packet_bytes,
        columns=parse_columns(_read_map(map_columns)) if map_columns is not None else (),
        keep_cut_times=keep_cut_times,
    )


def read_sources(sources: list[Path], options: FlowOptions) -> FlowsRead:
    """Read flow files with a progress bar, and say what was left out."""
    from prism.collect import load_inputs
    from prism.records.files import expand

    total = sum(path.stat().st_size for path in expand(sources).files)
    with progress("reading flows", total) as advance:
        read = load_inputs(sources, options, progress=advance)
    for line in read.report.skipped_files:
        note(f"left out: {line}")
    for reason, count in read.report.skipped_rows.items():
        note(f"left out: {count:,} rows: {reason}")
    return read


def _read_map(text: str) -> str:
    """The value of `--map`, or of the file of `--save-map` that it names."""
    import yaml

    from prism.errors import BadFileError

    if "=" in text:
        return text
    try:
        document = yaml.safe_load(Path(text).read_text())
        return ",".join(f"{name}={column}" for name, column in document["columns"].items())
    except (OSError, KeyError, TypeError, AttributeError, UnicodeDecodeError, yaml.YAMLError):
        raise BadFileError(f"--map {text}: neither NAME=COLUMN,... nor a file saved by --save-map") from None


def write_map(map_columns: str | None, path: Path) -> None:
    """Save what `--map` says."""
    import yaml

    if map_columns is None:
        raise typer.BadParameter("--save-map: there is nothing to save; say --map as well")
    words = dict(part.strip().split("=", 1) for part in _read_map(map_columns).split(",") if part.strip())
    path.write_text(yaml.safe_dump({"columns": words}, sort_keys=False))
    note(f"wrote {path}; use it as --map {path}")


def _render_check(found: FlowCheck, read: FlowsRead) -> Table:
    def ms(value: float | None) -> str:
        return "unknown" if value is None else f"{value:,.3f} ms"

    rate = "every packet" if not found.sampling_rate or found.sampling_rate == 1 else f"1 in {found.sampling_rate:,}"
    samples = f", about {found.samples_per_record:,.0f} samples a record" if found.samples_per_record else ""
    rows = [
        ("records", f"{found.rows:,} from {found.exporters or 'unnamed'} exporters"),
        ("times", f"multiples of {found.resolution}; {found.without_end_pct:g} % without an end"),
        ("records last", f"{ms(found.median_ms)} (median), {ms(found.longest_ms)} (longest)"),
        ("active timeout", ms(found.active_timeout_ms) if found.active_timeout_ms else "none seen"),
        ("sampling", rate + samples),
        ("double export", f"{found.double_export_pct:g} %"),
        ("steps seen from", ms(found.shortest_step_ms)),
        *(("problem", line) for line in found.problems),
        *(("note", line) for line in read.report.notes),
    ]
    return table(None, ("", ""), rows)


def _render(summary: FlowSummary, read: FlowsRead) -> Table:
    span_s = (summary.end_ns - summary.start_ns) / 1e9 if summary.end_ns and summary.start_ns is not None else 0.0
    rows = [
        ("flows", f"{summary.rows:,} in {read.report.files:,} file{'s' if read.report.files != 1 else ''}"),
        ("time span", f"{span_s:,.3f} s, from {_when(summary.start_ns)}" if summary.start_ns is not None else "none"),
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


def _when(ns: int) -> str:
    from datetime import UTC, datetime

    if ns < 10**17:
        return f"{ns / 1e9:,.3f} s (not a date)"
    return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if abs(count) < 1000 or unit == "PB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")
