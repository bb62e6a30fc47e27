"""`prism lab`: real jobs in network namespaces, slowed down on purpose and diagnosed from their packets."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from prism.cli.options import JsonFlag, examples
from prism.cli.terminal import note, show, show_json, table

EPILOG = examples("sudo prism lab", "sudo prism lab --num-hosts 4 --output /tmp/lab")


def run_lab_command(
    hosts: Annotated[
        int, typer.Option("--num-hosts", help="4: one job, dp 2 x pp 2; more: beside it an FSDP job.", min=4, max=12)
    ] = 8,
    steps: Annotated[int, typer.Option(help="Healthy steps before each harm, and steps under it.", min=10)] = 30,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the capture and the logs.")] = Path(
        "prism-lab"
    ),
    json: JsonFlag = False,
) -> None:
    """Run real torch jobs over gloo between namespaces, slow a host and a cable, and check the diagnosis of both.

    Needs root, iproute2, tcpdump and softflowd; takes about two minutes. Exit 1 when anything came out wrong.
    """
    from prism.errors import BadConfigError
    from prism.lab.real_jobs import check_lab
    from prism.lab.testbed.lab import LabConfig

    if hosts == 5:
        raise BadConfigError("--num-hosts is 5, which leaves one for the second job; give 4, or 6 and more")
    checks = check_lab(LabConfig(hosts=hosts, steps=steps), output, note)
    right = sum(check.is_right for check in checks)
    if json:
        show_json({"schema": "prism.lab/1", "right": right, "checks": [asdict(check) for check in checks]})
    else:
        rows = [[c.phase, c.what, c.wanted, c.found, "yes" if c.is_right else "NO"] for c in checks]
        show(table(None, ("phase", "what", "true", "found", "right"), rows))
        show(f"{right} of {len(checks)} right; the capture is {output}/capture.pcap")
    if right < len(checks):
        raise typer.Exit(1)
