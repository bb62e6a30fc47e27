"""Every job that some source knows, and how well it is."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import polars as pl

from prism.records import Finding
from prism.records.layout import DEGREES, Layout
from prism.recover.supervise.events import StepDone
from prism.serve.library import Snapshot
from prism.serve.sources.diagnosed import Diagnosed, DiagnosedJob
from prism.serve.sources.predicted import Predicted
from prism.serve.sources.supervised import Supervised
from prism.serve.sources.watched import ToldFindings, Watched, WatchedJob

JobSource = Literal["observed", "watched", "supervised", "emulation", "simulation", "scenario"]
Health = Literal["ok", "degraded", "hung", "failed", "done", "waiting", "unknown"]
_TREND = 48  # steps in the little plot of a table


@dataclass(frozen=True, slots=True, kw_only=True)
class DegreeRow:
    """One degree of a layout; `value` null where it is not known."""

    name: str
    value: int | None
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job in a table."""

    key: str
    id: str
    place: str
    source: JobSource
    health: Health
    health_text: str
    num_ranks: int
    num_hosts: int
    layout: str
    degrees: tuple[DegreeRow, ...]
    num_steps: int
    step_s: float | None  # the median
    trend_s: tuple[float, ...]  # the last steps
    num_findings: int
    lost_gpu_seconds: float
    has_timeline: bool
    updated_ns: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow:
    """A finding in a table; times count from the origin of its job."""

    job_key: str
    job: str
    place: str
    kind: str
    culprit_type: str
    culprit: str
    origin_ns: str
    from_ns: int
    to_ns: int
    lost_gpu_seconds: float
    score: float
    evidence: str


def key_of(place: str, name: str) -> str:
    """How a job of a place is asked for."""
    return f"{place}~{name}"


def list_jobs(snapshot: Snapshot) -> list[JobRow]:
    """Every job, those that run first."""
    rows = [_row_of_diagnosed(source, job) for source in snapshot.all_of(Diagnosed) for job in source.jobs]
    rows += [_row_of_watched(source, job) for source in snapshot.all_of(Watched) for job in source.jobs]
    rows += [_row_of_run(run) for run in snapshot.all_of(Supervised)]
    for source in snapshot.all_of(Predicted):
        rows += _rows_of_predicted(source)
    return rows


def list_findings(snapshot: Snapshot) -> list[FindingRow]:
    """Every finding, costliest first."""
    rows: list[FindingRow] = []
    for source in snapshot.all_of(Diagnosed):
        origins = {job.id: origin_of(job.steps, source.findings) for job in source.jobs}
        rows += [describe_finding(f, source.place, origins.get(f.job, f.start_ns)) for f in source.findings]
    for watch in snapshot.all_of(Watched):
        first = {job.id: job.first_seen_ns for job in watch.jobs}
        told = told_beside(snapshot, watch)
        rows += [describe_finding(f, watch.place, first.get(f.job, f.start_ns)) for f in told]
    beside = {watch.place for watch in snapshot.all_of(Watched)}
    for file in snapshot.all_of(ToldFindings):
        place = file.path.rpartition("/")[0] or "."
        if place not in beside:
            rows += [describe_finding(f, place, f.start_ns) for f in file.findings]
    return sorted(rows, key=lambda row: -row.lost_gpu_seconds)


def told_beside(snapshot: Snapshot, watch: Watched) -> tuple[Finding, ...]:
    """A watch's findings: the lines it printed beside its state hold the evidence; else what the state holds."""
    files = [f for f in snapshot.all_of(ToldFindings) if (f.path.rpartition("/")[0] or ".") == watch.place]
    printed = [finding for file in files for finding in file.findings]
    return tuple(printed) or watch.findings


def describe_finding(finding: Finding, place: str, origin_ns: int) -> FindingRow:
    """A finding as a row."""
    return FindingRow(
        job_key=key_of(place, finding.job),
        job=finding.job,
        place=place,
        kind=finding.kind,
        culprit_type=finding.culprit.type,
        culprit=finding.culprit.id,
        origin_ns=str(origin_ns),
        from_ns=finding.start_ns - origin_ns,
        to_ns=finding.end_ns - origin_ns,
        lost_gpu_seconds=finding.lost_gpu_seconds,
        score=finding.score,
        evidence=finding.evidence,
    )


def origin_of(steps: pl.DataFrame, findings: Sequence[Finding] = ()) -> int:
    """The moment that times of a job count from: its first step, or the first finding."""
    if len(steps):
        return int(steps["start_ns"][0])
    return min((finding.start_ns for finding in findings), default=0)


def describe_layout(layout: Layout) -> str:
    """Degrees in a few letters, as dp4 tp8 pp4; those of 1 are left out."""
    parts = [(name, getattr(layout, name).value) for name in ("dp", "tp", "pp", "cp", "ep")]
    return " ".join(f"{name}{'?' if value is None else value}" for name, value in parts if value != 1) or "dp1"


def list_degrees(layout: Layout) -> tuple[DegreeRow, ...]:
    """The degrees with their confidence."""
    return tuple(
        DegreeRow(name=name, value=getattr(layout, name).value, confidence=getattr(layout, name).confidence)
        for name in DEGREES
    )


