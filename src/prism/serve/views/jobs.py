"""Every job that some source contains, and its health."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import polars as pl

from prism.records import Finding
from prism.records.layout import DEGREES, Layout
from prism.recover.supervise.events import StepDone
from prism.serve.shapes.jobs import DegreeRow, FindingRow, Health, JobRow, JobSource, JobState
from prism.serve.snapshot import Snapshot
from prism.serve.sources.diagnosed import Diagnosed, DiagnosedJob
from prism.serve.sources.predicted import Predicted
from prism.serve.sources.supervised import Supervised
from prism.serve.sources.watched import Watched, WatchedJob

_TREND = 48  # steps in the small plot of a table
_UNSEEN: dict[str, Any] = {"state": "unknown", "stale": False, "looked_until_ns": "0", "num_hosts": None, "hosts": ()}


def key_of(place: str, name: str) -> str:
    """The key of a job of a place."""
    return f"{place}~{name}"


def list_jobs(snapshot: Snapshot) -> tuple[JobRow, ...]:
    """Every look at every job, including replaced ones; computed once per snapshot."""
    return snapshot.once("jobs", lambda: tuple(_list_jobs(snapshot)))


def _list_jobs(snapshot: Snapshot) -> list[JobRow]:
    rows = [_row_of_diagnosed(source, job) for source in snapshot.all_of(Diagnosed) for job in source.jobs]
    for watch in snapshot.all_of(Watched):
        stale = snapshot.is_stale(f"{watch.place}/state.json" if watch.place != "." else "state.json")
        rows += [_row_of_watched(watch, job, stale=stale) for job in watch.jobs]
    rows += [_row_of_run(run) for run in snapshot.all_of(Supervised)]
    for source in snapshot.all_of(Predicted):
        rows += _rows_of_predicted(source)
    return rows


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
    """The origin of a job's times: its first step, or the first finding."""
    if len(steps):
        return int(steps["start_ns"][0])
    return min((finding.start_ns for finding in findings), default=0)


def describe_layout(layout: Layout) -> str:
    """Degrees in short form, as dp4 tp8 pp4, without those of 1."""
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
    # A job that ended does not hang: it is silent because it is over.
    own = [f for f in source.findings if f.job == job.id and not (f.kind == "hang" and job.state == "ended")]
    lengths = ((job.steps["end_ns"] - job.steps["start_ns"]) / 1e9).to_list()
    health, text = judge_findings(own)
    if job.state == "ended" and not own:
        health, text = "done", "ended by itself"
    return JobRow(
        key=key_of(source.place, job.id),
        id=job.id,
        place=source.place,
        source="observed",
        health=health,
        health_text=text,
        state=_state_of(job.state),
        stale=False,
        num_ranks=len(job.endpoints),
        num_hosts=len(job.hosts),
        hosts=job.hosts,
        layout=describe_layout(job.layout),
        degrees=list_degrees(job.layout),
        num_steps=len(lengths),
        step_s=statistics.median(lengths) if lengths else None,
        trend_s=tuple(lengths[-_TREND:]),
        num_findings=len(own),
        lost_gpu_seconds=sum(finding.lost_gpu_seconds for finding in own),
        has_timeline=source.timeline is not None,
        updated_ns=str(source.updated_ns),
        looked_until_ns=str(source.until_ns),
    )


def _state_of(word: str) -> JobState:
    """A state as a diagnosis writes it; a word of a later version is unknown here."""
    known: dict[str, JobState] = {"running": "running", "ended": "ended", "stopped": "stopped", "paused": "paused"}
    return known.get(word, "unknown")


def _row_of_watched(source: Watched, job: WatchedJob, *, stale: bool) -> JobRow:
    own = [followed.finding for followed in source.findings if followed.finding.job == job.id and not followed.over]
    gone = job.last_seen_ns < source.until_ns
    health, text = judge_findings(own)
    if stale and not own:
        health, text = "unknown", "the watch has written nothing for long"
    elif gone and not own:
        health, text = "unknown", "not in the watch's newest look"
    return JobRow(
        **_blank(source.place, job.id, "watched", source.updated_ns),
        health=health,
        health_text=text,
        state="gone" if gone else "unknown" if stale else "running",
        stale=stale,
        looked_until_ns=str(job.last_seen_ns),
        num_ranks=len(job.endpoints),
        num_hosts=None,
        hosts=(),
        num_steps=None,
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
        state="ended" if run.outcome else "running" if run.supervised else "unknown",
        stale=False,
        looked_until_ns=str(run.updated_ns),
        num_ranks=None,
        num_hosts=len(run.hosts),
        hosts=run.hosts,
        num_steps=run.best_step if run.best_step >= 0 else None,
        step_s=statistics.median(lengths) if lengths else None,
        trend_s=tuple(lengths[-_TREND:]),
        num_findings=0,
        lost_gpu_seconds=0.0,
        has_timeline=False,
    )


def judge_run(run: Supervised) -> tuple[Health, str]:
    """The health of a supervised run, as a word and a line."""
    if run.outcome:
        health: Health = "failed" if run.outcome == "failed" else "done"
        return health, run.outcome_text
    step = f"step {run.best_step}" if run.best_step >= 0 else "no step seen yet"
    text = f"attempt {run.attempt}, {run.phase}, {step}"
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
            **_UNSEEN,
            num_ranks=int(source.document.get("world_size", 0)) or None,
            num_steps=None,
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
        **_UNSEEN,
        num_ranks=job.num_ranks,
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
