"""Which look at a job is the newest: diagnoses and watches of the same endpoints are of one job."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from prism.records import Finding
from prism.serve.shapes.jobs import FindingRow, JobRow
from prism.serve.snapshot import Snapshot
from prism.serve.sources.diagnosed import Diagnosed
from prism.serve.sources.supervised import Supervised
from prism.serve.sources.watched import FollowedFinding, ToldFindings, Watched
from prism.serve.views.jobs import describe_finding, key_of, list_jobs, origin_of

_SAME_JOB = 0.5  # share of the larger set of endpoints that two looks at one job have in common
_SAME_TIME_NS = 86_400 * 10**9  # a run and a look at its hosts are of one job when they are no further apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """The newest look at every job, and its findings. Every number on the pages is counted from these rows."""

    jobs: tuple[JobRow, ...]  # observed, watched and supervised; each job once
    predictions: tuple[JobRow, ...]
    earlier: tuple[JobRow, ...]  # looks that a newer one has replaced, and jobs that a watch does not see any more
    findings: tuple[FindingRow, ...]  # open, costliest first
    resolved: tuple[FindingRow, ...]  # ended, according to a watch
    looks: tuple[tuple[str, ...], ...]  # keys of all looks at one job, newest first
    diagnoses: tuple[Diagnosed, ...]  # those that hold the newest look at some job, newest first


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """One job in one source."""

    key: str
    endpoints: frozenset[str]
    until_ns: int
    updated_ns: int
    source: tuple[str, int]  # place and moment: jobs of one look are different jobs
    step_s: float | None = None


def find_now(snapshot: Snapshot) -> Now:
    """The newest look at every job; computed once per snapshot."""
    return snapshot.once("now", lambda: _find_now(snapshot))


def findings_of_job(snapshot: Snapshot, key: str) -> list[FindingRow]:
    """Every finding of one look at a job, which may be an earlier look."""
    return [row for row in _all_findings(snapshot) if row.job_key == key]


def followed_findings(snapshot: Snapshot, watch: Watched) -> tuple[FollowedFinding, ...]:
    """A watch's findings as its state has them; evidence that the state lacks is taken from the printed lines."""
    files = [f for f in snapshot.all_of(ToldFindings) if (f.path.rpartition("/")[0] or ".") == watch.place]
    printed = {told.id: told for file in files for told in file.findings}
    return tuple(_complete(own, printed.get(own.id)) for own in watch.findings)


def _complete(own: FollowedFinding, told: FollowedFinding | None) -> FollowedFinding:
    if told is None or not own.finding.evidence.startswith("seen in "):
        return own
    finding = replace(own.finding, evidence=told.finding.evidence, score=told.finding.score)
    return FollowedFinding(id=own.id, finding=finding, over=own.over or told.over)


def _find_now(snapshot: Snapshot) -> Now:
    rows = {row.key: row for row in list_jobs(snapshot)}
    found = _all_findings(snapshot)
    newest = _group_looks([replace(look, step_s=rows[look.key].step_s) for look in _list_looks(snapshot)])
    has_open = {row.job_key for row in found if row.status == "open"}
    current = [key for key in newest if rows[key].state != "gone" or key in has_open]
    replaced = {key for key, older in newest.items() for key in older}
    shown = set(current)
    runs = _match_runs(snapshot, [rows[key] for key in current])
    jobs = [replace(rows[key], num_looks=1 + len(newest[key]), run_key=runs.get(key, "")) for key in current] + [
        row for row in rows.values() if row.source == "supervised" and row.key not in runs.values()
    ]
    watched = {key for key, row in rows.items() if row.source in ("observed", "watched")}
    kept = _without_doubles(row for row in found if row.job_key in shown or row.job_key not in watched)
    places = {rows[key].place for key in current}
    diagnoses = sorted((s for s in snapshot.all_of(Diagnosed) if s.place in places or not s.jobs), key=_newest_first)
    return Now(
        jobs=tuple(jobs),
        predictions=tuple(row for row in rows.values() if row.source in ("emulation", "simulation", "scenario")),
        earlier=tuple(rows[key] for key in rows if key in replaced or (key in newest and key not in shown)),
        findings=tuple(row for row in kept if row.status == "open"),
        resolved=tuple(row for row in kept if row.status == "resolved"),
        looks=tuple((key, *older) for key, older in newest.items()),
        diagnoses=tuple(diagnoses),
    )


def _newest_first(source: Diagnosed) -> tuple[int, int]:
    return -source.until_ns, -source.updated_ns