def judge_findings(findings: Iterable[Finding]) -> tuple[Health, str]:
    """Health by the worst finding."""
    worst = sorted(findings, key=lambda f: (f.kind != "hang", -f.lost_gpu_seconds))
    if not worst:
        return "ok", "nothing out of the ordinary"
    first = worst[0]
    text = f"{first.kind.replace('_', ' ')}: {first.culprit.type} {first.culprit.id}"
    return ("hung" if first.kind == "hang" else "degraded"), text


def _row_of_diagnosed(source: Diagnosed, job: DiagnosedJob) -> JobRow:
    own = [finding for finding in source.findings if finding.job == job.id]
    lengths = ((job.steps["end_ns"] - job.steps["start_ns"]) / 1e9).to_list()
    health, text = judge_findings(own)
    return JobRow(
        key=key_of(source.place, job.id),
        id=job.id,
        place=source.place,
        source="observed",
        health=health,
        health_text=text,
        num_ranks=len(job.endpoints),
        num_hosts=len(job.hosts),
        layout=describe_layout(job.layout),
        degrees=list_degrees(job.layout),
        num_steps=len(lengths),
        step_s=statistics.median(lengths) if lengths else None,
        trend_s=tuple(lengths[-_TREND:]),
        num_findings=len(own),
        lost_gpu_seconds=sum(finding.lost_gpu_seconds for finding in own),
        has_timeline=source.timeline is not None,
        updated_ns=str(source.updated_ns),
    )


def _row_of_watched(source: Watched, job: WatchedJob) -> JobRow:
    own = [finding for finding in source.findings if finding.job == job.id]
    health, text = judge_findings(own)
    return JobRow(
        **_blank(source.place, job.id, "watched", source.updated_ns),
        health=health,
        health_text=text,
        num_ranks=len(job.endpoints),
        num_hosts=0,
        num_steps=0,
        step_s=job.step_s,
        trend_s=(),
        num_findings=len(own),
        lost_gpu_seconds=sum(finding.lost_gpu_seconds for finding in own),
        has_timeline=False,
    )


def _row_of_run(run: Supervised) -> JobRow:
    lengths = step_lengths(run)
    health, text = judge_run(run)
    return JobRow(
        **_blank(run.place, "run", "supervised", run.updated_ns),
        health=health,
        health_text=text,
        num_ranks=0,
        num_hosts=len(run.hosts),
        num_steps=max(0, run.best_step),
        step_s=statistics.median(lengths) if lengths else None,
        trend_s=tuple(lengths[-_TREND:]),
        num_findings=0,
        lost_gpu_seconds=0.0,
        has_timeline=False,
    )


def judge_run(run: Supervised) -> tuple[Health, str]:
    """How a supervised run stands, in a word and a line."""
    if run.outcome:
        health: Health = "done" if run.outcome == "done" else "failed"
        return health, run.outcome_text
    text = f"attempt {run.attempt}, {run.phase}, step {run.best_step}"
    if not run.supervised:
        return "failed", f"{text}; its supervisor is not running"
    return ("ok" if run.phase == "running" else "waiting"), text


def step_lengths(run: Supervised) -> list[float]:
    """Seconds between reports of successive steps within an attempt."""
    steps = [r for r in run.reports if isinstance(r.event, StepDone)]
    return [b.time_s - a.time_s for a, b in pairwise(steps) if a.attempt == b.attempt and b.time_s > a.time_s]


def _rows_of_predicted(source: Predicted) -> list[JobRow]:
    if source.kind == "scenario":
        return [_row_of_scenario(source, index) for index in range(len(source.jobs))]
    times = source.document.get("iteration_ms")
    median = times.get("median") if isinstance(times, dict) else None
    return [
        JobRow(
            **_blank(source.place, source.kind, source.kind, source.updated_ns),
            health="unknown",
            health_text="a prediction",
            num_ranks=int(source.document.get("world_size", 0)),
            num_hosts=0,
            num_steps=0,
            step_s=float(median) / 1e3 if isinstance(median, (int, float)) else None,
            trend_s=(),
            num_findings=0,
            lost_gpu_seconds=0.0,
            has_timeline=True,
        )
    ]


def _row_of_scenario(source: Predicted, index: int) -> JobRow:
    job = source.jobs[index]
    lengths = [(end - start) / 1e9 for start, end in job.step_ns]
    return JobRow(
        **_blank(source.place, job.id, "scenario", source.updated_ns),
        health="unknown",
        health_text="the truth of a scenario",
        num_ranks=job.num_ranks,
        num_hosts=0,
        num_steps=len(lengths),
        step_s=statistics.median(lengths) if lengths else None,
        trend_s=tuple(lengths[-_TREND:]),
        num_findings=0,
        lost_gpu_seconds=0.0,
        has_timeline=True,
    )


def _blank(place: str, name: str, source: JobSource, updated_ns: int) -> dict[str, Any]:
    return {
        "key": key_of(place, name),
        "id": name if source != "supervised" else place,
        "place": place,
        "source": source,
        "layout": "",
        "degrees": (),
        "updated_ns": str(updated_ns),
    }
