"""What `prism watch` remembers: jobs under lasting names, and which findings have been reported."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from prism.errors import BadFileError
from prism.machine.files import write_durably
from prism.records import Culprit, Finding
from prism.records.findings import CulpritType, FindingKind

_SAME_JOB = 0.5  # share of the smaller set of endpoints that two sightings of one job have in common
_FORGET_JOB_NS = 3600 * 10**9
_FORGET_FINDING_NS = 3600 * 10**9
_MAX_REMEMBERED = 10_000
# A job has at most one finding of these kinds at a time, even when its culprit changes.
_ONE_AT_A_TIME = frozenset({"hang", "stall", "slow_step", "drift", "restart"})
_PLACED = frozenset({"slow_compute", "slow_link", "slow_switch"})
_UNPLACED = frozenset({"slow_step", "drift"})
_STOPS = frozenset({"hang", "stall", "restart"})
_SHORTER = 0.5  # of what steps are longer by while a fault lasts: once it is less, the fault is over
_FELT = 0.005  # of a step: what lengthens steps by less is over when it is not seen
_HABIT = 1.8  # times the longest pause of a job so far that a stall lasts
_CERTAIN = frozenset({"hang"})  # Silence needs no second look to be confirmed.
_ENOUGH_ARRIVALS = 3
_SCHEMA = "prism.watch-state/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenJob:
    """A job in one look; its id is valid only for that look."""

    id: str
    endpoints: tuple[str, ...]
    step_s: float | None = None
    num_steps: int = 0
    studied: bool = True  # false where there was no time for it in this look
    ports: tuple[str, ...] = ()  # of its connections, which tell it from others on the same hosts
    host_of: Mapping[str, str] = field(default_factory=dict)  # by endpoint
    recent_s: float | None = None  # of its last few steps
    stepped_ns: int = 0  # when its last whole step ended
    pause_s: float = 0.0  # the longest silence after which it went on
    over: bool = False  # whether its scheduler says that it has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowReport:
    """What one look at the window found."""

    until_ns: int
    num_flows: int = 0
    jobs: tuple[SeenJob, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A finding to report: new, grown, or resolved."""

    id: str
    finding: Finding
    update: bool
    reported_ns: int
    status: str = "firing"  # or resolved
    well: str = ""  # what shows that it is over

    def to_json(self) -> dict[str, Any]:
        """One line of `prism watch`."""
        return {
            **self.finding.to_json(),
            "id": self.id,
            "update": self.update,
            "status": self.status,
            "reported_ns": self.reported_ns,
            **({"well": self.well} if self.well else {}),
        }


@dataclass(slots=True, kw_only=True)
class KnownJob:
    """A job under its lasting name."""

    endpoints: tuple[str, ...]
    first_seen_ns: int
    last_seen_ns: int
    step_s: float | None = None
    ports: tuple[str, ...] = ()  # those that it has had since it was first seen
    calm_s: float | None = None  # its usual step while nothing was wrong with it
    pause_s: float = 0.0  # its longest silence after which it went on


@dataclass(slots=True, kw_only=True)
class KnownFinding:
    """A finding that is followed from look to look."""

    id: str
    kind: FindingKind
    job: str
    culprit_type: CulpritType
    culprit: str
    start_ns: int
    end_ns: int
    cost: float
    told_cost: float | None = None  # None: not reported yet
    sightings: int = 0
    look: int = 0
    unseen: int = 0  # looks at its job since it was last seen
    resolved: bool = False
    well: str = ""  # what shows that it is over
    score: float = 0.0
    evidence: str = ""
    hosts: tuple[str, ...] = ()  # that its culprit has a part of
    calm_s: float | None = None  # the usual step of its job before it
    during_s: float | None = None  # and while it was seen last

    def whole(self) -> Finding:
        """The finding from its beginning to now."""
        return Finding(
            kind=self.kind,
            job=self.job,
            culprit=Culprit(type=self.culprit_type, id=self.culprit),
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            lost_gpu_seconds=round(self.cost, 3),
            score=self.score,
            evidence=self.evidence,
        )

    def is_same(self, finding: Finding, hosts: tuple[str, ...], slack_ns: int) -> bool:
        """Whether a finding of this look is this fault: of one kind at one place, in windows that touch.

        A look may name an endpoint and the next its host, or first the job that has slow steps and then who slows them.
        """
        if self.job != finding.job or not (
            finding.start_ns <= self.end_ns + slack_ns and finding.end_ns >= self.start_ns - slack_ns
        ):
            return False
        if self.kind in _ONE_AT_A_TIME and self.kind == finding.kind:
            return True
        if finding.kind in _PLACED and self.kind in _UNPLACED:
            return True
        blamed = (self.culprit_type, self.culprit) == (finding.culprit.type, finding.culprit.id)
        there = bool(set(self.hosts) & set(hosts)) and {self.kind, finding.kind} <= _PLACED
        return there or (blamed and self.kind == finding.kind)


