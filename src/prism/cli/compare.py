"""`prism compare`: an expected timeline against an observed one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism.cli.options import JsonFlag, examples
from prism.cli.terminal import heading, show, show_json, table
from prism.errors import BadFileError

if TYPE_CHECKING:
    import polars as pl

EPILOG = examples(
    "prism compare yesterday/ today/",
    "prism compare emulated/timeline.parquet observed/timeline.parquet --json",
)


def run_compare(
    expected: Annotated[
        Path,
        typer.Argument(help="The expected or earlier timeline: a file of spans, or a folder that a command wrote."),
    ],
    observed: Annotated[Path, typer.Argument(help="The observed timeline.")],
    json: JsonFlag = False,
) -> None:
    """Say which parts of a step account for the difference between two timelines."""
    from prism.evidence.fusion import compare_timelines

    found = compare_timelines(_read_timeline(expected), _read_timeline(observed))
    if json:
        show_json(found.to_json())
        return
    sign = "longer" if found.difference_ms > 0 else "shorter"
    change = f"{abs(found.difference_ms):.2f} ms {sign}" if found.difference_ms else "no difference"
    show(heading(f"{found.expected_ms:.2f} ms a step, then {found.observed_ms:.2f}: {change}"))
    if found.is_noise:
        show(f"within the noise of {found.noise_ms:.2f} ms: nothing can be said to differ")
    rows = [
        [p.kind, "all" if p.rank is None else p.rank, "all" if p.step is None else p.step, f"{p.ms:+.3f}"]
        for p in found.parts[:20]
    ]
    show(table("Where it went", ["kind", "rank", "step", ">ms a step"], rows))


def _read_timeline(path: Path) -> pl.DataFrame:
    """The timeline in the folder of a command, the file itself, or the profiler traces of a folder."""
    import polars as pl

    from prism.evidence.traces import read_profile, write_spans
    from prism.evidence.traces.files import find_kind
    from prism.records import SPANS, read_table

    if not path.is_dir():
        return read_table(path, SPANS)
    for name in ("timeline.parquet", "spans.parquet"):
        if (path / name).is_file():
            return read_table(path / name, SPANS)
    traces = [p for p in sorted(path.rglob("*")) if p.is_file() and find_kind(p) == "traces"]
    if traces:
        return pl.concat([write_spans(read_profile(p)) for p in traces])
    raise BadFileError(
        f"{path}: holds neither timeline.parquet nor spans.parquet nor traces of PyTorch's profiler; give a folder "
        "written with --output"
    )
