"""`prism investigate`: one verdict from everything that a job left behind, or on a job that hangs now."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism.cli.options import JsonFlag, OutputDir, examples
from prism.cli.terminal import heading, note, show, show_json, table
from prism.errors import BadConfigError

if TYPE_CHECKING:
    from prism.evidence.fusion import Clue, Investigation

EPILOG = examples(
    "prism investigate /shared/flight-recorder/job-17",
    "prism investigate job-17/ --flows flows.parquet --topology topology.csv --output verdict/",
    "prism investigate job-17/ --prometheus http://prometheus:9090 --since 2h",
    "prism investigate --pid 4711",
    "prism investigate --job 8153",
    "prism investigate --pod training/llm-worker-0 --pod training/llm-worker-1",
    "prism investigate --hosts node-1,node-2",
)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def run_investigate(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Folder of one job: Flight Recorder dumps, profiles, logs of its ranks, RAS output."),
    ] = None,
    flows: Annotated[list[Path] | None, typer.Option(help="Flow records of the same time.")] = None,
    topology: Annotated[Path | None, typer.Option(help="CSV with address, host, rail, switch of every NIC.")] = None,
    prometheus: Annotated[str | None, typer.Option(help="URL of a Prometheus with DCGM and node exporter.")] = None,
    since: Annotated[str | None, typer.Option(help="Leave out what is older: 90m, 2h, 1d or a time (ISO).")] = None,
    pid: Annotated[list[int] | None, typer.Option(help="A rank or the launcher of a job that hangs now.")] = None,
    job: Annotated[
        str | None, typer.Option("--job", "--slurm", help="A Slurm job that hangs now; all its hosts are inspected.")
    ] = None,
    pod: Annotated[
        list[str] | None, typer.Option(help="A pod of a job that hangs now: NAME or NAMESPACE/NAME.")
    ] = None,
    hosts: Annotated[
        str | None, typer.Option(help="Hosts to ask over ssh, by commas; all ranks that they run.")
    ] = None,
    output: OutputDir = None,
    json: JsonFlag = False,
) -> None:
    """Say what happened to a job, since when and who is to blame, from whatever it left behind."""
    live = bool(pid or job or hosts or pod)
    if live == (folder is not None):
        raise BadConfigError("give either the folder of a job, or --pid, --job, --pod or --hosts of one that hangs now")
    if live:
        found = _ask_live(pid or [], job or "", hosts, pod or [])
    else:
        found = _read_folder(folder, _read_flows(flows, topology), prometheus, since)
    if output is not None:
        _write(
            found,
            output,
            str(folder) if folder else f"job {job}" if job else f"process {pid}" if pid else f"{hosts or pod}",
        )
    if json:
        show_json(found.to_json())
    else:
        _show(found)


def _read_folder(folder: Path | None, extra: list[Clue], prometheus: str | None, since: str | None) -> Investigation:
    from prism.evidence.fusion import Request, investigate

    assert folder is not None
    request = Request(prometheus=prometheus, since_ns=_read_since(since))
    return investigate(folder, extra, request=request, say=note)


def _ask_live(pids: list[int], job: str, hosts: str | None, pods: list[str]) -> Investigation:
    from prism.evidence.fusion.live import LiveJob, investigate_live

    named = tuple(h.strip() for h in (hosts or "").split(",") if h.strip())
    return investigate_live(LiveJob(pids=tuple(pids), hosts=named, slurm_job=job, pods=tuple(pods)), say=note)


def _read_since(text: str | None) -> int | None:
    """A time, or a time so long ago, in nanoseconds since 1970."""
    if text is None:
        return None
    ago = re.fullmatch(r"(\d{1,6})([smhd])", text.strip())
    if ago:
        return time.time_ns() - int(ago.group(1)) * _UNITS[ago.group(2)] * 10**9
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise BadConfigError(f"--since {text!r}: neither a length such as 90m or 2h nor a time in ISO form") from None
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()) * 10**9


def _read_flows(flows: list[Path] | None, topology: Path | None) -> list[Clue]:
    if not flows:
        return []
    from prism.cli.flows import read_sources
    from prism.collect.tables import FlowOptions
    from prism.evidence.fusion.slow_clues import read_findings
    from prism.observe import diagnose
    from prism.observe.sampled import keep_certain
    from prism.records import TOPOLOGY, read_table

    read = read_sources(flows, FlowOptions())
    known = read_table(topology, TOPOLOGY) if topology is not None else None
    found = keep_certain(diagnose(read.flows, known), read.flows, read.report.notes)
    for line in found.notes:
        note(line)
    places = {} if known is None else dict(zip(known["address"], known["host"], strict=True))
    return read_findings(found.findings, places)


def _write(found: Investigation, output: Path, title: str) -> None:
    """The page for people and the document for the dashboard."""
    import json as document

    from prism.evidence.fusion.page import write_page

    output.mkdir(parents=True, exist_ok=True)
    (output / "investigation.json").write_text(document.dumps(found.to_json()) + "\n")
    write_page(found, output / "investigation.html", title=f"Prism investigation of {title}")
    note(f"wrote {output / 'investigation.html'}")


def _show(found: Investigation) -> None:
    verdict = found.fused
    who = ", ".join(f"{s.type} {s.id}" for s in verdict.culprits) or "nobody can be named"
    show(heading(verdict.what), f"who: {who} (sure {verdict.confidence:.0%})")
    if verdict.since_ns is not None and 0 < verdict.since_ns < 4 * 10**18:
        show(f"since: {datetime.fromtimestamp(verdict.since_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC")
    if verdict.alternatives:
        show("or:  " + ", ".join(f"{s.type} {s.id}" for s in verdict.alternatives[:10]))
    if verdict.advice:
        show(f"next: {verdict.advice}")
    rows = [[c.source, c.text, f"{c.confidence:.0%}"] for c in found.clues]
    show(table("Evidence", ["source", "what it says", ">sure"], rows))
    if found.profiles is not None:
        _show_profiles(found)
    for line in found.notes:
        note(f"note: {line}")


def _show_profiles(found: Investigation) -> None:
    assert found.profiles is not None
    rows: list[list[object]] = []
    for row in found.to_json()["profile"]["breakdown"]:
        if row["step"] is None and len(rows) < 16:
            parts = ("span", "compute", "exposed", "overlapped", "idle", "idle_host")
            rows.append([row["rank"], *(f"{row[f'{p}_ms']:.1f}" for p in parts)])
    heads = [">rank", ">span ms", ">compute", ">exposed comm", ">overlapped", ">idle", ">of it host late"]
    show(table("Profiles", heads, rows))
