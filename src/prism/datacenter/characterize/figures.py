"""The report's figures: each with a chart, a description, and its table of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from prism.datacenter.characterize.capacity import Capacity
from prism.datacenter.characterize.characterization import Characterization
from prism.datacenter.characterize.comparison import METRICS, Comparison
from prism.datacenter.characterize.faults import FaultStudy
from prism.datacenter.characterize.published import find_utilisation_medians
from prism.datacenter.characterize.study import Study
from prism.drawing.charts import Bars, Series, draw_bars, draw_heat_map, draw_lines, draw_pareto

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_TIME_TICKS = (
    (1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"), (36_000, "10 h"), (86_400, "1 d"),
    (604_800, "1 wk"), (2_592_000, "30 d"),
)  # fmt: skip
_MOST_LINES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of the report; `name` is also that of its CSV file."""

    name: str
    caption: str
    table: pl.DataFrame
    svg: str | None = None  # None: the table itself is what is shown


def draw_figures(report: Characterization) -> list[Figure]:
    """All figures that the data allows, in the order of the report."""
    found = report.study
    figures = [
        *_curves(found),
        _sizes(found),
        *_states(found),
        *_types(found),
        *_time(found, report.clock),
        *_users(found),
        *_failures(found),
        *_utilisation(report),
        *(_faults(report.faults) if report.faults else ()),
    ]
    return [figure for figure in figures if not figure.table.is_empty()]


def draw_occupancy(report: Characterization) -> Figure | None:
    """GPUs held and waited for per day; None if the trace has no times."""
    days = report.study.occupancy
    if days.is_empty():
        return None
    count = days["date"].to_physical() - days["date"].to_physical()[0]
    lines = [
        Series(words, count.to_list(), days[name].to_list())
        for name, words in (("busy_gpus", "GPUs held"), ("waiting_gpus", "GPUs waited for"))
    ]
    size = report.study.capacity.gpus if report.study.capacity and report.study.capacity.gpus_known else None
    if size:
        lines.append(Series("GPUs bought", [0, float(count[-1])], [size, size]))
    return Figure(
        name="occupancy",
        caption="Mean GPUs held by jobs and waited for by jobs in the queue, per day (UTC).",
        table=days,
        svg=draw_lines("Occupancy", lines, x_label=f"days since {days['date'][0]}", y_label="GPUs", steps=True),
    )


def tabulate_comparison(comparison: Comparison) -> Figure:
    """A comparison of datacenters, one column each."""
    wide = comparison.table.pivot("cluster", index="metric", values="value", maintain_order=True)
    words = {metric: f"{text} ({unit})" for metric, text, unit in METRICS}
    return Figure(
        name="comparison",
        caption="The datacenter beside five published ones (AcmeTrace, NSDI 2024, CC-BY-4.0).",
        table=wide.with_columns(pl.col("metric").replace_strict(words)),
    )


def _curves(found: Study) -> Iterator[Figure]:
    words = {"duration_s": "Duration", "queue_s": "Queueing"}
    kinds = {"all": "all GPU jobs", "type": "by type", "size": "by GPUs (up to)", "state": "by final state"}
    for measure, what in words.items():
        for by, kind in kinds.items():
            table = found.curves.filter((pl.col("measure") == measure) & (pl.col("by") == by))
            counts = dict(
                found.lengths.filter((pl.col("measure") == measure) & (pl.col("by") == by))
                .select("group", "count")
                .iter_rows()
            )
            most = sorted(counts, key=lambda group: -counts[group])[:_MOST_LINES]
            shown = [g for g in counts if g in most]
            lines = [
                Series(group, part["value"].to_list(), part["pct"].to_list())
                for group in shown
                if (part := table.filter(pl.col("group") == group)).height
            ]
            yield Figure(
                name=f"{measure.removesuffix('_s')}_cdf_{by}",
                caption=f"Share of GPU jobs whose {what.lower()} is at most the time on the axis, {kind}."
                + (f" The {_MOST_LINES} largest groups of {len(counts)}." if len(counts) > _MOST_LINES else ""),
                table=table.drop("measure", "by"),
                svg=draw_lines(
                    f"{what}, {kind}",
                    lines,
                    x_label=f"{what.lower()} (log scale)",
                    y_label="% of GPU jobs",
                    log_x=True,
                    x_ticks=_TIME_TICKS,
                    y_range=(0, 100),
                ),
            )


