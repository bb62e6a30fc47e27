"""`prism characterize`: what a GPU datacenter is used for, from its scheduler's job table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism.cli.options import JsonFlag, OutputDir, QuietFlag, SkipBadRows, VerboseFlag, examples
from prism.cli.terminal import note, progress, show, show_json, table

if TYPE_CHECKING:
    import polars as pl

    from prism.characterize import Characterization, Comparison

EPILOG = examples(
    "prism characterize trace_seren.csv --cluster seren --output report",
    "prism characterize sacct.txt --gpus 1024 --time-zone Europe/Paris --json",
    "prism characterize a.csv b.csv --cluster east --cluster west",
    "prism characterize trace.csv --faults fault_trace.json --nodes 400 --save-cost 45",
)


TracePaths = Annotated[
    list[Path], typer.Argument(help="Job tables: CSV, Parquet or Philly's JSON, with any columns that the docs list.")
]
Clusters = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster", help="Name of the cluster, once per trace; picks its rows where the trace names clusters."
    ),
]
UtilisationFile = Annotated[
    Path | None, typer.Option("--utilisation", help="Utilisation samples or quantiles (CSV, Parquet).")
]
FaultsFile = Annotated[
    Path | None, typer.Option("--faults", help="Node faults: InfiniteHBD's JSON, or CSV of node, start, end.")
]
FleetNodes = Annotated[int | None, typer.Option("--nodes", help="Nodes of the fleet that the fault file is about.")]
ClusterGpus = Annotated[
    float | None, typer.Option("--gpus", help="GPUs of the cluster; else the most ever in use at once.")
]
NodeGpus = Annotated[int, typer.Option("--gpus-per-node", help="GPUs of one node.")]
TimeZone = Annotated[
    str | None, typer.Option("--time-zone", help="Zone of times without one, and of the arrivals shown.")
]
SaveCost = Annotated[float, typer.Option("--save-cost", help="Seconds that training stops for a checkpoint.")]
RestartCost = Annotated[
    float | None, typer.Option("--restart-cost", help="Seconds that a restart takes; else as measured, or 600.")
]


def characterize_traces(
    traces: TracePaths,
    cluster: Clusters = None,
    output: OutputDir = None,
    utilisation: UtilisationFile = None,
    faults: FaultsFile = None,
    nodes: FleetNodes = None,
    gpus: ClusterGpus = None,
    gpus_per_node: NodeGpus = 8,
    time_zone: TimeZone = None,
    save_cost: SaveCost = 30.0,
    restart_cost: RestartCost = None,
    skip_bad_rows: SkipBadRows = False,
    json_output: JsonFlag = False,
    verbose: VerboseFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Report what a datacenter's jobs are, how they end and what they cost, beside five published ones."""
    from prism.characterize import CharacterizeOptions, characterize, compare, write_document, write_report
    from prism.errors import BadConfigError

    names = cluster or []
    if len(names) > len(traces):
        raise BadConfigError(f"--cluster is given {len(names)} times for {len(traces)} traces; give it once per trace")
    reports = []
    for index, path in enumerate(traces):
        options = CharacterizeOptions(
            cluster=names[index] if index < len(names) else None,
            time_zone=time_zone,
            skip_bad_rows=skip_bad_rows,
            gpus=gpus,
            gpus_per_node=gpus_per_node,
            nodes=nodes,
            utilisation=utilisation,
            faults=faults,
            save_s=save_cost,
            restart_s=restart_cost,
        )
        with progress(f"Reading {path.name}") as advance:
            reports.append(characterize(path, options, advance))
    comparison = compare(reports)
    if output is not None:
        written = write_report(reports, comparison, output)
        note(f"wrote {written[0]} and {len(written) - 1} files of numbers")
    if json_output:
        show_json(write_document(reports, comparison))
        return
    for report in reports:
        _show_report(report)
    _show_comparison(comparison)


