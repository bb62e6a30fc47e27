"""`prism investigate`: everything a job left behind, one verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism.cli.options import JsonFlag, QuietFlag, VerboseFlag, examples
from prism.cli.terminal import note, show, show_json, table

if TYPE_CHECKING:
    from prism.investigate import Clue, Investigation

EPILOG = examples(
    "prism investigate /shared/flight-recorder/job-17",
    "prism investigate job-17/ --flows flows.parquet --topology topology.csv",
    "prism investigate job-17/ --json",
)


def run_investigate(
    folder: Annotated[Path, typer.Argument(help="Folder of one job: Flight Recorder dumps, logs of its ranks.")],
    flows: Annotated[list[Path] | None, typer.Option(help="Flow records of the same time.")] = None,
    topology: Annotated[Path | None, typer.Option(help="CSV with address, host, rail, switch of every NIC.")] = None,
    json: JsonFlag = False,
    verbose: VerboseFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Say what happened to a job, since when and who is to blame, from whatever it left behind."""
    from prism.investigate import investigate

    found = investigate(folder, _read_flows(flows, topology), say=note)
    if json:
        show_json(found.to_json())
    else:
        _show(found)


def _read_flows(flows: list[Path] | None, topology: Path | None) -> list[Clue]:
    if not flows:
        return []
    from prism.cli.flows import read_sources
    from prism.investigate.clues import read_findings
    from prism.observe import diagnose
    from prism.records import TOPOLOGY, FlowOptions, read_table

    read = read_sources(flows, FlowOptions())
    known = read_table(topology, TOPOLOGY) if topology is not None else None
    return read_findings(diagnose(read.flows, known).findings)


def _show(found: Investigation) -> None:
    verdict = found.fused
    who = ", ".join(f"{s.type} {s.id}" for s in verdict.culprits) or "nobody can be named"
    show(f"[bold]{verdict.what}[/bold]", f"who: {who} (sure {verdict.confidence:.0%})")
    if verdict.alternatives:
        show("or:  " + ", ".join(f"{s.type} {s.id}" for s in verdict.alternatives))
    if verdict.advice:
        show(f"next: {verdict.advice}")
    show(
        table(
            "Evidence",
            ["source", "what it says", ">sure"],
            [[c.source, c.text, f"{c.confidence:.0%}"] for c in found.clues],
        )
    )
    for line in found.notes:
        note(f"note: {line}")
