"""`prism place`: which cluster should run a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prism.cli.options import JsonFlag, QuietFlag, VerboseFlag, examples
from prism.cli.terminal import note, progress, show, show_json, table
from prism.errors import BadConfigError

app = typer.Typer(help="Which cluster should run a job; what sharing clusters would have saved.", no_args_is_help=True)


@app.command(
    "simulate",
    epilog=examples(
        "prism place simulate jobs.parquet --clusters clusters.csv",
        "prism place simulate jobs.csv --clusters clusters.yaml --policy static-easy --policy prism --json",
    ),
)
def run_simulate(
    jobs: Annotated[Path, typer.Argument(help="Jobs: submission time, seconds, gpus, cluster (CSV or Parquet).")],
    clusters: Annotated[Path, typer.Option(help="Clusters: name and gpus (CSV, Parquet or YAML).")],
    policy: Annotated[list[str] | None, typer.Option(help="Policies to run; all of them where none is named.")] = None,
    json: JsonFlag = False,
    verbose: VerboseFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Run a trace of jobs through policies of sharing clusters, and compare how long jobs wait."""
    from prism.place import POLICIES, read_clusters, read_jobs, simulate

    unknown = [name for name in policy or () if name not in POLICIES]
    if unknown:
        raise BadConfigError(f"'{unknown[0]}' is no policy; expected one of {', '.join(POLICIES)}")
    known = read_clusters(clusters)
    trace, seconds = read_jobs(jobs)
    found = {}
    chosen = list(policy or POLICIES)
    with progress("simulating", len(chosen)) as advance:
        for name in chosen:
            found[name] = simulate(trace, seconds, known, POLICIES[name]).to_json()
            advance(1)
    if json:
        show_json({"schema": "prism.placement/1", "policies": found})
        return
    for name, told in found.items():
        if told["left_out"]:
            note(f"{name}: {told['left_out']:,} jobs fit nowhere and were left out")
    rows = [
        [
            n,
            f"{t['mean_queue_s']:,.0f}",
            f"{t['p50_queue_s']:,.0f}",
            f"{t['p99_queue_s']:,.0f}",
            f"{t['moved_pct']:.1f}",
        ]
        for n, t in found.items()
    ]
    columns = ["policy", ">mean wait s", ">median s", ">p99 s", ">% not at home"]
    show(table(f"{len(trace):,} jobs, {sum(c.gpus for c in known):,} GPUs in {len(known)} clusters", columns, rows))
