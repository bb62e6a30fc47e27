"""The first page as rows of words and numbers, for the terminal and the HTML report alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import polars as pl

from prism.datacenter.characterize.characterization import Characterization
from prism.datacenter.characterize.comparison import say

Rows = list[tuple[str, ...]]

HEADS: Mapping[str, tuple[str, ...]] = {
    "use": ("", ">GPU-hours", ">% of bought"),
    "loss": ("lost to", ">GPU-hours", ">% of bought"),
    "action": ("action", ">worth up to, GPU-hours", "why"),
    "node": ("node", ">failed jobs", ">their GPU-hours"),
    "wait": ("user", ">GPU jobs", ">mean wait", ">GPU-hours waited for", ">GPU-hours used"),
    "trend": ("week from", ">GPU-hours held", ">mean GPUs", ">GPU jobs", ">failed", ">GPU-hours lost", ">mean wait"),
    "change": ("of", "what", ">week before", ">last week", ">change"),
}
_SHOWN = 8


def _share(percent: float | None) -> str:
    return "-" if percent is None else f"{percent:.1f}"


def use_rows(report: Characterization) -> Rows:
    """The GPU-hours bought and their parts, with a remark if the size of the cluster was not given."""
    page = report.overview
    rows: Rows = []
    if page.bought_gpu_hours is not None and page.span_hours is not None and report.study.capacity is not None:
        known = "" if page.bought_known else ", the most ever in use; give --gpus"
        days = f"{page.span_hours / 24:,.1f} days"
        name = f"bought: {report.study.capacity.gpus:,.0f} GPUs for {days}{known}"
        rows.append((name, f"{page.bought_gpu_hours:,.0f}", "100.0"))
    total = 100 * page.used_gpu_hours / page.bought_gpu_hours if page.bought_gpu_hours else None
    rows.append(("used by jobs", f"{page.used_gpu_hours:,.0f}", _share(total)))
    return rows + [
        (part.name if part.name == "idle" else f"  {part.name}", f"{part.gpu_hours:,.0f}", _share(part.bought_pct))
        for part in page.uses
    ]


def loss_rows(report: Characterization) -> Rows:
    """Causes of lost GPU-hours, largest first."""
    return [(loss.name, f"{loss.gpu_hours:,.0f}", _share(loss.bought_pct)) for loss in report.overview.losses]


def action_rows(report: Characterization) -> Rows:
    """Three recommended actions, with what each could save."""
    return [
        (f"{number}. {action.what}", f"{action.worth_gpu_hours:,.0f}", action.basis)
        for number, action in enumerate(report.overview.actions, 1)
    ]


def node_rows(report: Characterization) -> Rows:
    """Nodes on which most jobs failed."""
    nodes = report.study.node_failures.head(_SHOWN)
    return [(node, f"{count:,}", f"{gpu_time / 3600:,.1f}") for node, count, gpu_time in nodes.iter_rows()]


def wait_rows(report: Characterization) -> Rows:
    """Users whose jobs waited for most GPU-hours."""
    return [
        (user, f"{jobs:,}", say(mean, "s"), f"{waited:,.0f}", f"{used:,.0f}")
        for user, jobs, mean, waited, used in report.study.waits.head(_SHOWN).iter_rows()
    ]


def trend_rows(report: Characterization) -> Rows:
    """The last weeks, oldest first; incomplete weeks are marked."""
    if report.weeks is None:
        return []
    return [
        (
            f"{row['week']}" + (f" ({row['days']:.1f} days)" if row["days"] < 6.9 else ""),
            f"{row['gpu_hours']:,.0f}",
            f"{row['mean_gpus']:,.1f}",
            f"{row['jobs']:,}",
            f"{row['failed_jobs']:,}",
            f"{row['lost_gpu_hours']:,.0f}",
            say(row["mean_queue_s"], "s"),
        )
        for row in report.weeks.trend.iter_rows(named=True)
    ]


def change_rows(report: Characterization) -> Rows:
    """The last week compared with the one before."""
    if report.weeks is None:
        return []
    return [
        (of, f"{name} ({unit})", _number(before), _number(now), "-" if change is None else f"{change:+,.0f}")
        for of, name, unit, before, now, change in report.weeks.changes.iter_rows()
    ]


def tabulate_first_page(report: Characterization) -> dict[str, pl.DataFrame]:
    """The first page's numbers, a table for each CSV file."""
    page = report.overview
    tables = {
        "uses": pl.DataFrame([asdict(part) for part in page.uses]),
        "losses": pl.DataFrame([asdict(part) for part in page.losses]),
        "actions": pl.DataFrame([asdict(action) for action in page.actions]),
        "waits": report.study.waits,
        "occupancy": report.study.occupancy,
        **({"weeks": report.weeks.trend, "changes": report.weeks.changes} if report.weeks else {}),
    }
    return {name: table for name, table in tables.items() if not table.is_empty()}


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}"
