"""`prism demo`: the tour."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prism.cli.diagnose import show_diagnosis, write_diagnosis
from prism.cli.options import JsonFlag, QuietFlag, VerboseFlag, examples
from prism.cli.terminal import note, progress, show, show_json, table

if TYPE_CHECKING:
    from prism.scenarios import ScenarioRun

EPILOG = examples("prism demo", "prism demo --output /tmp/tour", "prism demo --scenario slow-gpu-64")


def run_demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the files to write.")] = Path("prism-demo"),
    scenario: Annotated[str, typer.Option(help="Any scenario that `prism scenario --list` names.")] = "demo-512",
    json: JsonFlag = False,
    verbose: VerboseFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Make a cluster with planted faults, and diagnose it from its flows alone."""
    from prism.observe import diagnose
    from prism.scenarios import load_scenario, make_scenario, write_scenario

    with progress("making the cluster's traffic"):
        made = make_scenario(load_scenario(scenario), 0)
        write_scenario(made, output / "cluster")
    with progress("diagnosing it"):
        diagnosis = diagnose(made.flows, made.topology)
        write_diagnosis(diagnosis, output)
    if json:
        show_json({"schema": "prism.demo/1", "output": str(output), "planted": made.truth["faults"],
                   "found": diagnosis.to_json()["findings"]})  # fmt: skip
        return
    jobs = made.truth["jobs"]
    show(
        f"A cluster of {sum(j['gpus'] for j in jobs):,} GPUs and {len(jobs)} tenants, "
        f"{made.flows.height:,} flow records. Planted, unknown to the diagnosis:"
    )
    show(table(None, ("what", "job", "culprit", ">GPU s lost"), _planted(made)))
    show("Found, from the flows alone; jobs are numbered anew:\n")
    show_diagnosis(diagnosis)
    note(f"open {output}/timeline.perfetto-trace in ui.perfetto.dev; the rest is in {output}")


def _planted(made: ScenarioRun) -> list[list[Any]]:
    rows = []
    for fault in made.truth["faults"]:
        blamed = f"{fault['culprit']['type']} {fault['culprit']['id']}"
        rows.append([fault["kind"], ", ".join(fault["jobs"]), blamed, f"{fault['lost_gpu_seconds']:,.0f}"])
    return rows