@dataclass(slots=True, kw_only=True)
class Arrivals:
    """How often files, messages or windows usually arrive; kept over restarts."""

    num: int = 0
    longest_pause_s: float = 0.0  # by the clock
    longest_batch_s: float = 0.0  # of the flows' own time that one added

    def due_s(self, every_s: float) -> float | None:
        """Seconds within which the next is due; None before enough have arrived."""
        if self.num < _ENOUGH_ARRIVALS:
            return None
        return max(self.longest_pause_s, self.longest_batch_s, every_s)


@dataclass(slots=True, kw_only=True)
class WatchState:
    """Takes the results of looks, returns what to report; no I/O but `save` and `load_state`."""

    confirm: int = 2  # looks in a row that must agree before a finding is reported
    warm_up_ns: int = (
        20 * 10**9
    )  # A job seen for less is not judged: a shorter interval may still be mistaken for its step.
    slack_ns: int = 10 * 10**9
    grown: float = 2.0  # a finding is reported again when it costs this many times as much
    resolve_after: int = 3  # looks at its job that do not see a finding any more, after which it is over
    jobs: dict[str, KnownJob] = field(default_factory=dict)
    findings: list[KnownFinding] = field(default_factory=list)
    outbox: list[dict[str, Any]] = field(default_factory=list)  # decided, and perhaps not printed yet
    position: dict[str, Any] = field(default_factory=dict)  # of the source, before what it is reading
    looked_until_ns: int = 0  # So that looks that a restart repeats are not counted twice.
    segment: int = 0  # of the window, from which flows are not part of this state
    arrivals: Arrivals = field(default_factory=lambda: Arrivals())
    judge_from_ns: int = 0  # Nothing is reported before this moment: the watch has seen too little.
    names: dict[str, str] = field(default_factory=dict)  # lasting ones of the jobs of the last look
    _next_job: int = 1
    _next_finding: int = 1
    _look: int = 0

    def handle(self, report: WindowReport, *, final: bool = False) -> list[Told]:
        """What to report after a look; the last look is reported without waiting for another to agree."""
        self._look += 1
        names = self.names = self._name_jobs(report)
        told: list[Told] = []
        seen = {names[job.id]: job for job in report.jobs}
        for raw in report.findings:
            finding = _rename(raw, names)
            if self._is_habit(finding):
                continue
            known = self._follow(finding, seen.get(finding.job))
            due = known.told_cost is None and (final or self._is_sure(known, report.until_ns))
            grown = known.told_cost is not None and known.cost >= self.grown * known.told_cost + 1.0
            if (due or grown or known.resolved) and report.until_ns >= self.judge_from_ns:
                update = known.told_cost is not None
                known.told_cost = known.cost
                known.resolved = False
                known.score, known.evidence = finding.score, finding.evidence
                told.append(Told(id=known.id, finding=known.whole(), update=update, reported_ns=report.until_ns))
        told += self._resolve(seen, report.until_ns)
        self._learn(seen)
        self._forget(report.until_ns)
        return told

    def firing(self) -> list[Told]:
        """Findings that have been reported and are not resolved."""
        return [
            Told(id=known.id, finding=known.whole(), update=True, reported_ns=known.end_ns)
            for known in list(self.findings)
            if known.told_cost is not None and not known.resolved
        ]

    def _is_habit(self, finding: Finding) -> bool:
        """Whether a stall is no longer than the job has paused before, in this window or long ago."""
        job = self.jobs.get(finding.job)
        length_s = (finding.end_ns - finding.start_ns) / 1e9
        return finding.kind == "stall" and job is not None and length_s < _HABIT * job.pause_s

    def _resolve(self, seen: Mapping[str, SeenJob], now_ns: int) -> list[Told]:
        """Findings that are over: several looks do not show them any more, and something shows that all is well."""
        over: list[Told] = []
        for known in self.findings:
            if known.look == self._look:
                known.unseen = 0
                continue
            if known.told_cost is None or known.resolved:
                continue
            job = seen.get(known.job)
            known.unseen += job is not None and job.studied
            if known.unseen >= self.resolve_after and (well := _say_well(known, job)):
                known.resolved, known.well = True, well
                told = Told(id=known.id, finding=known.whole(), update=True, reported_ns=now_ns, status="resolved",
                            well=well)  # fmt: skip
                over.append(told)
        return over

    def _learn(self, seen: Mapping[str, SeenJob]) -> None:
        """Remember how jobs are while nothing is wrong with them."""
        open_now = {f.job for f in self.findings if not f.resolved}
        for name, job in seen.items():
            known = self.jobs[name]
            if name not in open_now and job.studied and job.step_s is not None:
                known.calm_s = job.step_s
            stops = [f for f in self.findings if f.job == name and f.kind in _STOPS]
            if not stops:
                known.pause_s = max(known.pause_s, job.pause_s)

    def _is_sure(self, known: KnownFinding, now_ns: int) -> bool:
        enough = known.sightings >= self.confirm or known.kind in _CERTAIN
        job = self.jobs.get(known.job)
        return enough and (job is None or now_ns - job.first_seen_ns >= self.warm_up_ns)

    def save(self, path: Path) -> None:
        """Save everything in one step: a crash leaves the old state or the new one."""
        document = {
            "schema": _SCHEMA,
            "jobs": {name: asdict(job) for name, job in self.jobs.items()},
            "findings": [asdict(f) for f in self.findings],
            "outbox": self.outbox,
            "position": self.position,
            "looked_until_ns": self.looked_until_ns,
            "segment": self.segment,
            "arrivals": asdict(self.arrivals),
            "judge_from_ns": self.judge_from_ns,
            "next_job": self._next_job,
            "next_finding": self._next_finding,
            "look": self._look,
        }
        write_durably(path, json.dumps(document))

    def _name_jobs(self, report: WindowReport) -> dict[str, str]:
        """Lasting names of the jobs of a look: the known job that shares most ports and endpoints, else a new name."""
        seen = {job.id: (set(job.endpoints), set(job.ports)) for job in report.jobs}
        common: list[tuple[int, int, str, str]] = []
        for name, known in self.jobs.items():
            before = set(known.endpoints)
            for job_id, (now, ports) in seen.items():
                shared = len(before & now)
                if shared and shared >= _SAME_JOB * min(len(before), len(now)):
                    common.append((-len(ports.intersection(known.ports)), -shared, name, job_id))
        names: dict[str, str] = {}
        taken: set[str] = set()
        for *_, name, job_id in sorted(common):
            if job_id not in names and name not in taken:
                names[job_id] = name
                taken.add(name)
        for job in report.jobs:
            if job.id not in names:
                names[job.id] = f"job-{self._next_job}"
                self._next_job += 1
            known_job = self.jobs.get(names[job.id])
            kept = tuple(port for port in job.ports if known_job is not None and port in known_job.ports)
            self.jobs[names[job.id]] = KnownJob(
                endpoints=job.endpoints,
                first_seen_ns=report.until_ns if known_job is None else known_job.first_seen_ns,
                last_seen_ns=report.until_ns,
                step_s=job.step_s if job.studied or known_job is None else known_job.step_s,
                ports=kept or job.ports,
                calm_s=None if known_job is None else known_job.calm_s,
                pause_s=0.0 if known_job is None else known_job.pause_s,
            )
        return names

    def _follow(self, finding: Finding, job: SeenJob | None) -> KnownFinding:
        hosts = _list_hosts(finding.culprit, {} if job is None else job.host_of)
        same = [k for k in self.findings if k.is_same(finding, hosts, self.slack_ns)]
        known = next((k for k in same if k.culprit == finding.culprit.id), same[0] if same else None)
        if known is None:
            known = KnownFinding(
                id=f"finding-{self._next_finding}",
                kind=finding.kind,
                job=finding.job,
                culprit_type=finding.culprit.type,
                culprit=finding.culprit.id,
                start_ns=finding.start_ns,
                end_ns=finding.end_ns,
                cost=finding.lost_gpu_seconds,
                calm_s=self.jobs[finding.job].calm_s if finding.job in self.jobs else None,
            )
            self._next_finding += 1
            self.findings.append(known)
        elif finding.start_ns > known.start_ns:
            # The finding began before this window: add the loss since the last look, at the rate of this one.
            fresh_ns = max(0, finding.end_ns - known.end_ns)
            length_ns = max(1, finding.end_ns - finding.start_ns)
            known.cost = max(known.cost + finding.lost_gpu_seconds * fresh_ns / length_ns, finding.lost_gpu_seconds)
        else:
            known.cost = max(known.cost, finding.lost_gpu_seconds)
        named = known.kind in _UNPLACED and finding.kind in _PLACED
        if named and known.told_cost is not None:
            known.told_cost = 0.0  # who it is is news
        if named or known.told_cost is None or known.kind not in _ONE_AT_A_TIME:
            # Keep the first culprit: that look saw the beginning, which later windows no longer contain.
            known.kind = finding.kind
            known.culprit_type, known.culprit, known.hosts = finding.culprit.type, finding.culprit.id, hosts
        if job is not None and job.recent_s is not None:
            known.during_s = job.recent_s
        known.start_ns = min(known.start_ns, finding.start_ns)
        known.end_ns = max(known.end_ns, finding.end_ns)
        if known.look != self._look:
            known.sightings += 1
            known.look = self._look
        return known

    def _forget(self, now_ns: int) -> None:
        """Drop findings that were seen only once, and those that ended long ago."""
        self.findings = [
            f
            for f in self.findings
            if f.look == self._look or (f.told_cost is not None and now_ns - f.end_ns < _FORGET_FINDING_NS)
        ][-_MAX_REMEMBERED:]
        self.jobs = {n: j for n, j in self.jobs.items() if now_ns - j.last_seen_ns < _FORGET_JOB_NS}


