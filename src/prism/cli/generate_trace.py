"""`prism generate-trace`: a synthetic job trace with a datacenter's published statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prism.cli.options import JsonFlag, examples
from prism.cli.terminal import note, progress, show_json

EPILOG = examples(
    "prism generate-trace seren --output seren.csv",
    "prism generate-trace kalos --num-jobs 1000000 --seed 7 --output kalos.parquet",
)


def generate_trace_file(
    cluster: Annotated[str, typer.Argument(help="Whose statistics: seren or kalos.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .csv or .parquet.")],
    jobs: Annotated[
        int | None, typer.Option("--num-jobs", "-n", help="Jobs to make; else as many as published.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same trace.")] = 0,
    json_output: JsonFlag = False,
) -> None:
    """Write a synthetic trace of Seren or Kalos: no real job is in it, and every job id says so."""
    from prism.datacenter.characterize import GeneratorOptions
    from prism.datacenter.characterize.generator import NOTICE, write_trace

    options = GeneratorOptions(cluster=cluster.lower(), jobs=jobs, seed=seed)
    with progress(f"Making {cluster} jobs", total=jobs) as advance:
        count = write_trace(options, output, advance)
    note(f"wrote {count:,} jobs to {output}: {NOTICE}")
    if json_output:
        show_json(
            {
                "file": str(output),
                "jobs": count,
                "cluster": options.cluster,
                "seed": seed,
                "synthetic": True,
                "notice": NOTICE,
            }
        )
