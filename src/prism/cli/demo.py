"""`prism demo`: the tour."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prism.cli.options import JsonFlag, QuietFlag, VerboseFlag, examples
from prism.cli.terminal import note, show, show_json, table

EPILOG = examples("prism demo", "prism demo --output /tmp/tour")


def run_demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the files to write.")] = Path("prism-demo"),
    json: JsonFlag = False,
    verbose: VerboseFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Show what Prism does on an embedded example."""
    import polars as pl

    from prism.records import write_flows
    from prism.records.flow_summary import summarize_flows

    # Eight endpoints in a ring, a burst every second: the smallest thing that looks like training.
    rows = [
        (step * 10**9, step * 10**9 + 2 * 10**8, f"10.0.0.{i + 1}", f"10.0.0.{(i + 1) % 8 + 1}", 1 << 28)
        for step in range(60)
        for i in range(8)
    ]
    flows = pl.DataFrame(rows, schema=["start_ns", "end_ns", "src", "dst", "bytes"], orient="row")
    write_flows(flows, output / "flows.parquet")
    summary = summarize_flows(flows)
    if json:
        show_json({"schema": "prism.demo/1", "output": str(output), "flows": summary.rows})
        return
    show(table("A minute of traffic", ("", ">"), [("flows", f"{summary.rows:,}"), ("endpoints", summary.endpoints)]))
    note(f"files are in {output}")
