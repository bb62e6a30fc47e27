"""The study: from a tally to the numbers and tables that describe a datacenter's workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta

import polars as pl

from prism.datacenter.characterize.capacity import Capacity, average_days, measure_capacity
from prism.datacenter.characterize.distribution import (
    Distribution,
    count_values,
    describe,
    describe_counts,
    split_values,
    trace_cdf,
)
from prism.datacenter.characterize.failures import (
    Reliability,
    list_failures,
    list_node_failures,
    measure_reliability,
    name_bad_nodes,
)
from prism.datacenter.characterize.tally import BIN_NS, Tally
from prism.datacenter.characterize.vocabulary import FINAL_OF_STATE

UNTYPED = "(no type)"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """Facts about the cluster that the trace does not contain."""

    gpus: float | None = None
    gpus_per_node: int = 8
    clock: str = "UTC"  # zone name or +HH:MM, in which arrivals are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One cluster in one row; durations and queues are those of GPU jobs unless they say CPU."""

    jobs: int
    cpu_jobs: int
    gpu_jobs: int
    gpu_hours: float
    mean_gpus: float | None
    median_gpus: float | None
    max_gpus: float | None
    duration_s: Distribution
    queue_s: Distribution
    cpu_duration_s: Distribution
    cpu_queue_s: Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Concentration:
    """How unevenly users share the cluster."""

    users: int
    gini_gpu_time: float | None
    top_1pct_users_gpu_time_pct: float | None
    top_5pct_users_gpu_time_pct: float | None
    top_10pct_users_gpu_time_pct: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Everything measured from a job trace; tables are named for what one row is."""

    summary: Summary
    states: pl.DataFrame  # kind (gpu, cpu), state, final, jobs, gpu_time_s and shares
    types: pl.DataFrame  # GPU jobs per type
    sizes: pl.DataFrame  # GPU jobs per GPU count, with shares at it, >= it and > it
    lengths: pl.DataFrame  # duration and queue distributions: all, by type, by size, by state
    curves: pl.DataFrame  # the cumulative curves of the same groups: value in seconds, pct at or below it
    arrivals: pl.DataFrame  # weekday, hour, jobs
    days: pl.DataFrame  # date, submitted, failed
    users: pl.DataFrame
    waits: pl.DataFrame  # users by the GPU-hours that their jobs waited for
    concentration: Concentration
    capacity: Capacity | None
    occupancy: pl.DataFrame  # date, mean busy_gpus and waiting_gpus
    failures: pl.DataFrame
    node_failures: pl.DataFrame
    bad_nodes: pl.DataFrame  # those whose infrastructure failures their work does not explain
    reliability: Reliability
    exact: bool  # False: lengths of time were rounded to 0.1 %


def study(tally: Tally, options: StudyOptions) -> Study:
    """Describe the workload that a tally counted."""
    cells = tally.cells.with_columns(pl.col("type").cast(pl.String).fill_null(UNTYPED))
    lengths, curves = describe_lengths(tally)
    return Study(
        summary=summarise(tally),
        states=share_states(cells),
        types=_share(cells.filter(pl.col("gpus") > 0), ["type"]).sort("jobs", descending=True),
        sizes=share_sizes(cells),
        lengths=lengths,
        curves=curves,
        arrivals=count_arrivals(tally.bins, options.clock),
        days=count_days(tally.bins, options.clock),
        users=rank_users(tally.users),
        waits=rank_waits(tally.users),
        concentration=measure_concentration(tally.users),
        capacity=measure_capacity(tally, gpus=options.gpus, gpus_per_node=options.gpus_per_node),
        occupancy=average_days(tally),
        failures=list_failures(tally),
        node_failures=list_node_failures(tally.on_nodes),
        bad_nodes=name_bad_nodes(tally.on_nodes),
        reliability=measure_reliability(tally, options.gpus_per_node),
        exact=not tally.rounded,
    )


def summarise(tally: Tally) -> Summary:
    """The cluster in one row."""
    gpu, cpu = pl.col("gpus") > 0, pl.col("gpus") == 0
    gpu_cells, cpu_cells = tally.cells.filter(gpu), tally.cells.filter(cpu)
    sizes = describe_counts(gpu_cells, "gpus", "jobs")
    return Summary(
        jobs=int(tally.cells["jobs"].sum()),
        cpu_jobs=int(cpu_cells["jobs"].sum()),
        gpu_jobs=int(gpu_cells["jobs"].sum()),
        gpu_hours=float(gpu_cells["gpu_time_s"].sum()) / 3600,
        mean_gpus=sizes.mean,
        median_gpus=sizes.median,
        max_gpus=sizes.max,
        duration_s=_describe(tally.durations.filter(pl.col("bucket") > 0), gpu_cells, "duration_s", "timed"),
        queue_s=_describe(tally.queues.filter(pl.col("bucket") > 0), gpu_cells, "queue_s", "queued"),
        cpu_duration_s=_describe(tally.durations.filter(pl.col("bucket") == 0), cpu_cells, "duration_s", "timed"),
        cpu_queue_s=_describe(tally.queues.filter(pl.col("bucket") == 0), cpu_cells, "queue_s", "queued"),
    )


def share_states(cells: pl.DataFrame) -> pl.DataFrame:
    """Jobs and GPU time per state, apart for GPU and CPU jobs."""
    parts = []
    for kind, chosen in (("gpu", pl.col("gpus") > 0), ("cpu", pl.col("gpus") == 0)):
        shares = _share(cells.filter(chosen).with_columns(pl.col("state").cast(pl.String)), ["state"])
        parts.append(shares.select(pl.lit(kind).alias("kind"), pl.all()))
    final = pl.col("state").replace_strict(FINAL_OF_STATE, default=None, return_dtype=pl.String)
    return pl.concat(parts).with_columns(final=final).sort("kind", "jobs", descending=[True, True])


def share_sizes(cells: pl.DataFrame) -> pl.DataFrame:
    """Shares of jobs and GPU time at every GPU count, at or above it, and above it, because papers use all three."""
    sizes = _share(cells.filter(pl.col("gpus") > 0), ["gpus"]).sort("gpus")
    above = [
        column
        for name in ("jobs_pct", "gpu_time_pct")
        for column in (
            pl.col(name).cum_sum(reverse=True).clip(0, 100).alias(f"{name.removesuffix('_pct')}_ge_pct"),
            (pl.col(name).cum_sum(reverse=True) - pl.col(name))
            .clip(0, 100)
            .alias(f"{name.removesuffix('_pct')}_gt_pct"),
        )
    ]
    return sizes.with_columns(above)


def describe_lengths(tally: Tally) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Durations and queues of GPU jobs, overall, by type, size bucket and state: their numbers and their curves."""
    rows: list[Mapping[str, object]] = []
    keys: list[Mapping[str, str]] = []
    curves: list[pl.DataFrame] = []
    cells = tally.cells.filter(pl.col("gpus") > 0).with_columns(
        bucket=pl.lit(2.0).pow(pl.col("gpus").log(2).ceil().clip(0, 29)).cast(pl.Int64), all=pl.lit("all")
    )
    for measure, table, counted in (("duration_s", tally.durations, "timed"), ("queue_s", tally.queues, "queued")):
        gpu_jobs = table.filter(pl.col("bucket") > 0).sort("ms").with_columns(all=pl.lit("all"))
        buckets = sorted(gpu_jobs["bucket"].unique())
        for by in ("all", "type", "bucket", "state"):
            sums = {
                row[0]: row[1:] for row in cells.group_by(by).agg(pl.col(measure).sum(), pl.col(counted).sum()).rows()
            }
            parts = list(split_values(gpu_jobs, by, "ms", "jobs", scale=1e-3))
            if by == "bucket":
                parts.sort(key=lambda part: buckets.index(part[0]))  # in order of size, not of the shortest job
            for group, values in parts:
                total, known = sums[group]
                label = UNTYPED if group is None else str(group)
                key = {"measure": measure, "by": "size" if by == "bucket" else by, "group": label}
                rows.append({**key, **asdict(describe(values, mean=total / known))})
                keys.append(key)
                curves.append(trace_cdf(values))
    numbers = dict.fromkeys(Distribution.__dataclass_fields__, pl.Float64)
    names = {"measure": pl.String, "by": pl.String, "group": pl.String}
    schema = {**names, **numbers, "count": pl.Int64}
    # One table of all curves: a frame of its own for each would take most of the time of a small trace.
    heights = pl.Series([curve.height for curve in curves], dtype=pl.UInt32)
    labels = pl.DataFrame(keys, schema=names).select(pl.all().repeat_by(heights).explode())
    drawn = pl.concat([pl.DataFrame(schema={"value": pl.Float64, "pct": pl.Float64}), *curves])
    return pl.DataFrame(rows, schema=schema, strict=False), labels.hstack(drawn)


