"""`prism characterize`: what a GPU datacenter is used for, from its scheduler's job table."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from prism.cli.options import JsonFlag, OutputDir, SkipBadRows, examples
from prism.cli.terminal import note, progress, show, show_json, table

if TYPE_CHECKING:
    import polars as pl

    from prism.datacenter.characterize import Characterization, CharacterizeOptions, Comparison

EPILOG = examples(
    "prism characterize trace_seren.csv --cluster seren --output report",
    "prism characterize sacct.txt --gpus 1024 --time-zone Europe/Paris --json",
    "prism characterize jobs.csv --map gpus=num_gpu,start=submit_time:ms --save-profile site.toml",
    "prism characterize --system sacct --since now-28days --gpus 1024 --output report",
    "prism characterize --system kubernetes --store pods.jsonl --every 3600",
    "prism characterize a.csv b.csv --cluster east --cluster west",
    "prism characterize trace.csv --faults fault_trace.json --nodes 400 --save-s 45",
)


TracePaths = Annotated[
    list[Path] | None,
    typer.Argument(help="Job tables: CSV, Parquet, sacct's or kubectl's output, SWF, or any that the docs list."),
]
Clusters = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster", help="Name of the cluster, once per trace; picks its rows where the trace names clusters."
    ),
]
MapItems = Annotated[
    list[str] | None,
    typer.Option("--map", help="Which column is which field, and its unit: gpus=num_gpu,start=submit_time:ms."),
]
ColumnNames = Annotated[
    str | None, typer.Option("--columns", help="Names of the columns, in order, of a table without a header line.")
]
ProfileFile = Annotated[Path | None, typer.Option("--profile", help="Settings saved by --save-profile.")]
SaveProfileFile = Annotated[
    Path | None, typer.Option("--save-profile", help="Save --map, --columns and the cluster's settings here.")
]
Source = Annotated[
    str | None, typer.Option("--system", help="Read a running system instead: sacct, kubernetes (pods) or kueue.")
]
Since = Annotated[str | None, typer.Option("--since", help="With --system sacct: how far back, as sacct --starttime.")]
StoreFile = Annotated[
    Path | None, typer.Option("--store", help="With --system kubernetes or kueue: where pods that are gone are kept.")
]
Every = Annotated[int | None, typer.Option("--every", help="With --system: seconds between reports; else one report.")]
Times = Annotated[int | None, typer.Option("--rounds", help="With --every: stop after so many reports.")]
Until = Annotated[
    str | None, typer.Option("--until", help="When the table was exported; running jobs count up to then.")
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
NodeGpus = Annotated[int | None, typer.Option("--gpus-per-node", help="GPUs of one node; 8 if not said.")]
TimeZone = Annotated[
    str | None, typer.Option("--time-zone", help="Zone of times without one, and of the arrivals shown.")
]
SaveCost = Annotated[float, typer.Option("--save-s", help="Seconds that training stops for a checkpoint.")]
RestartCost = Annotated[
    float | None, typer.Option("--restart-s", help="Seconds that a restart takes; else as measured, or 600.")
]


def characterize_traces(
    traces: TracePaths = None,
    cluster: Clusters = None,
    map_items: MapItems = None,
    columns: ColumnNames = None,
    profile: ProfileFile = None,
    save_profile: SaveProfileFile = None,
    source: Source = None,
    since: Since = None,
    store: StoreFile = None,
    every: Every = None,
    times: Times = None,
    until: Until = None,
    output: OutputDir = None,
    utilisation: UtilisationFile = None,
    faults: FaultsFile = None,
    nodes: FleetNodes = None,
    gpus: ClusterGpus = None,
    gpus_per_node: NodeGpus = None,
    time_zone: TimeZone = None,
    save_cost: SaveCost = 30.0,
    restart_cost: RestartCost = None,
    skip_bad_rows: SkipBadRows = False,
    json_output: JsonFlag = False,
) -> None:
    """Report what a datacenter's GPUs were used for, lost to and waited for, beside five published ones."""
    from prism.datacenter.characterize import CharacterizeOptions, Profile, parse_choices, read_profile, write_profile

    names = cluster or []
    known = read_profile(profile) if profile else Profile()
    known = replace(
        known,
        choices={**known.choices, **parse_choices(map_items or [])},
        columns=tuple(name.strip() for name in columns.split(",")) if columns else known.columns,
        time_zone=time_zone or known.time_zone,
        cluster=names[0] if len(names) == 1 else known.cluster,
        gpus=gpus if gpus is not None else known.gpus,
        gpus_per_node=gpus_per_node if gpus_per_node is not None else known.gpus_per_node,
    )
    options = CharacterizeOptions(
        time_zone=known.time_zone,
        skip_bad_rows=skip_bad_rows,
        choices=known.choices,
        columns=known.columns,
        until=until,
        gpus=known.gpus,
        gpus_per_node=known.gpus_per_node if known.gpus_per_node is not None else 8,
        nodes=nodes,
        utilisation=utilisation,
        faults=faults,
        save_s=save_cost,
        restart_s=restart_cost,
    )
    if save_profile:
        write_profile(known, save_profile)
    _check_use(traces or [], names, source, since, every)
    if source:
        options = replace(options, cluster=known.cluster)
        _follow(source, since, store, options, Reports(every or 0, times, output, json_output))
        return
    clusters = [known.cluster] if not names and known.cluster and len(traces or []) == 1 else names
    _report(traces or [], clusters, options, Reports(0, 1, output, json_output))


