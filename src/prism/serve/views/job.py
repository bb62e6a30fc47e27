"""The Job page: steps, findings, groups and stages of one job, and what can be laid over it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from prism.records import Finding, Layout
from prism.serve.shapes.jobs import (
    ExpectedRow,
    GroupRow,
    JobDocument,
    JobRow,
    LookRow,
    MarkedFinding,
    RankRow,
    StepRow,
)
from prism.serve.snapshot import Snapshot
from prism.serve.sources.diagnosed import STEPS, Diagnosed, DiagnosedJob
from prism.serve.sources.predicted import Predicted, PredictedJob
from prism.serve.views.jobs import describe_finding, key_of, list_jobs, origin_of
from prism.serve.views.looks import find_now, findings_of_job

_MOST_LOOKS = 1_000
_MOST_GROUPS = 256  # of one kind
_SAME_JOB = 0.5  # share of common endpoints above which a scenario's job is taken for the observed one


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSource:
    """Where the spans of a job lie; `job` None takes the only one of the file."""

    key: str
    path: str
    job: str | None
    origin_ns: int
    steps: pl.DataFrame | None  # None: those in the file
    endpoints: tuple[str, ...] = ()  # by rank
    endpoint_of_rank: Mapping[int, str] | None = None
    shown_ns: tuple[int, int] | None = None  # of findings and of the job, which may lie outside its spans


def describe_job(snapshot: Snapshot, key: str) -> JobDocument | None:
    """The page of one job; None where there is none of that key."""
    row = next((row for row in list_jobs(snapshot) if row.key == key), None)
    if row is None:
        return None
    diagnosed = find_diagnosed(snapshot, key)
    if diagnosed is not None:
        return _describe_diagnosed(snapshot, row, *diagnosed)
    predicted = find_predicted(snapshot, key)
    source = find_timeline(snapshot, key)
    steps = source.steps if source is not None and source.steps is not None else pl.DataFrame(schema=STEPS)
    findings = findings_of_job(snapshot, key)
    looks = list_looks(snapshot, row)
    origin = source.origin_ns if source else int(findings[0].origin_ns) if findings else 0
    document = predicted[0].document if predicted is not None else {}
    return JobDocument(
        job=row,
        origin_ns=str(origin),
        steps=_list_steps(steps, origin),
        steps_known=row.source not in ("watched", "supervised"),
        latest_key=looks[0].key,
        looks=looks,
        findings=tuple(MarkedFinding(finding=found, ranks=()) for found in findings),
        groups=(),
        groups_left_out=0,
        ranks=(),
        expected=(),
        notes=(),
        emulation=dict(document),
    )


def list_looks(snapshot: Snapshot, row: JobRow) -> tuple[LookRow, ...]:
    """All looks at the job of a row, newest first."""
    rows = {known.key: known for known in list_jobs(snapshot)}
    keys = next((keys for keys in find_now(snapshot).looks if row.key in keys), (row.key,))
    return tuple(
        LookRow(
            key=key,
            place=rows[key].place,
            source=rows[key].source,
            looked_until_ns=rows[key].looked_until_ns,
            step_s=rows[key].step_s,
            num_findings=rows[key].num_findings,
        )
        for key in keys[:_MOST_LOOKS]
    )


def find_diagnosed(snapshot: Snapshot, key: str) -> tuple[Diagnosed, DiagnosedJob] | None:
    """The diagnosed job of a key."""
    pairs = ((source, job) for source in snapshot.all_of(Diagnosed) for job in source.jobs)
    return next((pair for pair in pairs if key_of(pair[0].place, pair[1].id) == key), None)


def find_predicted(snapshot: Snapshot, key: str) -> tuple[Predicted, PredictedJob | None] | None:
    """The prediction of a key, and which of its jobs."""
    for source in snapshot.all_of(Predicted):
        if source.kind != "scenario" and key_of(source.place, source.kind) == key:
            return source, None
        for job in source.jobs:
            if key_of(source.place, job.id) == key and source.kind == "scenario":
                return source, job
    return None


def find_timeline(snapshot: Snapshot, key: str) -> TimelineSource | None:
    """Where the timeline of a job lies."""
    diagnosed = find_diagnosed(snapshot, key)
    if diagnosed is not None:
        source, job = diagnosed
        if source.timeline is None:
            return None
        return TimelineSource(
            key=key,
            path=source.timeline,
            job=job.id,
            origin_ns=origin_of(job.steps, source.findings),
            steps=job.steps,
            endpoints=job.endpoints,
            shown_ns=_range_of(job, source.findings),
        )
    predicted = find_predicted(snapshot, key)
    if predicted is None:
        return None
    prediction, planned = predicted
    if planned is None:
        return TimelineSource(key=key, path=prediction.timeline, job=None, origin_ns=0, steps=None)
    rows = [(index, start, end) for index, (start, end) in enumerate(planned.step_ns)]
    steps = pl.DataFrame(rows, schema=STEPS, orient="row")
    return TimelineSource(
        key=key,
        path=prediction.timeline,
        job=planned.id,
        origin_ns=origin_of(steps),
        steps=steps,
        endpoint_of_rank=planned.endpoint_of_rank,
    )


def _range_of(job: DiagnosedJob, findings: tuple[Finding, ...]) -> tuple[int, int] | None:
    """From the first to the last moment of a job in a diagnosis: a hang lies after its last span."""
    moments = [at for f in findings if f.job == job.id for at in (f.start_ns, f.end_ns)]
    moments += [at for at in (job.started_ns, job.ended_ns) if at is not None]
    return (min(moments), max(moments)) if moments else None


def list_expected(snapshot: Snapshot, job: DiagnosedJob) -> list[ExpectedRow]:
    """Predictions to choose from: scenarios' jobs by their endpoints, and every emulation and simulation."""
    rows: list[ExpectedRow] = []
    own = set(job.endpoints)
    for source in snapshot.all_of(Predicted):
        if source.kind != "scenario":
            key = key_of(source.place, source.kind)
            title = f"{source.kind} {source.place}"
            rows.append(ExpectedRow(key=key, title=title, kind=source.kind, aligned="step", suggested=False))
            continue
        for planned in source.jobs:
            theirs = set(planned.endpoint_of_rank.values())
            if len(own & theirs) >= _SAME_JOB * max(len(own), len(theirs)):
                key, title = key_of(source.place, planned.id), f"scenario {source.place}, {planned.id}"
                rows.append(ExpectedRow(key=key, title=title, kind=source.kind, aligned="clock", suggested=True))
    return sorted(rows, key=lambda row: not row.suggested)


