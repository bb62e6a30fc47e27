"""`prism check`: would this script hang on so many ranks, and at which line?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prism.cli.emulate import GpusPerNode, MaxLive, Script, Timeout, WorldSize, need_torch
from prism.cli.options import JsonFlag, examples
from prism.cli.terminal import fail, note, show_json, verbosity

EPILOG = examples(
    "prism check --world-size 256 -- train.py --layers 8",
    "prism check --world-size 8 --sarif check.sarif --junit check.xml -- train.py",
    "prism check --world-size 64 --json -- -m mypackage.train",
)

Iterations = Annotated[int, typer.Option(help="Iterations to run; in large worlds fewer.", min=1)]
AllUpTo = Annotated[
    int, typer.Option(help="Run every rank of worlds up to this size; of larger ones each kind and a sample.", min=0)
]
Sarif = Annotated[Path | None, typer.Option(help="Also write the problems as SARIF, for code scanning.")]
Junit = Annotated[Path | None, typer.Option(help="Also write the answer as a JUnit report.")]


def run_check(
    script: Script = None,
    world_size: WorldSize = 8,
    gpus_per_node: GpusPerNode = 8,
    iterations: Iterations = 8,
    all_up_to: AllUpTo = 1024,
    timeout: Timeout = 1800.0,
    max_live: MaxLive = 64,
    sarif: Sarif = None,
    junit: Junit = None,
    json: JsonFlag = False,
) -> None:
    """Would the ranks of a script hang, or call different things? Exit 0 no, 2 yes, 3 it cannot be checked."""
    need_torch("prism check")
    from prism.emulate import CheckConfig, LaunchConfig, check
    from prism.emulate.check_documents import describe_check, write_junit, write_sarif

    command = tuple(script or ())
    launch = LaunchConfig(
        script=command, world_size=world_size, gpus_per_node=gpus_per_node, timeout_s=timeout, max_live=max_live,
        note=note,
    )  # fmt: skip
    report = check(CheckConfig(launch=launch, steps=iterations, most_ranks=all_up_to, note=note))
    for path, write in ((sarif, write_sarif), (junit, write_junit)):
        if path is not None:
            write(report, path, command[1] if command[0] == "-m" and len(command) > 1 else command[0])
            note(f"wrote {path}")
    if verbosity.level > 0 and report.output:
        note(report.output.rstrip())
    if json:
        show_json(describe_check(report))
    elif report.exit_code:
        more = "; its own output: -v" if report.output and verbosity.level <= 0 else ""
        fail(report.describe() + more)
    else:
        typer.echo(f"{report.describe()} ({report.wall_s:.1f} s)")
    raise typer.Exit(report.exit_code)
