"""Phases: a job that continues with fewer or more hosts is analysed in parts, which are one job in the diagnosis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from prism.observe.diagnosis import JobDiagnosis, Phase
from prism.observe.traffic.table import Traffic
from prism.records.findings import Finding


def join_phases(
    traffic: Traffic, jobs: Sequence[JobDiagnosis], findings: Sequence[Finding]
) -> tuple[tuple[JobDiagnosis, ...], tuple[Finding, ...]]:
    """The jobs with those that continue an earlier one added to it, and the findings under the names that are left."""
    name = {job.id: job.id for job in jobs}
    for one, other in _list_continued(traffic, jobs):
        if name[other.id] == other.id != name[one.id]:
            name[other.id] = name[one.id]
    if all(new == old for old, new in name.items()):
        return tuple(jobs), tuple(findings)
    phases: dict[str, list[JobDiagnosis]] = {}
    for job in sorted(jobs, key=lambda j: j.observed.first_ns):
        phases.setdefault(name[job.id], []).append(job)
    joined = {first: _join(parts) for first, parts in phases.items()}
    kept = tuple(joined[job.id] for job in jobs if job.id in joined)
    return kept, tuple(replace(finding, job=name.get(finding.job, finding.job)) for finding in findings)


def find_ends(traffic: Traffic, jobs: Sequence[JobDiagnosis], until_ns: int) -> dict[str, int]:
    """Until when each job is observed: till it goes on with other hosts, or to the end."""
    ends = {job.id: until_ns for job in jobs}
    for one, other in _list_continued(traffic, jobs):
        ends[one.id] = min(ends[one.id], other.observed.first_ns)
    return ends


def _list_continued(traffic: Traffic, jobs: Sequence[JobDiagnosis]) -> Iterator[tuple[JobDiagnosis, JobDiagnosis]]:
    """Jobs that go on as another one."""
    owner = {int(node): job for job in jobs for node in job.observed.nodes}
    for node in traffic.continued.tolist():
        one, other = owner.get(node - traffic.endpoints.height), owner.get(node)
        if one is not None and other is not None and one.id != other.id:
            yield one, other


def _join(parts: list[JobDiagnosis]) -> JobDiagnosis:
    """One job out of its phases: the layout is that of the longest, its state that of the last."""
    if len(parts) == 1:
        return parts[0]
    first, last = parts[0], parts[-1]
    longest = max(parts, key=lambda part: part.observed.last_ns - part.observed.first_ns)
    steps = pl.concat([part.steps for part in parts]).drop("index").with_row_index("index")
    observed = replace(
        first.observed,
        endpoints=np.unique(np.concatenate([part.observed.endpoints for part in parts])),
        pairs=np.sort(np.concatenate([part.observed.pairs for part in parts])),
        storage_pairs=np.sort(np.concatenate([part.observed.storage_pairs for part in parts])),
        nodes=np.concatenate([part.observed.nodes for part in parts]),
        period_ns=longest.observed.period_ns,
        last_ns=last.observed.last_ns,
    )
    phases = tuple(
        Phase(
            started_ns=part.observed.first_ns,
            ended_ns=part.observed.last_ns,
            endpoints=part.endpoints,
            layout=part.layout,
        )
        for part in parts
    )
    began = phases[0].started_ns
    then = [f"to {len(p.endpoints):,} after {(p.started_ns - began) / 1e9:,.1f} s" for p in phases[1:]]
    return replace(
        longest,
        id=first.id,
        endpoints=tuple(dict.fromkeys(e for part in parts for e in part.endpoints)),
        hosts=tuple(dict.fromkeys(h for part in parts for h in part.hosts)),
        pairs=pl.concat([part.pairs for part in parts]).unique(["src", "dst"], keep="last", maintain_order=True),
        steps=steps.select(pl.col(c).cast(t) for c, t in first.steps.schema.items()),
        streams=pl.concat([part.streams for part in parts if part.studied] or [longest.streams]),
        observed=replace(observed, id=first.id),
        life=replace(last.life, started_ns=first.life.started_ns),
        phases=phases,
        notes=(
            f"it went on with other hosts: from {len(first.endpoints):,} endpoints {', '.join(then)}",
            *longest.notes,
        ),
    )