def _sizes(found: Study) -> Figure:
    bucket = pl.lit(2.0).pow(pl.col("gpus").log(2).ceil().clip(0, 29)).cast(pl.Int64)
    grouped = found.sizes.group_by(bucket=bucket).agg(pl.col("jobs_pct", "gpu_time_pct").sum()).sort("bucket")
    labels = [f"{b}" if b <= 2 else f"{b // 2 + 1}-{b}" for b in grouped["bucket"]]
    groups = [
        Bars("% of jobs", grouped["jobs_pct"].to_list()),
        Bars("% of GPU time", grouped["gpu_time_pct"].to_list()),
    ]
    return Figure(
        name="sizes",
        caption="Small jobs are many, large jobs hold the GPUs. The CSV has every size, with the shares at or above it "
        "(ge) and strictly above it (gt).",
        table=found.sizes,
        svg=draw_bars("Job sizes: share of jobs and of GPU time, by GPUs", labels, groups, unit="%"),
    )


def _states(found: Study) -> Iterator[Figure]:
    states = found.states.filter(pl.col("kind") == "gpu")
    stacks = [Bars(row["state"], [row["jobs_pct"], row["gpu_time_pct"] or 0.0]) for row in states.to_dicts()]
    yield Figure(
        name="states",
        caption="How GPU jobs ended, by number and by the GPU time they used.",
        table=found.states,
        svg=draw_bars(
            "Final states of GPU jobs", ["jobs", "GPU time"], stacks, unit="% of all", stacked=True, high=100
        ),
    )


def _types(found: Study) -> Iterator[Figure]:
    types = found.types.head(12)
    groups = [Bars("% of jobs", types["jobs_pct"].to_list()), Bars("% of GPU time", types["gpu_time_pct"].to_list())]
    yield Figure(
        name="types",
        caption="What GPU jobs are for, by number and by GPU time.",
        table=found.types,
        svg=draw_bars("Job types: share of jobs and of GPU time", types["type"].to_list(), groups, unit="%"),
    )


def _time(found: Study, clock: str) -> Iterator[Figure]:
    if not found.arrivals["jobs"].sum():
        return
    grid = [found.arrivals.filter(pl.col("weekday") == day)["jobs"].to_list() for day in range(1, 8)]
    yield Figure(
        name="arrivals",
        caption=f"Jobs submitted per hour of the day and day of the week, {clock} clock, over the whole trace.",
        table=found.arrivals,
        svg=draw_heat_map("Arrivals by weekday and hour", WEEKDAYS, [f"{h}" for h in range(24)], grid, unit="jobs"),
    )
    days = found.days.with_columns(day=(pl.col("date") - pl.col("date").min()).dt.total_days())
    lines = [Series(name, days["day"].to_list(), days[name].to_list()) for name in ("submitted", "failed")]
    yield Figure(
        name="days",
        caption="Jobs submitted, and GPU jobs that failed, per day.",
        table=found.days,
        svg=draw_lines(
            "Jobs per day", lines, x_label=f"days since {found.days['date'][0]}", y_label="jobs", steps=True
        ),
    )
    yield Figure(name="capacity", caption=_say_capacity(found.capacity), table=_capacity_table(found.capacity))


def _users(found: Study) -> Iterator[Figure]:
    top, shares = found.users.head(10), found.concentration
    yield Figure(
        name="users",
        caption="The ten users with most GPU time. "
        f"The top tenth of {shares.users:,} users hold {shares.top_10pct_users_gpu_time_pct or 0:.0f} % of it.",
        table=found.users,
        svg=draw_bars(
            "Users by GPU time",
            top["user"].to_list(),
            [Bars("GPU time", top["gpu_time_pct"].to_list())],
            unit="% of GPU time",
        ),
    )