def match_ranks(observed: TimelineSource, predicted: TimelineSource) -> dict[int, int] | None:
    """The predicted rank of each observed one, by address; None where the prediction has no addresses."""
    if predicted.endpoint_of_rank is None:
        return None
    rank_at: dict[str, int] = {}
    for rank, endpoint in predicted.endpoint_of_rank.items():
        rank_at.setdefault(endpoint, rank)
    return {rank: rank_at[name] for rank, name in enumerate(observed.endpoints) if name in rank_at}


def blamed_ranks(finding: Finding, job: DiagnosedJob, host_of: Mapping[str, str]) -> tuple[int, ...]:
    """The ranks that belong to a finding's culprit."""
    culprit = finding.culprit
    named = set(culprit.id.replace(">", ",").split(","))
    match culprit.type:
        case "endpoint" | "link" | "group":
            return tuple(rank for rank, name in enumerate(job.endpoints) if name in named)
        case "host":
            return tuple(rank for rank, name in enumerate(job.endpoints) if host_of.get(name) == culprit.id)
        case "stage":
            return tuple(r for r, name in enumerate(job.endpoints) if str(job.finding_stages.get(name)) in named)
        case _:
            return ()


def _describe_diagnosed(snapshot: Snapshot, row: JobRow, source: Diagnosed, job: DiagnosedJob) -> JobDocument:
    origin = origin_of(job.steps, source.findings)
    host_of = dict(source.topology.select("address", "host").iter_rows()) if source.topology is not None else {}
    over = job.state == "ended"
    own = [f for f in source.findings if f.job == job.id and not (over and f.kind == "hang")]
    looks = list_looks(snapshot, row)
    groups, left_out = _list_groups(job.layout, {name: rank for rank, name in enumerate(job.endpoints)})
    return JobDocument(
        job=row,
        origin_ns=str(origin),
        steps=_list_steps(job.steps, origin),
        steps_known=True,
        latest_key=looks[0].key,
        looks=looks,
        findings=tuple(
            MarkedFinding(
                finding=describe_finding(found, source.place, origin), ranks=blamed_ranks(found, job, host_of)
            )
            for found in own
        ),
        groups=tuple(groups),
        groups_left_out=left_out,
        ranks=tuple(
            RankRow(rank=rank, endpoint=name, host=host_of.get(name, ""), stage=job.layout.stages.get(name))
            for rank, name in enumerate(job.endpoints)
        ),
        expected=tuple(list_expected(snapshot, job)),
        notes=(*job.notes, *source.notes),
        emulation={},
    )


def _list_steps(steps: pl.DataFrame, origin_ns: int) -> tuple[StepRow, ...]:
    return tuple(
        StepRow(index=index, from_ns=start - origin_ns, to_ns=end - origin_ns)
        for index, start, end in steps.iter_rows()
    )


def _list_groups(layout: Layout, rank_of: Mapping[str, int]) -> tuple[list[GroupRow], int]:
    by_kind: dict[str, list[GroupRow]] = defaultdict(list)
    for group in layout.groups:
        ranks = tuple(sorted(rank_of[name] for name in group.members if name in rank_of))
        by_kind[group.kind].append(GroupRow(kind=group.kind, ranks=ranks, confidence=group.confidence))
    kept = [row for rows in by_kind.values() for row in rows[:_MOST_GROUPS]]
    return kept, len(layout.groups) - len(kept)
