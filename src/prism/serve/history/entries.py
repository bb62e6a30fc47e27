"""The rows of the history that one source gives: a look at a job, a run, a finding, a verdict, a report."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Literal

from prism.records import Finding
from prism.recover.supervise.events import Paused, Restored, Resumed, Saved, StepDone
from prism.recover.supervise.goodput import Attempt, Mark, Span, account, note_decision, share_of_training
from prism.serve.snapshot import Source
from prism.serve.sources.characterized import Characterized
from prism.serve.sources.diagnosed import Diagnosed, DiagnosedJob
from prism.serve.sources.evaluated import Evaluated
from prism.serve.sources.predicted import Predicted
from prism.serve.sources.printed import Printed, say_in_a_line
from prism.serve.sources.supervised import Report, Supervised
from prism.serve.sources.verdicts import VerdictFile
from prism.serve.sources.watched import ToldFindings, Watched

EntryKind = Literal[
    "look", "run", "run_day", "finding", "verdict", "evaluation", "prediction",
    "investigation", "comparison", "goodput", "placement", "characterization",
]  # fmt: skip
_KIND_OF_PRINTED: Mapping[str, EntryKind] = {
    "investigation": "investigation", "comparison": "comparison", "prediction": "prediction", "advice": "prediction",
    "replay": "prediction", "goodput": "goodput", "placement": "placement", "placement-choice": "placement",
}  # fmt: skip
DAY_NS = 86_400 * 10**9
_MOST_HOSTS = 4_096  # of one entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row. With `endpoints`, `job` is the name in its source; the index finds the lasting name from them."""

    kind: EntryKind
    key: str  # the key by which pages request it
    job: str
    at_ns: int
    until_ns: int
    state: str = ""
    text: str = ""
    step_s: float | None = None  # the median
    num_steps: int | None = None
    gpus: int | None = None
    lost_gpu_s: float | None = None
    restarts: int | None = None
    goodput: float | None = None  # share of the time that was training and was kept, as `prism goodput` says
    num_findings: int | None = None
    hosts: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()


def list_entries(source: Source) -> list[Entry]:
    """The rows of one source."""
    match source:
        case Diagnosed():
            return list(_of_diagnosis(source))
        case Watched():
            return list(_of_watch(source))
        case ToldFindings():
            place = source.path.rpartition("/")[0] or "."
            return [_of_finding(told.finding, place, over=told.over) for told in source.findings]
        case Supervised():
            return list(_of_run(source))
        case VerdictFile():
            return list(_of_verdicts(source))
        case _:
            return [_of_document(source)]


def _of_diagnosis(source: Diagnosed) -> Iterator[Entry]:
    found: dict[str, list[Finding]] = {}
    for finding in source.findings:
        found.setdefault(finding.job, []).append(finding)
    for job in source.jobs:
        # A job that ended does not hang; the other pages say the same.
        own = [f for f in found.get(job.id, ()) if not (f.kind == "hang" and job.state == "ended")]
        yield _of_look(source, job, own)
        yield from (
            replace(_of_finding(f, source.place, over=False), endpoints=job.endpoints) for f in own
        )  # so that both get the same lasting name


def _of_look(source: Diagnosed, job: DiagnosedJob, findings: list[Finding]) -> Entry:
    lengths = ((job.steps["end_ns"] - job.steps["start_ns"]) / 1e9).to_list()
    starts = [job.started_ns or 0] if job.started_ns else job.steps["start_ns"].to_list()[:1]
    return Entry(
        kind="look",
        key=f"{source.place}~{job.id}",
        job=job.id,
        at_ns=starts[0] if starts else source.until_ns,
        until_ns=source.until_ns,
        state=job.state,
        text="; ".join(f"{f.kind.replace('_', ' ')}: {f.culprit.type} {f.culprit.id}" for f in findings[:3]),
        step_s=statistics.median(lengths) if lengths else None,
        num_steps=len(lengths),
        gpus=len(job.endpoints),
        lost_gpu_s=sum(f.lost_gpu_seconds for f in findings),
        num_findings=len(findings),
        hosts=job.hosts[:_MOST_HOSTS],
        endpoints=job.endpoints,
    )


