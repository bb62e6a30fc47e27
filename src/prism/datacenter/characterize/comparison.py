"""Compare datacenters: a user's own with the published ones, and where it differs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from prism.datacenter.characterize.characterization import Characterization
from prism.datacenter.characterize.published import REFERENCES, find_curve, find_row
from prism.datacenter.characterize.study import Study

# name, words, unit
METRICS = (
    ("gpu_jobs", "GPU jobs", "jobs"),
    ("mean_gpus", "mean GPUs per job", "GPUs"),
    ("median_duration_s", "median duration", "s"),
    ("mean_duration_s", "mean duration", "s"),
    ("median_queue_s", "median queueing", "s"),
    ("mean_queue_s", "mean queueing", "s"),
    ("completed_pct", "jobs completed", "%"),
    ("cancelled_pct", "jobs cancelled", "%"),
    ("failed_pct", "jobs failed", "%"),
    ("completed_gpu_time_pct", "GPU time of completed jobs", "%"),
    ("cancelled_gpu_time_pct", "GPU time of cancelled jobs", "%"),
    ("failed_gpu_time_pct", "GPU time of failed jobs", "%"),
    ("one_gpu_jobs_pct", "jobs of at most 1 GPU", "%"),
    ("one_gpu_time_pct", "GPU time of jobs of at most 1 GPU", "%"),
    ("over_8_jobs_pct", "jobs of more than 8 GPUs", "%"),
    ("over_8_gpu_time_pct", "GPU time of jobs of more than 8 GPUs", "%"),
)
_FACTOR = 1.5  # a value outside all references by this factor gets a sentence
_POINTS = 5.0
_OWN_FACTOR = 2.0
_SAME = 0.03  # tolerance for a trace of a published datacenter against its published figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One row per datacenter and metric, and the main differences."""

    table: pl.DataFrame  # cluster, own, metric, value
    differences: tuple[str, ...]


def compare(reports: Sequence[Characterization]) -> Comparison:
    """Compare reports with the published datacenters and each other."""
    names = _distinct_names(reports)
    own = {name: measure(report.study) for name, report in zip(names, reports, strict=True)}
    published = {name: measure_published(name) for name in REFERENCES}
    rows = [
        (cluster, is_own, metric, values[metric])
        for clusters, is_own in ((own, True), (published, False))
        for cluster, values in clusters.items()
        for metric, _, _ in METRICS
    ]
    schema = {"cluster": pl.String, "own": pl.Boolean, "metric": pl.String, "value": pl.Float64}
    differences = [line for name, values in own.items() for line in _against_published(name, values, published)]
    return Comparison(
        table=pl.DataFrame(rows, schema=schema, orient="row"), differences=(*differences, *_against_each_other(own))
    )


def measure(found: Study) -> dict[str, float | None]:
    """A study's row of the comparison."""
    summary = found.summary
    final = {
        row["final"]: (row["jobs_pct"], row["gpu_time_pct"])
        for row in found.states.filter((pl.col("kind") == "gpu") & pl.col("final").is_not_null())
        .group_by("final")
        .agg(pl.col("jobs_pct", "gpu_time_pct").sum())
        .to_dicts()
    }
    small, large = found.sizes.filter(pl.col("gpus") <= 1), found.sizes.filter(pl.col("gpus") > 8)
    none = (0.0, 0.0) if final else (None, None)  # a table without states does not show how jobs ended
    outcome = {
        f"{name}{suffix}": final.get(name, none)[index]
        for name in ("completed", "cancelled", "failed")
        for index, suffix in enumerate(("_pct", "_gpu_time_pct"))
    }
    return {
        "gpu_jobs": float(summary.gpu_jobs),
        "mean_gpus": summary.mean_gpus,
        "median_duration_s": summary.duration_s.median,
        "mean_duration_s": summary.duration_s.mean,
        "median_queue_s": summary.queue_s.median,
        "mean_queue_s": summary.queue_s.mean,
        **outcome,
        "one_gpu_jobs_pct": float(small["jobs_pct"].sum()),
        "one_gpu_time_pct": float(small["gpu_time_pct"].sum()),
        "over_8_jobs_pct": float(large["jobs_pct"].sum()),
        "over_8_gpu_time_pct": float(large["gpu_time_pct"].sum()),
    }