def load_state(path: Path) -> WatchState:
    """The state that an earlier run saved; a new one if there is none."""
    if not path.exists():
        return WatchState()
    try:
        document = json.loads(path.read_text())
        if document["schema"] != _SCHEMA:
            raise ValueError(f"schema is {document['schema']!r}")
        return WatchState(
            jobs={
                name: KnownJob(**{**job, "endpoints": tuple(job["endpoints"]), "ports": tuple(job.get("ports", ()))})
                for name, job in document["jobs"].items()
            },
            findings=[KnownFinding(**{**f, "hosts": tuple(f.get("hosts", ()))}) for f in document["findings"]],
            outbox=document["outbox"],
            position=document["position"],
            looked_until_ns=document.get("looked_until_ns", 0),
            segment=document.get("segment", 0),
            arrivals=Arrivals(**document.get("arrivals", {})),
            judge_from_ns=document.get("judge_from_ns", 0),
            _next_job=document["next_job"],
            _next_finding=document["next_finding"],
            _look=document["look"],
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadFileError(f"{path}: not a state of prism watch ({error}); move it away to start afresh") from None


def _say_well(known: KnownFinding, job: SeenJob | None) -> str:
    """What shows that a finding is over; "" where nothing does.

    A window that lies within a fault holds nothing healthy: that it shows nothing does not say that it is over.
    """
    if job is None:
        return ""
    if job.over:
        return f"by its scheduler {known.job} has ended"
    if known.kind in _STOPS:
        return f"{known.job} steps again" if job.stepped_ns > known.end_ns else ""
    if known.during_s is None or job.recent_s is None:
        return ""
    looks = f"{known.unseen} looks at {known.job} do not show it any more; its steps last {job.recent_s:.3g} s"
    if known.calm_s is None:
        return f"{looks}, {known.during_s:.3g} s during it" if job.recent_s < (1 - 2 * _FELT) * known.during_s else ""
    more = known.during_s - known.calm_s
    well = more <= _FELT * known.calm_s or job.recent_s - known.calm_s <= _SHORTER * more
    return f"{looks}, {known.calm_s:.3g} s before it" if well else ""


def _list_hosts(culprit: Culprit, host_of: Mapping[str, str]) -> tuple[str, ...]:
    """The hosts that a culprit has a part of: a link's ends, the members of a group."""
    names = re.split("[,>]", culprit.id)
    hosts = set(host_of.values())
    return tuple(sorted({host_of.get(name, name) for name in names if name in host_of or name in hosts}))


def _rename(finding: Finding, names: dict[str, str]) -> Finding:
    """A finding with the lasting names of jobs, in its evidence, too."""
    culprit = finding.culprit
    if culprit.type == "job":
        culprit = Culprit(type="job", id=names.get(culprit.id, culprit.id))
    evidence = re.sub(r"\bjob-\d+\b", lambda m: names.get(m[0], m[0]), finding.evidence)
    return replace(finding, job=names.get(finding.job, finding.job), culprit=culprit, evidence=evidence)
