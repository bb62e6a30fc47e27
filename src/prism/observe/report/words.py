"""A diagnosis in words, for the terminal and the page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import get_args

import numpy as np

from prism.incidents.kinds import kind_of
from prism.observe.diagnosis import Diagnosis, JobDiagnosis
from prism.records.findings import Finding, FindingKind

MEANINGS = {kind: f"{kind_of(kind).says}; {kind_of(kind).advice}" for kind in get_args(FindingKind)}


def describe_layout(job: JobDiagnosis) -> str:
    """The degrees that are more than one, as `dp4 tp8 pp2`; a question mark where unknown."""
    parts = [(name, getattr(job.layout, name).value) for name in ("dp", "tp", "pp", "cp", "ep")]
    if all(value is None for _, value in parts):
        return "unknown"
    shown = " ".join(f"{name}{'?' if value is None else value}" for name, value in parts if value != 1) or "dp1"
    return shown if job.layout.sharding in ("none", "unknown") else f"{shown} {job.layout.sharding}"


def step_seconds(job: JobDiagnosis) -> list[float]:
    """The length of each step."""
    lengths: list[float] = ((job.steps["end_ns"] - job.steps["start_ns"]) / 1e9).to_list()
    return lengths


def describe_step(job: JobDiagnosis) -> str:
    """The usual length of a step."""
    lengths = step_seconds(job)
    return say_seconds(float(np.median(lengths))) if lengths else "unknown"


def say_seconds(seconds: float) -> str:
    """A stretch of time in few characters."""
    if seconds >= 100:
        return f"{seconds:,.0f} s"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def describe_culprit(finding: Finding, most: int = 3) -> str:
    """Who is to blame; of many endpoints the first few."""
    names = finding.culprit.id.split(",")
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{finding.culprit.type} {', '.join(names[:most])}{more}"


def say_window(start_ns: int, end_ns: int) -> str:
    """From when to when, in UTC where the times are dates."""
    if start_ns < 10**17:
        return f"{start_ns / 1e9:,.1f} s to {end_ns / 1e9:,.1f} s"
    begin, until = (datetime.fromtimestamp(ns / 1e9, UTC) for ns in (start_ns, end_ns))
    return f"{begin:%H:%M:%S} to {until:%H:%M:%S} UTC"


def sparkline(values: list[float], width: int = 12) -> str:
    """A tiny plot of a series in one line of text, from zero to its maximum; long series are cut into means."""
    if not values:
        return ""
    means = [float(part.mean()) for part in np.array_split(np.array(values), min(width, len(values)))]
    bars, top = "▁▂▃▄▅▆▇█", max(means) or 1.0
    return "".join(bars[min(7, int(8 * v / top))] for v in means)


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingFound:
    """What a diagnosis without findings says; `clean` only where the steps of every job were seen."""

    text: str
    clean: bool


def say_nothing_found(diagnosis: Diagnosis) -> NothingFound:
    """A clean bill of the jobs whose steps were seen and compared and that did not stop, and of those alone."""
    if not diagnosis.jobs:
        return NothingFound(text="No training job was recognised.", clean=False)
    seen = [job for job in diagnosis.jobs if job.steps.height]
    doubts = {
        "steps of {} cannot be seen": [job for job in diagnosis.jobs if not job.steps.height],
        "inside the steps of {} nothing can be seen": [j for j in seen if not j.visible.inside or j.bursts is not None],
        "steps of {} cannot be compared": [job for job in seen if job.visible.inside and not job.visible.comparable],
        "{} stopped in the middle of a step, and why cannot be seen": [j for j in seen if j.life.state == "stopped"],
    }
    parts = [text.format(", ".join(job.id for job in jobs)) for text, jobs in doubts.items() if jobs]
    if not parts:
        return NothingFound(text="Nothing is out of the ordinary.", clean=True)
    return NothingFound(text=f"Nothing was found, but {'; '.join(parts)}: see the notes.", clean=False)