def measure_published(cluster: str) -> dict[str, float | None]:
    """A published datacenter's row of the comparison."""
    row = find_row(cluster)
    jobs, time = (dict(find_curve(curve, cluster).iter_rows()) for curve in ("gpunum_jobs", "gpunum_gputime"))

    def percent(name: str) -> float | None:
        value = row[name]
        return None if value is None else 100 * value

    return {
        "gpu_jobs": row["gpu_job_num"],
        "mean_gpus": row["avg_gpu_num"],
        "median_duration_s": row["med_run_time_gpu"],
        "mean_duration_s": row["avg_run_time_gpu"],
        "median_queue_s": row["med_que_time_gpu"],
        "mean_queue_s": row["avg_que_time_gpu"],
        "completed_pct": percent("complete_rate_gpu"),
        "cancelled_pct": percent("cancel_rate_gpu"),
        "failed_pct": percent("fail_rate_gpu"),
        "completed_gpu_time_pct": percent("complete_rate_gpu_time"),
        "cancelled_gpu_time_pct": percent("cancel_rate_gpu_time"),
        "failed_gpu_time_pct": percent("fail_rate_gpu_time"),
        "one_gpu_jobs_pct": jobs[1],
        "one_gpu_time_pct": time[1],
        "over_8_jobs_pct": 100 - jobs[8],
        "over_8_gpu_time_pct": 100 - time[8],
    }


def say(value: float | None, unit: str) -> str:
    """A number with its unit, short enough for a table."""
    if value is None:
        return "-"
    if unit == "%":
        return f"{value:.1f} %"
    if unit == "GPUs":
        return f"{value:,.2f}"
    return f"{value:,.0f}" + (" s" if unit == "s" else "")


def _against_published(
    name: str, values: dict[str, float | None], published: dict[str, dict[str, float | None]]
) -> list[str]:
    """Where a datacenter is outside the range of all published ones, and which of them is most similar."""
    lines = []
    for metric, words, unit in METRICS[1:]:
        mine = values[metric]
        theirs = {c: v for c, row in published.items() if (v := row[metric]) is not None}
        if mine is None or not theirs:
            continue
        least, most = min(theirs, key=theirs.__getitem__), max(theirs, key=theirs.__getitem__)
        low, high = theirs[least], theirs[most]
        spread = f"{say(low, unit)} ({least}) to {say(high, unit)} ({most})"
        above = mine > high + _POINTS if unit == "%" else mine > max(high, 1) * _FACTOR
        below = mine < low - _POINTS if unit == "%" else mine < low / _FACTOR
        if above or below:
            lines.append(
                f"{name}: {words} {say(mine, unit)} is {'above' if above else 'below'} every reference, {spread}."
            )
    lines += _against_namesake(name, values, published)
    nearest = min(published, key=lambda c: _distance(values, published[c]))
    return [*lines, f"{name} is most like {nearest} of the five published datacenters."]


def _against_namesake(
    name: str, values: dict[str, float | None], published: dict[str, dict[str, float | None]]
) -> list[str]:
    """Where a trace with a published datacenter's name differs from the published figures."""
    namesake = next((c for c in published if name.removesuffix(" (yours)").lower() == c.lower()), None)
    if namesake is None:
        return []
    off = [
        f"{words} {say(mine, unit)} (published {say(theirs, unit)})"
        for metric, words, unit in METRICS
        if (mine := values[metric]) is not None
        and (theirs := published[namesake][metric]) is not None
        and (abs(mine - theirs) > 1 if unit == "%" else abs(mine - theirs) > _SAME * theirs + 0.5)
    ]
    return [f"{name} differs from the published {namesake} in: {'; '.join(off)}."] if off else []


def _against_each_other(own: dict[str, dict[str, float | None]]) -> list[str]:
    """What differs most between the datacenters that were given."""
    lines = []
    for metric, words, unit in METRICS[1:]:
        known = {name: v for name, row in own.items() if (v := row[metric]) is not None}
        if len(known) < 2:
            continue
        least, most = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
        low, high = known[least], known[most]
        far = high - low > 2 * _POINTS if unit == "%" else high > max(low, 1e-9) * _OWN_FACTOR
        if far:
            lines.append(f"{words}: {say(low, unit)} in {least}, {say(high, unit)} in {most}.")
    return lines


def _distance(mine: dict[str, float | None], theirs: dict[str, float | None]) -> float:
    """Mean distance over the metrics that both have: factors for amounts, twentieths of the whole for shares."""
    parts = []
    for metric, _, unit in METRICS[1:]:
        a, b = mine[metric], theirs[metric]
        if a is not None and b is not None:
            parts.append(abs(a - b) / 20 if unit == "%" else abs(math.log2((a + 1) / (b + 1))))
    return sum(parts) / len(parts) if parts else math.inf


def _distinct_names(reports: Sequence[Characterization]) -> list[str]:
    """Unique names: two files, or a file and a reference, may have the same name."""
    names: list[str] = []
    for report in reports:
        name = report.name if report.name not in REFERENCES else f"{report.name} (yours)"
        count = 2
        while name in names:
            name = f"{report.name} ({count})"
            count += 1
        names.append(name)
    return names