def _show_report(report: Characterization) -> None:
    """One trace's tables."""
    import polars as pl

    from prism.characterize.report import ADVICE_HEAD, advice_rows, summary_rows

    found = report.study
    title = f"{report.name}  ({report.trace.path.name}, {report.trace.columns.format} columns)"
    show(table(("SYNTHETIC  " if report.synthetic else "") + title, ("", ">"), summary_rows(report)))
    shares = (">jobs", ">% of jobs", ">% of GPU time")
    gpu_states = found.states.filter(pl.col("kind") == "gpu").select("state", "jobs", "jobs_pct", "gpu_time_pct")
    show(table("Final states of GPU jobs", ("state", *shares), _format(gpu_states)))
    medians = found.lengths.filter(pl.col("by") == "type").pivot("measure", index="group", values="median")
    types = found.types.join(medians, left_on="type", right_on="group", how="left")
    wanted = [c for c in ("type", "jobs", "jobs_pct", "gpu_time_pct", "duration_s", "queue_s") if c in types.columns]
    heads = {"duration_s": ">median s", "queue_s": ">median queue s"}
    show(table("Job types", ("type", *shares, *(heads[c] for c in wanted[4:])), _format(types.select(wanted).head(12))))
    marks = found.sizes.filter(pl.col("gpus").is_in([float(1 << power) for power in range(15)]))
    columns = ("gpus", "jobs_ge_pct", "jobs_gt_pct", "gpu_time_ge_pct", "gpu_time_gt_pct")
    heads_ge = (">GPUs", ">% jobs >=", ">% jobs >", ">% GPU time >=", ">% GPU time >")
    show(table("Jobs at or above, and above, a size", heads_ge, _format(marks.select(columns))))
    failures = found.failures.select(
        "reason", "category", "count", "mean_gpus", ttf_min=pl.col("ttf_median_s") / 60, gpu_time="gpu_time_pct",
        restart_min=pl.col("restart_median_s") / 60,
    )  # fmt: skip
    heads_f = (
        "reason",
        "class",
        ">count",
        ">mean GPUs",
        ">median min to failure",
        ">% of failed GPU time",
        ">median min to restart",
    )
    show(table("Failures, costliest first", heads_f, _format(failures.head(12))))
    if report.faults is not None:
        _show_faults(report)
    if report.utilisation is not None:
        kept = report.utilisation.metrics.select("metric", "mean", "p10", "p50", "p90", "p99", "zero_pct", "full_pct")
        show(
            table(
                "Utilisation",
                ("metric", ">mean", ">p10", ">p50", ">p90", ">p99", ">% at 0", ">% at 95 or more"),
                _format(kept),
            )
        )
    if report.plan is not None:
        head = f"Checkpoint interval, from {report.plan.basis}\n{report.plan.formula}"
        show(table(head, tuple(f">{name}" for name in ADVICE_HEAD), advice_rows(report.plan)))
    for line in report.notes:
        show(f"- {line}")
    show("")


def _show_faults(report: Characterization) -> None:
    faults = report.faults
    assert faults is not None
    gap, repair = faults.hours_between_faults, faults.repair_hours
    seen = "" if faults.nodes_known else " seen"
    rows = [
        ("faults, nodes hit", f"{faults.faults:,}, {faults.nodes_hit:,} of {faults.nodes:,}{seen}"),
        ("hours between faults, mean / median", f"{gap.mean or 0:.1f} / {gap.median or 0:.1f}"),
        ("days between faults of one node", f"{faults.node_mtbf_hours / 24:.0f}"),
        ("hours to repair, median / p90", f"{repair.median or 0:.1f} / {repair.p90 or 0:.0f}"),
        ("node-time down", f"{faults.down_pct:.1f} %"),
        ("faults on nodes that failed more than once", f"{faults.repeat_fault_pct:.1f} %"),
    ]
    show(table("Node faults", ("", ">"), rows))


def _show_comparison(comparison: Comparison) -> None:
    from prism.characterize.comparison import METRICS, say

    values = {(c, m): v for c, m, v in comparison.table.select("cluster", "metric", "value").iter_rows()}
    clusters = comparison.table["cluster"].unique(maintain_order=True).to_list()
    rows = [(words, *(say(values[c, metric], unit) for c in clusters)) for metric, words, unit in METRICS]
    show(table("Beside published datacenters (AcmeTrace, CC-BY-4.0)", ("", *(f">{c}" for c in clusters)), rows))
    for line in comparison.differences:
        show(f"- {line}")


def _format(frame: pl.DataFrame) -> list[list[str]]:
    """Cells as short text."""
    return [[_say_cell(value) for value in row] for row in frame.iter_rows()]


def _say_cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