class Reports(NamedTuple):
    """Where reports go, and how often."""

    every: int
    times: int | None
    output: Path | None
    json_output: bool


def _check_use(traces: list[Path], names: list[str], source: str | None, since: str | None, every: int | None) -> None:
    from prism.datacenter.characterize.live import SOURCES
    from prism.errors import BadConfigError

    if source is None and not traces:
        raise BadConfigError("no job table is given; name one, or read a running system with --system sacct")
    if source is not None and traces:
        raise BadConfigError(f"--system {source} and {traces[0]} are both given; give one of them")
    if source is not None and source not in SOURCES:
        raise BadConfigError(f"--system {source!r} is not known; give one of {', '.join(SOURCES)}")
    if source is None and (every is not None or since is not None):
        raise BadConfigError("--every and --since are for --system; a file is read once and whole")
    if every is not None and every < 1:
        raise BadConfigError(f"--every is {every}, expected at least 1 second")
    if len(names) > max(len(traces), 1):
        raise BadConfigError(f"--cluster is given {len(names)} times for {len(traces)} traces; give it once per trace")


def _follow(source: str, since: str | None, store: Path | None, options: CharacterizeOptions, to: Reports) -> None:
    """Report on a running system, once or every so often."""
    from prism.datacenter.characterize.live import DEFAULT_SINCE, fetch_sacct, list_objects, watch_objects

    done = 0
    with tempfile.TemporaryDirectory() as folder:
        table_file = store or Path(folder) / ("slurm.txt" if source == "sacct" else f"{source}.jsonl")
        while True:
            if source == "sacct":
                fetch_sacct(since or DEFAULT_SINCE, table_file)
            else:
                version = list_objects(source, table_file)
                if to.every:
                    watch_objects(source, table_file, version, to.every)
            _report([table_file], [], replace(options, until=options.until or str(int(time.time()))), to)
            done += 1
            if not to.every or done == to.times:
                return
            if source == "sacct":
                time.sleep(to.every)


def _report(traces: list[Path], names: list[str], options: CharacterizeOptions, to: Reports) -> None:
    from prism.datacenter.characterize import characterize, compare, write_document, write_report

    reports = []
    for index, path in enumerate(traces):
        own = replace(options, cluster=names[index] if index < len(names) else options.cluster)
        with progress(f"Reading {path.name}") as advance:
            reports.append(characterize(path, own, advance))
    comparison = compare(reports)
    if to.output is not None:
        written = write_report(reports, comparison, to.output)
        note(f"wrote {written[0]} and {len(written) - 1} files of numbers")
    if to.json_output:
        show_json(write_document(reports, comparison))
        return
    for report in reports:
        _show_first_page(report)
    for report in reports:
        _show_report(report)
    _show_comparison(comparison)


def _show_first_page(report: Characterization) -> None:
    """What was bought, used and lost, and what to do first."""
    from prism.datacenter.characterize.first_page import (
        HEADS,
        action_rows,
        change_rows,
        loss_rows,
        node_rows,
        trend_rows,
        use_rows,
        wait_rows,
    )

    title = (
        "SYNTHETIC  " if report.synthetic else ""
    ) + f"{report.name}: GPU-hours bought, and what they were used for"
    show(table(title, HEADS["use"], use_rows(report)))
    parts = (
        ("Lost, and to what", "loss", loss_rows(report)),
        ("What to do first (the most it can save; savings overlap)", "action", action_rows(report)),
        ("Nodes with most failed jobs", "node", node_rows(report)),
        ("Users whose jobs waited most", "wait", wait_rows(report)),
        ("Weeks up to the export", "trend", trend_rows(report)),
        ("What changed since the week before", "change", change_rows(report)),
    )
    for words, name, rows in parts:
        if rows:
            show(table(words, HEADS[name], rows))


def _show_report(report: Characterization) -> None:
    """One trace's tables."""
    import polars as pl

    from prism.datacenter.characterize.report import ADVICE_HEAD, advice_rows, summary_rows

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
        "reason",
        "state",
        "category",
        "count",
        "mean_gpus",
        ttf_min=pl.col("ttf_median_s") / 60,
        gpu_time="gpu_time_pct",
        restart_min=pl.col("restart_median_s") / 60,
    )
    heads_f = (
        "reason",
        "state",
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
    from prism.datacenter.characterize.comparison import METRICS, say

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