def _of_watch(source: Watched) -> Iterator[Entry]:
    for job in source.jobs:
        own = [f.finding for f in source.findings if f.finding.job == job.id and not f.over]
        yield Entry(
            kind="look",
            key=f"{source.place}~{job.id}",
            job=job.id,
            at_ns=job.first_seen_ns,
            until_ns=job.last_seen_ns,
            state="running" if job.last_seen_ns >= source.until_ns else "gone",
            step_s=job.step_s,
            gpus=len(job.endpoints),
            lost_gpu_s=sum(f.lost_gpu_seconds for f in own),
            num_findings=len(own),
            endpoints=job.endpoints,
        )
    endpoints = {job.id: job.endpoints for job in source.jobs}
    for told in source.findings:
        entry = _of_finding(told.finding, source.place, over=told.over)
        yield replace(entry, endpoints=endpoints.get(told.finding.job, ()))


def _of_finding(finding: Finding, place: str, *, over: bool) -> Entry:
    culprit = finding.culprit
    hosts = tuple(culprit.id.split(",")) if culprit.type in ("host", "endpoint") else ()
    return Entry(
        kind="finding",
        key=f"{place}~{finding.job}",
        job=finding.job,
        at_ns=finding.start_ns,
        until_ns=finding.end_ns,
        state="resolved" if over else "open",
        text=f"{finding.kind.replace('_', ' ')}: {culprit.type} {culprit.id}: {finding.evidence}",
        lost_gpu_s=finding.lost_gpu_seconds,
        hosts=hosts,
    )


def _of_run(run: Supervised) -> Iterator[Entry]:
    key, hosts = f"{run.place}~run", _hosts_of_run(run)
    steps = [r for r in run.reports if isinstance(r.event, StepDone)]
    times = [r.time_s for r in run.reports] + [d.time_s for d in run.decisions]
    spans = list_spans(run)
    whole = Entry(
        kind="run",
        key=key,
        job=run.place,
        at_ns=int(min(times) * 1e9) if times else run.updated_ns,
        until_ns=int(max(times) * 1e9) if times else run.updated_ns,
        state=run.outcome or ("running" if run.supervised else run.phase),
        text=run.outcome_text or "; ".join(str(f.get("reason")) for f in run.failures[-3:]),
        step_s=_median_step(steps),
        num_steps=run.best_step if run.best_step >= 0 else None,
        restarts=max(0, run.attempt - 1),
        goodput=share_of_training(spans),
        hosts=hosts,
    )
    yield whole
    if whole.until_ns // DAY_NS > whole.at_ns // DAY_NS:
        yield from _days_of_run(whole, run, spans)
    for number, decision in enumerate(run.decisions, start=1):
        verdict = decision.verdict
        if verdict is not None:
            yield Entry(
                kind="verdict",
                key=f"{run.place}~{number}",
                job=run.place,
                at_ns=int(decision.time_s * 1e9),
                until_ns=int(decision.time_s * 1e9),
                state=verdict.action,
                text=f"{verdict.cause.name} ({verdict.category})",
                hosts=verdict.hosts,
            )


def _hosts_of_run(run: Supervised) -> tuple[str, ...]:
    failed = [str(failure["host"]) for failure in run.failures if failure.get("host")]
    return tuple(dict.fromkeys((*run.hosts, *(record.host for record in run.host_records), *failed)))[:_MOST_HOSTS]


def _days_of_run(whole: Entry, run: Supervised, spans: list[Span]) -> Iterator[Entry]:
    """A long run as one row per day, with the step time, restarts and goodput of that day."""
    launched = [d.time_s for d in run.decisions for action in d.actions if action.get("action") == "Launch"]
    later = {_day(moment) for moment in launched[1:]}
    for day, group in groupby(run.reports, key=lambda report: _day(report.time_s)):
        own = list(group)
        of_day = [r for r in own if isinstance(r.event, StepDone)]
        restarts = sum(1 for moment in launched[1:] if _day(moment) == day) if day in later else 0
        yield replace(
            whole,
            kind="run_day",
            at_ns=int(own[0].time_s * 1e9),
            until_ns=int(own[-1].time_s * 1e9),
            text="",
            state="",
            step_s=_median_step(of_day),
            num_steps=len(of_day),
            restarts=restarts,
            goodput=share_of_training(spans, day * 86_400.0, (day + 1) * 86_400.0),
        )