def _list_looks(snapshot: Snapshot) -> list[_Look]:
    looks = [
        _Look(
            key=key_of(source.place, job.id),
            endpoints=frozenset(job.endpoints),
            until_ns=source.until_ns,
            updated_ns=source.updated_ns,
            source=(source.place, source.until_ns),
        )
        for source in snapshot.all_of(Diagnosed)
        for job in source.jobs
    ]
    looks += [
        _Look(
            key=key_of(watch.place, job.id),
            endpoints=frozenset(job.endpoints),
            until_ns=job.last_seen_ns,
            updated_ns=watch.updated_ns,
            source=(watch.place, job.last_seen_ns),
        )
        for watch in snapshot.all_of(Watched)
        for job in watch.jobs
    ]
    return sorted(looks, key=lambda look: (-look.until_ns, -look.updated_ns, look.source, look.key))


def _group_looks(looks: list[_Look]) -> dict[str, list[str]]:
    """Keys of the newest looks, each with those of the same job that it replaces.

    Of several jobs on the same hosts a look is of the one whose steps are most nearly as long.
    """
    older: dict[str, list[str]] = {}
    newest: dict[str, _Look] = {}
    at: dict[str, list[str]] = {}  # newest looks by endpoint
    seen: dict[str, set[tuple[str, int]]] = {}  # sources that have a look at a job
    for look in looks:
        shared = Counter(key for name in look.endpoints for key in at.get(name, ()))
        same = [key for key, n in shared.items() if look.source not in seen[key] and
                n >= _SAME_JOB * max(len(look.endpoints), len(newest[key].endpoints))]  # fmt: skip
        if same:
            key = min(same, key=lambda key: (-shared[key], _compare_steps(look, newest[key])))
            older[key].append(look.key)
            seen[key].add(look.source)
            continue
        older[look.key], newest[look.key], seen[look.key] = [], look, {look.source}
        for name in look.endpoints:
            at.setdefault(name, []).append(look.key)
    return older


def _compare_steps(a: _Look, b: _Look) -> float:
    """How unlike the usual steps of two looks are; nothing is more so than steps that are not known."""
    return abs(math.log(a.step_s / b.step_s)) if a.step_s and b.step_s else math.inf


def _match_runs(snapshot: Snapshot, rows: list[JobRow]) -> dict[str, str]:
    """The supervised run of each observed job that has the same hosts at the same time."""
    by_hosts = {frozenset(row.hosts): row for row in rows if row.hosts}
    out: dict[str, str] = {}
    for run in snapshot.all_of(Supervised):
        row = by_hosts.get(frozenset(run.hosts))
        if row is not None and abs(run.updated_ns - int(row.looked_until_ns)) < _SAME_TIME_NS:
            out[row.key] = key_of(run.place, "run")
    return out


def _all_findings(snapshot: Snapshot) -> tuple[FindingRow, ...]:
    return snapshot.once("findings", lambda: tuple(sorted(_tell(snapshot), key=lambda row: -row.lost_gpu_seconds)))


def _tell(snapshot: Snapshot) -> Iterator[FindingRow]:
    for source in snapshot.all_of(Diagnosed):
        origins = {job.id: origin_of(job.steps, source.findings) for job in source.jobs}
        ended = {job.id for job in source.jobs if job.state == "ended"}
        for finding in source.findings:
            if not (finding.kind == "hang" and finding.job in ended):  # A job that ended does not hang.
                yield describe_finding(finding, source.place, origins.get(finding.job, finding.start_ns))
    for watch in snapshot.all_of(Watched):
        first = {job.id: job.first_seen_ns for job in watch.jobs}
        for followed in followed_findings(snapshot, watch):
            yield _describe_followed(followed, watch.place, first)
    watches = {watch.place for watch in snapshot.all_of(Watched)}
    for file in snapshot.all_of(ToldFindings):
        place = file.path.rpartition("/")[0] or "."
        if place not in watches:
            for followed in file.findings:
                yield _describe_followed(followed, place, {})


def _describe_followed(followed: FollowedFinding, place: str, first: dict[str, int]) -> FindingRow:
    finding: Finding = followed.finding
    row = describe_finding(finding, place, first.get(finding.job, finding.start_ns))
    return replace(row, status="resolved" if followed.over else "open")


def _without_doubles(rows: Iterable[FindingRow]) -> list[FindingRow]:
    """One row for a finding that is in two files, such as a watch's state and the lines that it printed."""
    kept: dict[tuple[str, str, str, str, int], FindingRow] = {}
    for row in rows:
        start_ns = int(row.origin_ns) + row.from_ns
        known = kept.setdefault((row.job, row.kind, row.culprit_type, row.culprit, start_ns), row)
        if row.status == "resolved" and known.status == "open":
            kept[(row.job, row.kind, row.culprit_type, row.culprit, start_ns)] = row
    return list(kept.values())