def count_arrivals(bins: pl.DataFrame, clock: str) -> pl.DataFrame:
    """Jobs submitted per weekday (1 is Monday) and hour of the local clock."""
    local = _local(bins, clock)
    every = pl.DataFrame({"weekday": range(1, 8)}, schema={"weekday": pl.Int8}).join(
        pl.DataFrame({"hour": range(24)}, schema={"hour": pl.Int8}), how="cross"
    )
    counted = local.group_by(weekday=pl.col("local").dt.weekday(), hour=pl.col("local").dt.hour()).agg(
        jobs=pl.col("submitted").sum()
    )
    return every.join(counted, on=["weekday", "hour"], how="left").fill_null(0).sort("weekday", "hour")


def count_days(bins: pl.DataFrame, clock: str) -> pl.DataFrame:
    """Jobs submitted and failed per day of the local clock."""
    days = _local(bins, clock).group_by(date=pl.col("local").dt.date())
    return days.agg(pl.col("submitted", "failed").sum()).filter(pl.any_horizontal("submitted", "failed")).sort("date")


def rank_users(users: pl.DataFrame, top: int = 20) -> pl.DataFrame:
    """The users who used most GPU time."""
    total = users["gpu_time_s"].sum() or 1.0
    ranked = users.sort("gpu_time_s", "user", descending=[True, False]).head(top)
    return ranked.with_columns(gpu_time_pct=100 * pl.col("gpu_time_s") / total, mean_queue_s=_mean_queue())