def _day(time_s: float) -> int:
    return int(time_s // 86_400)


def _median_step(steps: list[Report]) -> float | None:
    gaps = [b.time_s - a.time_s for a, b in pairwise(steps) if a.attempt == b.attempt and b.time_s > a.time_s]
    return statistics.median(gaps) if gaps else None


def list_spans(run: Supervised) -> list[Span]:
    """Where the time of a run went, as `prism goodput` says it."""
    attempts: list[Attempt] = []
    for decision in run.decisions:
        verdict = decision.verdict
        reason = "" if verdict is None else verdict.cause.name if verdict.cause else verdict.reason
        note_decision(attempts, decision.time_s, decision.event, reason, decision.actions)
    by_number = {attempt.number: attempt for attempt in attempts}
    for report in run.reports:
        mark = _mark_of(report)
        if mark is not None and report.attempt in by_number:
            by_number[report.attempt].marks.append(mark)
    times = [moment.time_s for moments in (run.decisions, run.reports) for moment in moments]
    return list(account(attempts, max(times, default=0.0)))


def _mark_of(report: Report) -> Mark | None:
    match report.event:
        case StepDone(step=step):
            return Mark("step", report.time_s, step)
        case Restored(step=step):
            return Mark("restored", report.time_s, step)
        case Saved(step=step):
            return Mark("saved", report.time_s, step)
        case Paused(what=what):
            return Mark("paused", report.time_s, what=what)
        case Resumed():
            return Mark("resumed", report.time_s)
    return None


def _of_verdicts(source: VerdictFile) -> Iterator[Entry]:
    for number, verdict in enumerate(source.verdicts, start=1):
        yield Entry(
            kind="verdict",
            key=f"{source.path}~{number}",
            job="",
            at_ns=source.updated_ns,
            until_ns=source.updated_ns,
            state=verdict.action,
            text=f"{verdict.cause.name} ({verdict.category}) in {verdict.log}",
            hosts=verdict.hosts,
        )


def _of_document(source: Evaluated | Predicted | Characterized | Printed) -> Entry:
    """A report or a prediction: one row that leads to its page."""
    moment = source.updated_ns
    if isinstance(source, Evaluated):
        progress = source.progress
        text = f"{progress.done} trials done, {progress.failed} failed"
        return Entry(kind="evaluation", key=f"{source.place}~trials", job=source.place, at_ns=moment, until_ns=moment,
                     state=progress.state, text=text)  # fmt: skip
    if isinstance(source, Predicted):
        return Entry(kind="prediction", key=f"{source.place}~{source.kind}", job=source.place, at_ns=moment,
                     until_ns=moment, state=source.kind, text=source.kind)  # fmt: skip
    if isinstance(source, Characterized):
        names = ", ".join(str(cluster.get("cluster", "")) for cluster in source.clusters)
        return Entry(kind="characterization", key=f"{source.place}~report", job=source.place, at_ns=moment,
                     until_ns=moment, text=names)  # fmt: skip
    return _of_printed(source)


def _of_printed(source: Printed) -> Entry:
    document, kind = source.document, source.kind
    at_ns = source.updated_ns
    hosts: tuple[str, ...] = ()
    if kind == "investigation":
        verdict = document["verdict"]
        culprits = [c for c in verdict.get("culprits") or () if isinstance(c, dict)]
        hosts = tuple(str(c.get("id")) for c in culprits if c.get("type") == "host")
        since = verdict.get("since_ns")
        at_ns = since if isinstance(since, int) and since > 0 else at_ns
    elif kind in ("prediction", "advice"):
        rows = [row for row in document["risks" if kind == "prediction" else "drains"] if isinstance(row, dict)]
        hosts = tuple(str(row.get("place") or row.get("node") or row.get("id")) for row in rows[:20])
    return Entry(
        kind=_KIND_OF_PRINTED[kind],
        key=source.path,
        job=source.path,
        at_ns=at_ns,
        until_ns=source.updated_ns,
        state=kind,
        text=say_in_a_line(source),
        goodput=float(document["goodput"]) if kind == "goodput" else None,
        hosts=hosts,
    )
