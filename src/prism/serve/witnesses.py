"""What every source in the folder says of incidents: documents in, events out. Reads nothing, decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from prism.incidents.events import DAY_NS, HOUR_NS, Event, Look, Sighting, SourceLost, Studied
from prism.incidents.incident import Place
from prism.records import Finding, Verdict
from prism.recover.supervise.events import StepDone
from prism.serve.snapshot import FileState, Snapshot, Source
from prism.serve.sources.diagnosed import DIAGNOSIS_FILE, Diagnosed
from prism.serve.sources.printed import Printed
from prism.serve.sources.supervised import STATE_FILE, Decision, Supervised
from prism.serve.sources.verdicts import VerdictFile
from prism.serve.sources.watched import ToldFindings, Watched
from prism.serve.views.jobs import key_of
from prism.serve.views.looks import followed_findings

_LEAST_RISK = 0.5  # a part that is likelier to fail than not within the horizon; risks are calibrated
_MOST_RISKS = 20
_SECOND = 10**9
_STATES = {"broken": "damaged", "gone": "gone", "stale": "late"}
_OF_JUDGEMENT = {"hang": "hang", "slow": "slow_step", "spike": "loss_spike", "corruption": "corruption"}


@dataclass(slots=True)
class Witnesses:
    """Compares snapshots, and gives the events that the newer one stands for."""

    _said: dict[str, tuple[Source, bool]] = field(default_factory=dict)  # by source: the object, and if it was lost
    _lost: dict[str, str] = field(default_factory=dict)  # by path: its state
    _version: int = 0

    def compare(self, snapshot: Snapshot, now_ns: int) -> Iterator[Event]:
        """Events since the snapshot before."""
        if snapshot.version == self._version:
            return
        states = {state.path: state for state in snapshot.states}
        said: dict[str, tuple[Source, bool]] = {}
        for source in snapshot.sources:
            path = path_of(source)
            if path is None:
                continue
            lost = path in states or (isinstance(source, Watched) and source.ended == "stopped")
            said[path] = (source, lost)
            before = self._said.get(path)
            if before is not None and before[0] is source and before[1] == lost:
                continue  # by identity: frames cannot be compared, and an unchanged source is the same object
            look = describe(snapshot, source, now_ns, alive=not lost)
            if look is not None:
                yield look
            if isinstance(source, Watched) and source.ended == "stopped":
                yield _say_stopped(source, path, now_ns)
        yield from self._lose(states, now_ns)
        self._said, self._version = said, snapshot.version

    def _lose(self, states: Mapping[str, FileState], now_ns: int) -> Iterator[Event]:
        for path, state in states.items():
            if self._lost.get(path) == state.state:
                continue
            tool = tool_of(self._said.get(path, (None, False))[0])
            yield SourceLost(
                now_ns=now_ns, source=path, tool=tool, state=_STATES[state.state], why=state.message,  # type: ignore[arg-type]
                since_ns=state.since_ns or now_ns, blind=tool == "watch",
            )  # fmt: skip
        self._lost = {path: state.state for path, state in states.items()}


def path_of(source: Source) -> str | None:
    """The file that a source is known by; None of sources that tell of no incident."""
    match source:
        case Diagnosed():
            return _join(source.place, DIAGNOSIS_FILE)
        case Watched() | Supervised():
            return _join(source.place, STATE_FILE)
        case ToldFindings() | VerdictFile():
            return source.path
        case Printed() if source.kind in ("investigation", "prediction"):
            return source.path
    return None


def describe(snapshot: Snapshot, source: Source, now_ns: int, *, alive: bool) -> Look | None:
    """Everything that a source shows."""
    path = path_of(source) or ""
    match source:
        case Diagnosed():
            return _look_of_diagnosis(source, path, now_ns)
        case Watched():
            return _look_of_watch(snapshot, source, path, now_ns, alive=alive)
        case ToldFindings():
            place = source.path.rpartition("/")[0] or "."
            if any(watch.place == place for watch in snapshot.all_of(Watched)):
                return None  # its state says the same
            rows = [_of_finding(f.finding, f.id, place, {}, (), _say_over(f.well, f.over)) for f in source.findings]
            return Look(now_ns=now_ns, source=path, tool="watch", at_ns=source.updated_ns, sightings=tuple(rows))
        case Supervised():
            return _look_of_run(source, path, now_ns)
        case VerdictFile():
            rows = [
                _of_verdict(verdict, f"{n}", source) for n, verdict in enumerate(source.verdicts) if _failed(verdict)
            ]
            return Look(now_ns=now_ns, source=path, tool="explain", at_ns=source.updated_ns, sightings=tuple(rows),
                        holds_ns=DAY_NS)  # fmt: skip
        case Printed():
            rows = list(_of_risks(source) if source.kind == "prediction" else _of_investigation(source))
            tool = "predict" if source.kind == "prediction" else "investigate"
            return Look(now_ns=now_ns, source=path, tool=tool, at_ns=source.updated_ns, sightings=tuple(rows),
                        holds_ns=DAY_NS)  # fmt: skip
    return None


# ---- findings of diagnose and watch


def _look_of_diagnosis(source: Diagnosed, path: str, now_ns: int) -> Look:
    hosts = {job.id: job.hosts for job in source.jobs}
    host_of = _host_of(source)
    ended = {job.id for job in source.jobs if job.state == "ended"}
    rows = [
        _of_finding(finding, _key(finding), source.place, host_of, hosts.get(finding.job, ()))
        for finding in source.findings
        if not (finding.kind == "hang" and finding.job in ended)
    ]
    studied = [
        Studied(
            job_key=key_of(source.place, job.id),
            hosts=job.hosts,
            until_ns=int(job.steps["end_ns"][-1]),
            text=f"a later diagnosis compared {len(job.steps)} steps on {len(job.hosts)} hosts and does not show it",
        )
        for job in source.jobs
        if len(job.steps)
    ]
    return Look(now_ns=now_ns, source=path, tool="diagnose", at_ns=source.updated_ns, sightings=tuple(rows),
                studied=tuple(studied))  # fmt: skip


def _look_of_watch(snapshot: Snapshot, source: Watched, path: str, now_ns: int, *, alive: bool) -> Look:
    hosts = {job.id: _hosts_of(source, job.endpoints) for job in source.jobs}
    rows = [
        _of_finding(
            f.finding, f.id, source.place, source.hosts, hosts.get(f.finding.job, ()), _say_over(f.well, f.over)
        )
        for f in followed_findings(snapshot, source)
    ]
    current = now_ns - source.until_ns < HOUR_NS  # else it reads records of the past
    holds_ns = 0 if alive and current and not source.ended else HOUR_NS
    return Look(now_ns=now_ns, source=path, tool="watch", at_ns=source.updated_ns, sightings=tuple(rows),
                holds_ns=holds_ns, alive=alive)  # fmt: skip


def _say_over(well: str, over: bool) -> str:
    return (well or "its watch does not see it any more") if over else ""


def _say_stopped(source: Watched, path: str, now_ns: int) -> SourceLost:
    runs = [job for job in source.jobs if source.until_ns - job.last_seen_ns < 60 * _SECOND]
    return SourceLost(
        now_ns=now_ns, source=path, tool="watch", state="ended", why="the watch was stopped on request",
        since_ns=source.updated_ns, blind=bool(runs),
    )  # fmt: skip


def _of_finding(
    finding: Finding, key: str, place: str, host_of: Mapping[str, str], job_hosts: tuple[str, ...], well: str = ""
) -> Sighting:
    names = finding.culprit.id.split(",")
    if finding.culprit.type == "host":
        hosts = tuple(names)
    elif finding.culprit.type in ("endpoint", "link"):
        ends = [end for name in names for end in name.split(">")]
        hosts = tuple(dict.fromkeys(host_of[end] for end in ends if end in host_of))
    else:
        hosts = ()
    margin = max(1_000, (finding.end_ns - finding.start_ns) // 10)
    window = {"key": key_of(place, finding.job), "from": finding.start_ns - margin, "to": finding.end_ns + margin}
    return Sighting(
        key=key,
        kind=finding.kind,
        place=Place(type=finding.culprit.type, id=finding.culprit.id),
        since_ns=finding.start_ns,
        until_ns=finding.end_ns,
        text=finding.evidence,
        sure=finding.score,
        job=finding.job,
        job_key=key_of(place, finding.job),
        hosts=hosts,
        job_hosts=job_hosts,
        lost_gpu_s=finding.lost_gpu_seconds,
        well=well,
        link=f"job?{urlencode(window)}",
    )


def _key(finding: Finding) -> str:
    return f"{finding.job}/{finding.kind}/{finding.culprit.type}/{finding.culprit.id}/{finding.start_ns}"


def _host_of(source: Diagnosed) -> dict[str, str]:
    table = source.topology
    return {} if table is None else dict(zip(table["address"], table["host"], strict=True))


def _hosts_of(source: Watched, endpoints: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(source.hosts.get(name, name) for name in endpoints))


# ---- runs of supervise


def _look_of_run(run: Supervised, path: str, now_ns: int) -> Look:
    known = _Run(run)
    rows = [*known.attempts(), *known.end(), *known.shadows(), *known.cordons()]
    studied = []
    if run.outcome == "done" or run.supervised:
        text = "the run is done" if run.outcome == "done" else f"its supervisor runs again: attempt {run.attempt}"
        studied = [Studied(job_key=known.key, hosts=run.hosts, until_ns=run.updated_ns, text=text)]
    return Look(now_ns=now_ns, source=path, tool="supervise", at_ns=run.updated_ns, sightings=tuple(rows),
                studied=tuple(studied), holds_ns=0 if run.supervised else DAY_NS)  # fmt: skip


@dataclass(slots=True)
class _Run:
    """A supervised run, and what in it is an incident."""

    run: Supervised
    name: str = ""
    key: str = ""
    gpus: float = 1.0  # at least one for each host; how many there are is written nowhere
    steps_s: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        run = self.run
        self.name = "run" if run.place == "." else run.place.rpartition("/")[2]
        self.key = key_of(run.place, "run")
        self.gpus = float(max(1, len(run.hosts)))
        self.steps_s = [int(r.time_s * _SECOND) for r in run.reports if isinstance(r.event, StepDone)]

    def attempts(self) -> Iterator[Sighting]:
        """Attempts that ended before the run did."""
        run, furthest = self.run, max((int(f.get("step", -1)) for f in self.run.failures), default=-1)
        passed = ""
        if run.outcome == "done":
            passed = f"the run is done, in attempt {run.attempt}"
        elif run.outcome == "stopped":
            passed = "the run was stopped on request"
        elif run.phase == "running" and run.supervised and run.best_step > furthest >= 0:
            passed = f"attempt {run.attempt} has passed step {furthest}: it is at step {run.best_step}"
        number = 0
        for place, decision in enumerate(run.decisions):
            if decision.event == "Exited" and decision.fields.get("code") != 0:
                number += 1
                verdict = _verdict_after(run.decisions, place)
                host = str(decision.fields.get("host") or "")
                cause = verdict.says if verdict is not None else _say_code(decision.fields.get("code"))
                # One that is over is still told where it began: the next attempt may begin within a second.
                yield self._sighting(
                    "attempt_ended", f"attempt-{number}", int(decision.time_s * _SECOND),
                    text=_say_evidence(verdict) or cause, cause=cause, hosts=(host,) if host else (), well=passed,
                    sure=1.0, advice=verdict.mitigation if verdict is not None else "",
                )  # fmt: skip

    def end(self) -> Iterator[Sighting]:
        """A run that failed, and one whose supervisor is gone."""
        run = self.run
        last_ns = int(run.decisions[-1].time_s * _SECOND) if run.decisions else run.updated_ns
        if run.outcome == "failed":
            verdicts = [d.verdict for d in run.decisions if d.verdict is not None]
            cause = verdicts[-1].says if verdicts else ""
            advice = verdicts[-1].mitigation if verdicts else ""
            yield self._sighting("run_failed", "end", last_ns, text=run.outcome_text, cause=cause, advice=advice)
        elif not run.outcome and not run.supervised:
            text = f"its supervisor is not running; the last that it wrote: attempt {run.attempt}, {run.phase}"
            yield self._sighting("run_lost", "end", run.updated_ns, text=text)

    def shadows(self) -> Iterator[Sighting]:
        """Judgements that the supervisor made and did not act on."""
        for decision in self.run.decisions:
            for action in decision.actions:
                kind = _OF_JUDGEMENT.get(str(action.get("judgement")))
                if action.get("action") == "Shadow" and kind is not None:
                    at_ns = int(decision.time_s * _SECOND)
                    later = next((t for t in self.steps_s if t > at_ns), None)
                    well = "" if later is None or kind == "corruption" else "it reported a step since"
                    well = well or ("the run is over" if self.run.outcome else "")
                    yield self._sighting(kind, f"{kind}-{at_ns}", at_ns, text=str(action.get("text")), well=well)

    def cordons(self) -> Iterator[Sighting]:
        """Hosts out of use."""
        for decision in self.run.decisions:
            for action in decision.actions:
                if action.get("action") == "Cordon":
                    host, at_ns = str(action.get("host")), int(decision.time_s * _SECOND)
                    record = next((one for one in self.run.host_records if one.host == host), None)
                    well = "" if record is None or record.cordoned else f"{host} may be used again"
                    yield self._sighting("cordon", f"cordon-{host}-{at_ns}", at_ns, text=str(action.get("reason")),
                                         place=Place(type="host", id=host), hosts=(host,), well=well)  # fmt: skip

    def _sighting(self, kind: str, key: str, at_ns: int, **more: Any) -> Sighting:
        fields: dict[str, Any] = {
            "place": Place(type="job", id=self.name), "sure": 1.0, "job": self.name, "job_key": self.key,
            "job_hosts": self.run.hosts, "gpus_lost": self.gpus, "until_ns": at_ns, "since_ns": at_ns,
            "link": f"failures?{urlencode({'run': self.key})}", **more,
        }  # fmt: skip
        return Sighting(key=key, kind=kind, **fields)


def _verdict_after(decisions: tuple[Decision, ...], place: int) -> Verdict | None:
    for decision in decisions[place + 1 :]:
        if decision.verdict is not None:
            return decision.verdict
        if decision.event == "Exited":
            return None
    return None


def _say_code(code: Any) -> str:
    return "its processes are gone without an exit code" if code is None else f"it ended with code {code}"


def _say_evidence(verdict: Verdict | None) -> str:
    return "" if verdict is None or not verdict.evidence else verdict.evidence[0].text.strip()


# ---- documents that a command printed once


def _failed(verdict: Verdict) -> bool:
    return verdict.action != "none" and verdict.outcome not in ("completed", "cancelled")


def _of_verdict(verdict: Verdict, key: str, source: VerdictFile) -> Sighting:
    return Sighting(
        key=key, kind="failure", place=Place(type="log", id=verdict.log), since_ns=source.updated_ns,
        until_ns=source.updated_ns, text=_say_evidence(verdict) or verdict.says, sure=verdict.confidence,
        job=verdict.log, job_key=f"{source.path}~{key}", hosts=verdict.hosts, gpus_lost=0.0, cause=verdict.says,
        advice=verdict.mitigation, link=f"failures?{urlencode({'verdict': f'{source.path}~{int(key) + 1}'})}",
    )  # fmt: skip


def _of_investigation(source: Printed) -> Iterator[Sighting]:
    verdict = source.document["verdict"]
    named = [one for one in verdict.get("culprits") or () if isinstance(one, dict)]
    if not named:
        return
    since_ns = int(verdict.get("since_ns") or 0) or source.updated_ns
    place = Place(type=str(named[0].get("type")), id=",".join(str(one.get("id")) for one in named))
    folder = source.path.rpartition("/")[0]
    run, _, attempt = folder.rpartition("/attempts/")
    job_key = key_of(run or ".", "run") if attempt.isdecimal() else key_of(source.path, "investigation")
    lines = [str(one.get("text")) for one in source.document["evidence"] if isinstance(one, dict)]
    yield Sighting(
        key="verdict", kind="investigated", place=place, since_ns=since_ns, until_ns=max(since_ns, source.updated_ns),
        text=lines[0] if lines else str(verdict.get("what")), sure=float(verdict.get("confidence") or 0.0),
        job=run.rpartition("/")[2] if attempt.isdecimal() else "", job_key=job_key, gpus_lost=0.0,
        cause=str(verdict.get("what") or ""), link=f"reports?{urlencode({'path': source.path})}",
    )  # fmt: skip


def _of_risks(source: Printed) -> Iterator[Sighting]:
    at_ns, days = int(source.document["at_ns"]), float(source.document.get("horizon_days") or 1)
    rows = [row for row in source.document["risks"] if isinstance(row, dict) and _number(row) >= _LEAST_RISK]
    for row in sorted(rows, key=lambda row: -_number(row))[:_MOST_RISKS]:
        yield Sighting(
            key=str(row.get("id")), kind="risk", place=Place(type="part", id=str(row.get("id"))), since_ns=at_ns,
            until_ns=at_ns + int(days * DAY_NS), sure=_number(row), gpus_lost=0.0,
            text=f"{_number(row):.0%} within {days:g} days: {'; '.join(map(str, row.get('reasons') or ()))}",
            link=f"reports?{urlencode({'path': source.path})}",
        )  # fmt: skip


def _number(row: Mapping[str, Any]) -> float:
    value = row.get("risk")
    return float(value) if isinstance(value, int | float) and value == value else 0.0


def tool_of(source: Source | None) -> str:
    """The command that writes such a source."""
    match source:
        case Watched():
            return "watch"
        case Supervised():
            return "supervise"
        case Diagnosed():
            return "diagnose"
        case ToldFindings():
            return "watch"
        case VerdictFile():
            return "explain"
        case Printed():
            return "predict" if source.kind == "prediction" else "investigate"
    return "serve"


def _join(place: str, name: str) -> str:
    return name if place == "." else f"{place}/{name}"
