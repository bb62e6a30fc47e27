"""`prism goodput`: where every GPU-hour of supervised runs went."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from prism.cli.options import JsonFlag, examples
from prism.cli.terminal import note, show, show_json, table

EPILOG = examples(
    "prism goodput prism-run",
    "prism goodput runs/* --gpus 64 --json",
    "prism goodput runs/* --as-metrics > /var/lib/node_exporter/prism.prom",
)


def goodput(
    runs: Annotated[list[Path], typer.Argument(help="Folders of supervised runs.")],
    gpus: Annotated[int | None, typer.Option(help="GPUs of each run; else its ranks are counted.", min=1)] = None,
    prometheus: Annotated[bool, typer.Option("--as-metrics", help="Print Prometheus text instead.")] = False,
    json: JsonFlag = False,
) -> None:
    """Say where every GPU-hour went: training, lost work, restarts, stalls, hangs; per run, week and cause."""
    from prism.recover.supervise.goodput import KINDS, read_goodput, total_hours, write_metrics

    spans = read_goodput(runs, gpus)
    if prometheus:
        sys.stdout.write(write_metrics(spans))
        return
    tables = {"by_run": ("run", "kind"), "by_week": ("week", "kind"), "by_cause": ("kind", "cause")}
    totals = {name: total_hours(spans, *keys).to_dicts() for name, keys in tables.items()}
    kinds = {row["kind"]: row for row in total_hours(spans, "kind").to_dicts()}
    if "not reported" in kinds:
        note(
            f"{kinds['not reported']['share']:.0%} of the time is of jobs that report no steps, so how much of it was "
            "training is not known: logs carry no times. Steps are reported with --checkpoint auto or a TrainingLoop"
        )
    if json:
        whole = sum(row["gpu_hours"] for row in kinds.values())
        share = kinds["training"]["share"] if "training" in kinds else 0.0
        show_json({"schema": "prism.goodput/1", "gpu_hours": whole, "goodput": share, **totals})
        return
    rows = [(kind, f"{kinds[kind]['gpu_hours']:.4g}", f"{kinds[kind]['share']:.2%}") for kind in KINDS if kind in kinds]
    show(table("where the GPU-hours went", ("", ">GPU-hours", ">share"), rows))
    causes = [row for row in totals["by_cause"] if row["cause"]]
    if causes:
        told = [(row["cause"], row["kind"], f"{row['gpu_hours']:.4g}", f"{row['share']:.2%}") for row in causes]
        show(table("what it was lost to", ("cause", "", ">GPU-hours", ">share"), told))
    for name, key in (("by_run", "run"), ("by_week", "week")):
        if len({row[key] for row in totals[name]}) > 1:
            told = [(row[key], row["kind"], f"{row['gpu_hours']:.4g}", f"{row['share']:.2%}") for row in totals[name]]
            show(table(f"by {key}", (key, "", ">GPU-hours", ">share"), told))
