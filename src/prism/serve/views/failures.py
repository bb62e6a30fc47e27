"""The Failures page: verdicts with their evidence, hosts with their history, and supervised runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath
from typing import NamedTuple

from prism.records import Verdict
from prism.serve.folder import Folder
from prism.serve.shapes.runs import FailuresDocument, HostHistory, VerdictDocument, VerdictRow
from prism.serve.snapshot import Snapshot
from prism.serve.sources.supervised import Supervised
from prism.serve.sources.verdicts import VerdictFile, read_context
from prism.serve.views.looks import find_now
from prism.serve.views.runs import describe_run_row


class ToldVerdict(NamedTuple):
    """A verdict, its id, its file or run, and the folder that its paths are relative to."""

    id: str
    origin: str
    place: str
    verdict: Verdict


def describe_failures(snapshot: Snapshot) -> FailuresDocument:
    """The page's document."""
    return FailuresDocument(
        verdicts=tuple(_describe_verdict(told) for told in list_verdicts(snapshot)),
        hosts=tuple(list_hosts(snapshot)),
        runs=tuple(describe_run_row(run) for run in snapshot.all_of(Supervised)),
    )


def list_verdicts(snapshot: Snapshot) -> tuple[ToldVerdict, ...]:
    """All verdicts, of supervisors and of `prism explain`; a failure that both explain appears once."""
    return snapshot.once("verdicts", lambda: tuple(_list_verdicts(snapshot)))


def _list_verdicts(snapshot: Snapshot) -> Iterator[ToldVerdict]:
    known: dict[tuple[object, ...], list[PurePosixPath]] = {}
    supervised = [
        ToldVerdict(f"{run.place}~{number}", run.place, run.place, decision.verdict)
        for run in snapshot.all_of(Supervised)
        for number, decision in enumerate(run.decisions, start=1)
        if decision.verdict is not None
    ]
    explained = [
        ToldVerdict(f"{file.path}~{number}", file.path, file.path.rpartition("/")[0] or ".", verdict)
        for file in snapshot.all_of(VerdictFile)
        for number, verdict in enumerate(file.verdicts, start=1)
    ]
    fresh = []
    for told in (*supervised, *explained):
        verdict = told.verdict
        lines = tuple((line.line, line.text.strip()) for line in verdict.evidence)
        log = PurePosixPath(verdict.log)
        if verdict.evidence and verdict.evidence[0].file:
            log /= verdict.evidence[0].file
        same = known.setdefault((verdict.cause.name, lines), [])
        if lines and any(_is_same_log(log, other) for other in same):
            continue
        same.append(log)
        fresh.append(told)
    # Those of `prism explain` come first, because a person asked for them.
    yield from sorted(fresh, key=lambda told: told.origin == told.place)


def _is_same_log(a: PurePosixPath, b: PurePosixPath) -> bool:
    """Whether two paths, relative to different folders, may name one file: one is the end of the other."""
    shorter, longer = sorted((a.parts, b.parts), key=len)
    return longer[len(longer) - len(shorter) :] == shorter


def describe_verdict(snapshot: Snapshot, folder: Folder, id: str) -> VerdictDocument | None:
    """One verdict with its evidence in context; None where there is none of that id."""
    found = next((told for told in list_verdicts(snapshot) if told.id == id), None)
    if found is None:
        return None
    return VerdictDocument(
        verdict=_describe_verdict(found), context=tuple(read_context(folder, found.verdict, found.place))
    )


def list_hosts(snapshot: Snapshot) -> list[HostHistory]:
    """Hosts with findings, failures or cordons, worst first."""
    names: dict[str, HostHistory] = {}

    def known(host: str) -> HostHistory:
        blank = HostHistory(
            host=host, cordoned=False, num_failures=0, num_strikes=0, num_cordons=0, num_findings=0, reasons=()
        )
        return names.get(host, blank)

    for run in snapshot.all_of(Supervised):
        for record in run.host_records:
            old = known(record.host)
            names[record.host] = replace(
                old,
                cordoned=old.cordoned or record.cordoned,
                num_strikes=old.num_strikes + record.num_strikes,
                num_cordons=old.num_cordons + record.num_cordons,
                reasons=(*old.reasons, *record.reasons),
            )
        for failure in run.failures:
            if host := failure.get("host"):
                old, reason = known(str(host)), f"{failure.get('reason')} {_say_step(failure.get('step'))}"
                names[str(host)] = replace(old, num_failures=old.num_failures + 1, reasons=(*old.reasons, reason))
    for told in list_verdicts(snapshot):
        if told.origin == told.place:
            continue  # of a supervisor, whose failures are counted there
        for host in told.verdict.hosts:
            old, reason = known(host), f"{told.verdict.cause.name} in {told.verdict.log}"
            names[host] = replace(old, num_failures=old.num_failures + 1, reasons=(*old.reasons, reason))
    for finding in find_now(snapshot).findings:
        if finding.culprit_type == "host":
            old, reason = known(finding.culprit), f"{finding.kind.replace('_', ' ')}: {finding.evidence}"
            names[finding.culprit] = replace(old, num_findings=old.num_findings + 1, reasons=(*old.reasons, reason))
    worst = sorted(names.values(), key=lambda h: (not h.cordoned, -h.num_failures, -h.num_findings, h.host))
    return [replace(host, reasons=tuple(dict.fromkeys(host.reasons))) for host in worst]


def _say_step(step: object) -> str:
    return f"at step {step}" if isinstance(step, int) and step >= 0 else "before a step was seen"


def _describe_verdict(told: ToldVerdict) -> VerdictRow:
    verdict = told.verdict
    first = verdict.evidence[0] if verdict.evidence else None
    return VerdictRow(
        id=told.id,
        origin=told.origin,
        log=verdict.log,
        reason=verdict.cause.name,
        cause=verdict.says,
        outcome=verdict.outcome,
        category=verdict.category,
        action=verdict.action,
        confidence=verdict.confidence,
        hosts=verdict.hosts,
        first_rank=verdict.first_rank,
        evidence="" if first is None else first.text.strip(),
        mitigation=verdict.mitigation,
        lines_read=verdict.lines_read,
        lines_kept=verdict.lines_kept,
    )