def _mean_queue() -> pl.Expr:
    return pl.when(pl.col("queued") > 0).then(pl.col("queue_s") / pl.col("queued"))


def rank_waits(users: pl.DataFrame, top: int = 20) -> pl.DataFrame:
    """The users whose jobs waited for most GPU-hours."""
    waited = users.filter(pl.col("waiting_gpu_s") > 0).sort("waiting_gpu_s", "user", descending=[True, False])
    return waited.head(top).select(
        "user",
        "gpu_jobs",
        mean_queue_s=_mean_queue(),
        waiting_gpu_hours=pl.col("waiting_gpu_s") / 3600,
        used_gpu_hours=pl.col("gpu_time_s") / 3600,
    )


def measure_concentration(users: pl.DataFrame) -> Concentration:
    """Shares of GPU time of the largest users, and the Gini index (0 even, 1 one user)."""
    used = users["gpu_time_s"].sort(descending=True)
    total, count = float(used.sum()), len(used)
    if total <= 0:
        return Concentration(
            users=count,
            gini_gpu_time=None,
            top_1pct_users_gpu_time_pct=None,
            top_5pct_users_gpu_time_pct=None,
            top_10pct_users_gpu_time_pct=None,
        )
    ranks = pl.int_range(count, 0, -1, eager=True)

    def top(share: float) -> float:
        return 100 * float(used.head(max(1, round(count * share))).sum()) / total

    return Concentration(
        users=count,
        gini_gpu_time=2 * float((ranks * used).sum()) / (count * total) - (count + 1) / count,
        top_1pct_users_gpu_time_pct=top(0.01),
        top_5pct_users_gpu_time_pct=top(0.05),
        top_10pct_users_gpu_time_pct=top(0.10),
    )


def _describe(values: pl.DataFrame, cells: pl.DataFrame, measure: str, counted: str) -> Distribution:
    """Percentiles from the table of values, the mean from the exact sums."""
    known = int(cells[counted].sum())
    mean = float(cells[measure].sum()) / known if known else None
    return describe(count_values(values, "ms", "jobs", scale=1e-3), mean=mean)


def _share(cells: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Jobs and GPU time per group, with their shares of the whole in percent."""
    grouped = cells.group_by(by).agg(pl.col("jobs", "gpu_time_s").sum())
    return grouped.with_columns(
        jobs_pct=100 * pl.col("jobs") / pl.col("jobs").sum(),
        gpu_time_pct=pl.when(pl.col("gpu_time_s").sum() > 0).then(
            100 * pl.col("gpu_time_s") / pl.col("gpu_time_s").sum()
        ),
    ).sort(by)


def _local(bins: pl.DataFrame, clock: str) -> pl.DataFrame:
    """Quarter hours with their moment on a local clock."""
    moments = pl.col("bin").mul(BIN_NS).cast(pl.Datetime("ns"))
    if clock[:1] in "+-":
        ahead = (int(clock[1:3]) * 60 + int(clock[4:6])) * (-1 if clock[0] == "-" else 1)
        return bins.with_columns(local=moments + timedelta(minutes=ahead))
    aware = moments.dt.replace_time_zone("UTC").dt.convert_time_zone(clock)
    return bins.with_columns(local=aware.dt.replace_time_zone(None, ambiguous="earliest"))