def _failures(found: Study) -> Iterator[Figure]:
    table = found.failures
    named = (
        pl.when(pl.col("reason").str.starts_with("(")).then(pl.format("{} {}", "state", "reason")).otherwise("reason")
    )
    labels = table.select(named).to_series().to_list()
    yield Figure(
        name="failures",
        caption="Failed GPU time per reason, costliest first. The CSV adds counts, mean GPUs, times to failure and to "
        "restart.",
        table=table,
        svg=draw_pareto("Failures by GPU time lost", labels, (table["gpu_time_s"] / 3600).to_list(), unit="GPU-hours"),
    )
    offenders = found.node_failures.head(10)
    bars = Bars("failed jobs", offenders["failures"].to_list())
    yield Figure(
        name="node_failures",
        caption="Nodes on which most jobs failed; a job of many nodes counts on each.",
        table=found.node_failures,
        svg=draw_bars("Failed jobs per node", offenders["node"].to_list(), [bars], unit="failed jobs"),
    )


def _utilisation(report: Characterization) -> Iterator[Figure]:
    if report.utilisation is None:
        return
    yield Figure(
        name="utilisation",
        caption="Utilisation per metric; the last two columns are the published medians of Seren and Kalos.",
        table=report.utilisation.metrics.join(find_utilisation_medians(), on="metric", how="left"),
    )
    curves = report.utilisation.curves
    for suffix, title, label in (
        ("_pct", "Utilisation", "%"),
        ("_w", "Power", "W"),
        ("_c", "Temperature", "°C"),
        ("_mb_s", "Network", "MB/s"),
    ):
        part = curves.filter(pl.col("metric").str.ends_with(suffix))
        lines = [
            Series(str(metric), rows["value"].to_list(), rows["percent"].to_list())
            for (metric,), rows in part.group_by("metric", maintain_order=True)
        ]
        if lines:
            yield Figure(
                name=f"utilisation{suffix}",
                caption=f"Share of samples at or below the value: {title.lower()}.",
                table=part,
                svg=draw_lines(
                    f"{title} (cumulative)",
                    lines[:_MOST_LINES],
                    x_label=label,
                    y_label="% of samples",
                    y_range=(0, 100),
                ),
            )


def _faults(faults: FaultStudy) -> Iterator[Figure]:
    classes, months = faults.classes, faults.months
    yield Figure(
        name="faults",
        caption=f"{faults.faults} node faults over {faults.span_hours / 24:.0f} days: mean time between faults of one "
        f"node {faults.node_mtbf_hours / 24:.0f} days, median repair {faults.repair_hours.median or 0:.1f} h, "
        f"{faults.down_pct:.1f} % of node-time down.",
        table=faults.classes,
        svg=draw_pareto("Node faults by class", classes["class"].to_list(), classes["faults"].to_list(), unit="faults"),
    )
    yield Figure(
        name="faults_by_month",
        caption="Faults per thirty days since observation began.",
        table=months,
        svg=draw_bars(
            "Faults over time",
            [f"month {m}" for m in months["month"]],
            [Bars("faults", months["faults"].to_list())],
            unit="faults",
        ),
    )
    yield Figure(
        name="fault_offenders",
        caption=f"Nodes that keep failing: {faults.repeat_fault_pct:.1f} % of faults fall on nodes that failed more "
        f"than once, {faults.top_tenth_fault_pct:.1f} % on the worst tenth.",
        table=faults.offenders,
    )


def _say_capacity(capacity: Capacity | None) -> str:
    if capacity is None:
        return ""
    return (
        f"{capacity.allocated_pct:.1f} % of {capacity.gpus:,.0f} GPUs were held on average; "
        f"{capacity.idle_while_waiting_gpu_hours:,.0f} GPU-hours were idle while jobs waited for as many."
    )


def _capacity_table(capacity: Capacity | None) -> pl.DataFrame:
    if capacity is None:
        return pl.DataFrame()
    return pl.DataFrame([{name: getattr(capacity, name) for name in Capacity.__dataclass_fields__}])
