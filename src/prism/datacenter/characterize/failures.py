"""Failed jobs: the table of reasons, their rate per GPU-hour, and the nodes where they repeat."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from prism.datacenter.characterize.distribution import describe_counts
from prism.datacenter.characterize.tally import Tally
from prism.datacenter.characterize.vocabulary import FAILED_STATES, INFRASTRUCTURE
from prism.machine.hosts import expand_hosts
from prism.records.verdict import CATEGORY_OF_REASON
from prism.recover.blame import blame_nodes

NOT_RECORDED = "(not recorded)"
MID_RUN_S = 600.0  # a job that failed earlier lost too little work to matter for checkpoints

FAILURES = pl.Schema(
    {
        "reason": pl.String,
        "category": pl.String,
        "state": pl.String,
        "count": pl.Int64,
        "mean_gpus": pl.Float64,
        "ttf_mean_s": pl.Float64,
        "ttf_median_s": pl.Float64,
        "gpu_time_s": pl.Float64,
        "gpu_time_pct": pl.Float64,  # of all failed GPU time
        "restart_mean_s": pl.Float64,
        "restart_median_s": pl.Float64,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """How much work is done between failures. GPU-hours are those of all jobs, failed or not."""

    failures: int
    gpu_hours: float
    gpu_hours_per_failure: float | None
    node_hours_per_failure: float | None
    infrastructure_failures: int | None  # None: no reason and no node failure is recorded
    gpu_hours_per_infrastructure_failure: float | None
    infrastructure_mid_run_failures: int  # those after at least ten minutes of running
    mid_run_failures: int  # multi-node jobs that failed after at least ten minutes
    multi_node_gpu_hours: float
    multi_node_lost_gpu_hours: float  # used by multi-node jobs that failed at any time
    multi_node_failed_gpus: float  # GPUs of all those jobs together
    gpu_hours_per_mid_run_failure: float | None


def list_failures(tally: Tally) -> pl.DataFrame:
    """The failure table: per reason if reasons are recorded, or else per failed state; most expensive first."""
    rows = _rows_by_reason(tally) if tally.reasons.height else _rows_by_state(tally)
    table = pl.DataFrame(rows, schema=FAILURES)
    total = table["gpu_time_s"].sum()
    share = 100 * pl.col("gpu_time_s") / total if total > 0 else pl.lit(None, pl.Float64)
    return table.with_columns(gpu_time_pct=share).sort("gpu_time_s", "count", "reason", descending=[True, True, False])


def _rows_by_reason(tally: Tally) -> list[dict[str, object]]:
    """A row per reason, for all end states, and a row per state of jobs without a reason."""
    reasons = tally.reasons.with_columns(pl.col("reason").str.strip_chars().replace("", None))
    rows = []
    for part in reasons.filter(pl.col("reason").is_not_null()).partition_by("reason"):
        reason, states = part["reason"][0], part["state"].unique()
        restarts = tally.restarts.filter(pl.col("reason").str.strip_chars() == reason)
        rows.append(_row(str(states[0]) if len(states) == 1 else "several", reason, part, restarts))
    unnamed = reasons.filter(pl.col("reason").is_null()).partition_by("state")
    return rows + [_row(str(part["state"][0]), None, part, tally.restarts.clear()) for part in unnamed]


def _row(state: str, reason: str | None, part: pl.DataFrame, restarts: pl.DataFrame) -> dict[str, object]:
    count = int(part["jobs"].sum())
    ttf = describe_counts(part, "ms", "jobs", scale=1e-3)
    restart = describe_counts(restarts, "ms", "jobs", scale=1e-3)
    return {
        "reason": reason or NOT_RECORDED,
        "category": "infrastructure" if state == "node_fail" else CATEGORY_OF_REASON.get(reason or "", "unknown"),
        "state": state,
        "count": count,
        "mean_gpus": float(part["gpus"].sum()) / count if count else None,
        "ttf_mean_s": ttf.mean,
        "ttf_median_s": ttf.median,
        "gpu_time_s": float(part["gpu_time_s"].sum()),
        "restart_mean_s": restart.mean,
        "restart_median_s": restart.median,
    }


def _rows_by_state(tally: Tally) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for state in FAILED_STATES:
        cells = tally.cells.filter((pl.col("state") == state) & (pl.col("gpus") > 0))
        if cells.is_empty():
            continue
        times = tally.durations.filter((pl.col("state") == state) & (pl.col("bucket") > 0))
        whole = cells.select(jobs=pl.col("jobs"), gpus=pl.col("gpus") * pl.col("jobs"), gpu_time_s=pl.col("gpu_time_s"))
        row = _row(state, None, whole.with_columns(ms=pl.lit(0)), tally.restarts.clear())
        ttf = describe_counts(times, "ms", "jobs", scale=1e-3)
        rows.append({**row, "ttf_mean_s": ttf.mean, "ttf_median_s": ttf.median})
    return rows


def measure_reliability(tally: Tally, gpus_per_node: int) -> Reliability:
    """Failures against the GPU-hours that were run."""
    failed = pl.col("state").is_in(FAILED_STATES)
    gpu_cells = tally.cells.filter(pl.col("gpus") > 0)
    failures = int(gpu_cells.filter(failed)["jobs"].sum())
    gpu_hours = float(gpu_cells["gpu_time_s"].sum()) / 3600
    node_failures = int(gpu_cells.filter(pl.col("state") == "node_fail")["jobs"].sum())
    named = pl.col("reason").is_in(INFRASTRUCTURE) & (pl.col("state") != "node_fail")
    infra = node_failures + int(tally.reasons.filter(named)["jobs"].sum())
    known = node_failures > 0 or bool(tally.reasons["reason"].is_not_null().any())
    late = pl.col("ms") >= MID_RUN_S * 1000
    late_failures = tally.durations.filter(failed & late & (pl.col("bucket") > 0))
    mid_run = int(late_failures.filter(pl.col("bucket") > gpus_per_node)["jobs"].sum())
    late_infra = int(late_failures.filter(pl.col("state") == "node_fail")["jobs"].sum())
    late_infra += int(tally.reasons.filter(named & late)["jobs"].sum())
    wide_hours = float(gpu_cells.filter(pl.col("gpus") > gpus_per_node)["gpu_time_s"].sum()) / 3600
    wide_failed = gpu_cells.filter(failed & (pl.col("gpus") > gpus_per_node))
    per_failure = gpu_hours / failures if failures else None
    return Reliability(
        failures=failures,
        gpu_hours=gpu_hours,
        gpu_hours_per_failure=per_failure,
        node_hours_per_failure=per_failure / gpus_per_node if per_failure is not None else None,
        infrastructure_failures=infra if known else None,
        gpu_hours_per_infrastructure_failure=gpu_hours / infra if infra else None,
        infrastructure_mid_run_failures=late_infra,
        mid_run_failures=mid_run,
        multi_node_gpu_hours=wide_hours,
        multi_node_lost_gpu_hours=float(wide_failed["gpu_time_s"].sum()) / 3600,
        multi_node_failed_gpus=float((wide_failed["gpus"] * wide_failed["jobs"]).sum()),
        gpu_hours_per_mid_run_failure=wide_hours / mid_run if mid_run else None,
    )


def list_node_failures(on_nodes: pl.DataFrame) -> pl.DataFrame:
    """Failed jobs per node, most first; a job of many nodes counts on each of them, its GPU time in equal parts."""
    parts = _spread(on_nodes, ["node_list"], ["failures", "gpu_time_s"])
    summed = parts.group_by("node").agg(pl.col("failures").sum(), (pl.col("gpu_time_s") / pl.col("of")).sum())
    return summed.filter(pl.col("failures") > 0).sort("failures", "gpu_time_s", "node", descending=[True, True, False])


def name_bad_nodes(on_nodes: pl.DataFrame) -> pl.DataFrame:
    """Nodes whose infrastructure failures their jobs and GPU-hours do not explain, with the GPU time of these."""
    counted = ["jobs", "held_s", "broken", "broken_s"]
    parts = _spread(on_nodes, ["node_list", "bucket"], counted)
    sums = {"jobs": pl.col("jobs").sum(), "hours": pl.col("held_s").sum() / 3600, "failures": pl.col("broken").sum()}
    work = on_nodes.group_by(stratum="bucket").agg(**sums)
    named = blame_nodes(parts.group_by("node", stratum="bucket").agg(**sums), work)
    cost = parts.group_by("node").agg(cost_s=pl.col("broken_s").sum())
    beyond = 1 - pl.col("expected") / pl.col("failures")
    return named.join(cost, on="node", maintain_order="left").with_columns(pl.col("cost_s") * beyond)


def _spread(on_nodes: pl.DataFrame, keys: list[str], sums: list[str]) -> pl.DataFrame:
    """One row for each node of each list of nodes; `of` is how many the list has."""
    listed = on_nodes.group_by(keys).agg(pl.col(sums).sum())
    nodes = pl.Series([expand_hosts(names) for names in listed["node_list"]], dtype=pl.List(pl.String))
    return listed.with_columns(node=nodes, of=nodes.list.len()).explode("node").drop_nulls("node")
