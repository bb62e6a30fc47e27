"""The JSON document that `prism characterize --json` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl

from prism.datacenter.characterize.characterization import Characterization
from prism.datacenter.characterize.comparison import Comparison
from prism.datacenter.characterize.distribution import Distribution
from prism.datacenter.characterize.faults import FaultStudy

SCHEMA = "prism.characterization/1"


def write_document(reports: Sequence[Characterization], comparison: Comparison) -> dict[str, Any]:
    """One document: a single trace's report at the top level, several under "clusters"."""
    compared = {
        "references": _pivot(comparison, own=False),
        "clusters": _pivot(comparison, own=True),
        "differences": list(comparison.differences),
    }
    if len(reports) == 1:
        return {"schema": SCHEMA, **describe_report(reports[0]), "comparison": compared}
    return {"schema": SCHEMA, "clusters": [describe_report(report) for report in reports], "comparison": compared}


def describe_report(report: Characterization) -> dict[str, Any]:
    """One trace's report; jobs, times and shares are those of GPU jobs unless a key says otherwise."""
    found, summary = report.study, report.study.summary
    return {
        "cluster": report.name,
        "synthetic": report.synthetic,
        "trace": _describe_trace(report),
        "notes": list(report.notes),
        "jobs": summary.jobs,
        "cpu_jobs": summary.cpu_jobs,
        "gpu_jobs": summary.gpu_jobs,
        "gpu_hours": summary.gpu_hours,
        "mean_gpus": summary.mean_gpus,
        "median_gpus": summary.median_gpus,
        "max_gpus": summary.max_gpus,
        "median_duration_s": summary.duration_s.median,
        "mean_duration_s": summary.duration_s.mean,
        "median_queue_s": summary.queue_s.median,
        "mean_queue_s": summary.queue_s.mean,
        "duration_s": summary.duration_s.to_json(),
        "queue_s": summary.queue_s.to_json(),
        "cpu_duration_s": summary.cpu_duration_s.to_json(),
        "cpu_queue_s": summary.cpu_queue_s.to_json(),
        "states": {
            **_by(found.states.filter(pl.col("kind") == "gpu"), "state"),
            "cpu_by_count": dict(found.states.filter(pl.col("kind") == "cpu").select("state", "jobs").iter_rows()),
        },
        "types": {
            **_by(found.types, "type"),
            "duration_s": _lengths(found.lengths, "duration_s", "type"),
            "queue_s": _lengths(found.lengths, "queue_s", "type"),
        },
        "sizes": found.sizes.to_dicts(),
        "size_buckets": {m: _lengths(found.lengths, m, "size") for m in ("duration_s", "queue_s")},
        "arrivals": {"clock": report.clock, "by_weekday_hour": found.arrivals.to_dicts()},
        "users": {**asdict(found.concentration), "top": found.users.to_dicts(), "waits": found.waits.to_dicts()},
        "capacity": asdict(found.capacity) if found.capacity else None,
        "overview": asdict(report.overview),
        "weeks": {"trend": report.weeks.trend.to_dicts(), "changes": report.weeks.changes.to_dicts()}
        if report.weeks
        else None,
        "failures": found.failures.to_dicts(),
        "reliability": asdict(found.reliability),
        "node_failures": found.node_failures.head(100).to_dicts(),
        "bad_nodes": found.bad_nodes.to_dicts(),
        "checkpoint_advice": asdict(report.plan) if report.plan else None,
        "utilisation": report.utilisation.metrics.to_dicts() if report.utilisation else None,
        "faults": _describe_faults(report.faults) if report.faults else None,
        "percentiles": "exact" if found.exact else "rounded to 0.1 %",
    }


def _describe_trace(report: Characterization) -> dict[str, Any]:
    trace, intake = report.trace, report.intake
    return {
        "file": str(trace.path),
        "format": trace.columns.format,
        "columns": dict(trace.columns.column_of),
        "units": dict(trace.columns.units),
        "unused_columns": list(trace.columns.unused),
        "sha256": trace.sha256,
        "known_as": trace.known_as,
        "rows": intake.rows,
        "bad_rows": intake.bad_rows,
        "unmapped_states": dict(intake.unknown_states),
        "unmapped_types": dict(intake.site_types),
    }


def _describe_faults(faults: FaultStudy) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in FaultStudy.__dataclass_fields__:
        value = getattr(faults, name)
        if isinstance(value, pl.DataFrame):
            value = value.to_dicts()
        elif isinstance(value, Distribution):
            value = value.to_json()
        out[name] = value
    return out


def _by(shares: pl.DataFrame, key: str) -> dict[str, Mapping[str, Any]]:
    """Counts and GPU-seconds, and both as percent."""
    names = {
        "by_count": "jobs",
        "by_gpu_time": "gpu_time_s",
        "by_count_pct": "jobs_pct",
        "by_gpu_time_pct": "gpu_time_pct",
    }
    return {name: dict(shares.select(key, column).iter_rows()) for name, column in names.items()}


def _lengths(lengths: pl.DataFrame, measure: str, by: str) -> dict[str, dict[str, Any]]:
    rows = lengths.filter((pl.col("measure") == measure) & (pl.col("by") == by)).drop("measure", "by").to_dicts()
    return {row.pop("group"): {**row, "p50": row["median"]} for row in rows}


def _pivot(comparison: Comparison, *, own: bool) -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {}
    for cluster, metric, value in comparison.table.filter(pl.col("own") == own).drop("own").iter_rows():
        out.setdefault(cluster, {})[metric] = value
    return out
