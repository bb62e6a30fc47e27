"""`prism calibrate`: time collectives on the ranks at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prism.cli.options import JsonFlag, examples
from prism.cli.terminal import note, show, show_json, table

EPILOG = examples(
    "prism calibrate --backend gloo --output calibration.parquet",
    "prism calibrate --backend nccl --world-size 8 --output h200.parquet",
    "prism calibrate --nccl-tests all_reduce_perf.txt --output cluster.parquet",
)


def run_calibrate(
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .parquet, .csv or .json.")],
    backend: Annotated[str, typer.Option(help="gloo or nccl.")] = "gloo",
    ranks: Annotated[
        int | None, typer.Option("--world-size", "-n", help="Ranks of this host; one per core or GPU if not given.")
    ] = None,
    largest: Annotated[int, typer.Option(help="Largest message in MiB.", min=1)] = 64,
    source: Annotated[
        Path | None, typer.Option("--nccl-tests", help="nccl-tests output to read instead of measuring.")
    ] = None,
    pin: Annotated[bool, typer.Option(help="gloo: one core per rank; torchrun pins none.")] = False,
    json: JsonFlag = False,
) -> None:
    """Time collectives on the ranks at hand and write a calibration file."""
    from prism.errors import BadConfigError
    from prism.simulate.calibration import read_calibration, write_calibration

    if backend not in ("gloo", "nccl"):
        raise BadConfigError(f"--backend is '{backend}', expected gloo or nccl")
    if output.suffix.lower() not in (".parquet", ".csv", ".json"):
        raise BadConfigError(f"{output}: a calibration is written as .parquet, .csv or .json")
    if source is not None:
        found = read_calibration(source)
    else:
        from prism.emulate import calibrate

        found = calibrate(backend, ranks, largest_bytes=largest << 20, pin=pin)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_calibration(found, output)
    if json:
        rows = found.points.to_dicts()
        show_json({"schema": "prism.calibration/1", "output": str(output), "backend": found.backend, "points": rows})
        return
    show(table(f"{found.backend}, {found.points.height} points", ("kind", ">ranks", ">bytes", ">µs"), (
        (kind, ranks, f"{size:,}", f"{ns / 1e3:,.1f}")
        for kind, ranks, size, ns in found.points.select("kind", "num_ranks", "bytes", "duration_ns").iter_rows()
    )))  # fmt: skip
    note(f"wrote {output}")
