"""What each source says happened, in one shape, so that sources can agree or disagree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl

from prism.records.findings import Finding
from prism.records.verdict import Verdict
from prism.traces.counters import Anomaly
from prism.traces.hang import Hang
from prism.traces.kernel_log import GpuError, describe_error
from prism.traces.late_calls import LateRank
from prism.traces.profiled_ranks import ProfiledJob
from prism.traces.rank_logs import RankLog, find_first_failed, find_silent, is_loss_of_peer
from prism.traces.ras import Laggards
from prism.traces.standing import Standing
from prism.traces.watchdog import Behind

SuspectType = Literal["rank", "host", "gpu", "link", "program"]
Source = Literal["flight_recorder", "flows", "log", "kineto", "counters", "ras", "inspector", "stacks", "rank_logs"]

# A collective that timed out says that someone did not come, not who or why.
_SYMPTOMS = frozenset({"NCCLTimeoutError", "NCCLRemoteError", "Unknown", "none"})


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Suspect:
    """Someone who may be to blame."""

    type: SuspectType
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Clue:
    """What one source says: what happened, who did it, and how sure that source is alone."""

    source: Source
    what: str
    text: str
    suspects: tuple[Suspect, ...]  # together; empty where the source names nobody
    since_ns: int | None
    confidence: float
    alternatives: tuple[Suspect, ...] = ()
    advice: str = ""


_WORDS = {
    "absent": "hang: a rank did not come to a collective",
    "missing_dump": "hang: a rank was gone or held, and left no dump",
    "mismatch": "hang: ranks called different collectives",
    "deadlock": "hang: ranks wait for each other in different calls",
    "stuck": "hang inside a collective that all had entered",
    "none": "no hang",
}
_ADVICE = {
    "absent": "look at its stack (py-spy dump) and its host's kernel log; if it hangs again, restart without it",
    "missing_dump": "look at its log and its host's kernel log; let TORCH_FR_DUMP_TEMP_FILE name a shared folder",
    "mismatch": "fix the program where that rank takes another branch; a restart will hang again",
    "deadlock": "let all ranks call their groups in one order; a restart will hang again",
    "stuck": "collect NCCL RAS output, kernel logs and flow records of that minute",
    "none": "",
}


def read_hang(hang: Hang) -> Clue:
    """A hang as a clue; a deadlock is the program's fault, at the ranks that show it."""
    suspects = tuple(Suspect(type="rank", id=str(r)) for r in hang.ranks)
    if hang.line and hang.what in ("mismatch", "deadlock"):
        suspects += (Suspect(type="program", id=hang.line),)
    return Clue(
        source="flight_recorder",
        what=_WORDS[hang.what],
        text=hang.text + (f" ({hang.line})" if hang.line else ""),
        suspects=suspects if hang.what != "stuck" else (),
        since_ns=hang.since_ns or None,
        confidence=hang.confidence,
        alternatives=tuple(Suspect(type="rank", id=str(r)) for r in hang.alternatives),
        advice=_ADVICE[hang.what],
    )


def read_late_rank(late: LateRank) -> Clue:
    """A rank that comes last to collectives that do complete."""
    return Clue(
        source="flight_recorder",
        what="slow rank: the others wait for it",
        text=f"rank {late.rank} came last to {late.last} of {late.calls} collectives; the others waited "
        f"{late.held_ns / late.calls / 1e6:.0f} ms for it each time",
        suspects=(Suspect(type="rank", id=str(late.rank)),),
        since_ns=None,
        confidence=0.7,
        advice="compare that rank's host, clocks and input with the others'",
    )


def read_behind(behind: Behind) -> Clue:
    """Who had made the fewest calls when PyTorch's watchdog gave up."""
    ranks = ", ".join(str(r) for r in behind.ranks[:8])
    return Clue(
        source="rank_logs",
        what="hang: a rank launched fewer operations",
        text=f"watchdog: rank {ranks} had made {behind.enqueued} calls of group {behind.group}, others up to "
        f"{behind.most} (of {behind.members} ranks that say so)",
        suspects=tuple(Suspect(type="rank", id=str(r)) for r in behind.ranks[:16]),
        since_ns=None,
        confidence=round(0.9 / len(behind.ranks) ** 0.5, 2),
        advice="look at its stack (py-spy dump) and its host's kernel log; if it hangs again, restart without it",
    )


def read_verdict(verdict: Verdict) -> Clue:
    """A log's verdict as a clue; a symptom names what happened to everybody, so it accuses nobody."""
    lines = "; ".join(e.text for e in verdict.evidence[:2])
    symptom = verdict.reason in _SYMPTOMS or (verdict.category == "infrastructure" and is_loss_of_peer(lines))
    suspects: tuple[Suspect, ...] = ()
    if not symptom:
        suspects = tuple(Suspect(type="host", id=h) for h in verdict.hosts)
        if verdict.first_rank is not None:
            suspects = (Suspect(type="rank", id=str(verdict.first_rank)), *suspects)
    return Clue(
        source="log",
        what=verdict.reason,
        text=f"{Path(verdict.log).name}: {verdict.reason} ({verdict.category}): {lines}"[:600],
        suspects=suspects,
        since_ns=None,
        confidence=verdict.confidence * (0.3 if symptom else 1.0),
        advice=verdict.mitigation,
    )


def read_findings(findings: Sequence[Finding]) -> list[Clue]:
    """What flows show: each finding is a clue about hosts and links."""
    clues = []
    for finding in findings[:5]:
        kind: SuspectType = "link" if finding.culprit.type in ("link", "switch") else "host"
        named = finding.culprit.type in ("host", "endpoint", "link", "switch")
        clues.append(
            Clue(
                source="flows",
                what=finding.kind,
                text=f"{finding.kind}: {finding.culprit.type} {finding.culprit.id}: {finding.evidence}",
                suspects=(Suspect(type=kind, id=finding.culprit.id),) if named else (),
                since_ns=finding.start_ns,
                confidence=finding.score,
            )
        )
    return clues


def read_laggards(found: Sequence[Laggards]) -> list[Clue]:
    """What NCCL RAS shows; ranks of the largest communicator are the job's, those of others have only a host."""
    largest = max((x.size or 0 for x in found), default=0)
    clues = []
    for one in found[:5]:
        is_world = (one.size or 0) == largest
        suspects = [Suspect(type="rank", id=str(m.rank)) for m in one.members[:16] if is_world and m.rank >= 0]
        suspects += [Suspect(type="host", id=h) for h in dict.fromkeys(m.host for m in one.members if m.host)][:16]
        ranks = ", ".join(str(m.rank) for m in one.members[:8])
        behind = "does not answer" if one.behind is None else f"is {one.behind} operations behind the first"
        clues.append(
            Clue(
                source="ras",
                what="hang: a rank does not answer" if one.behind is None else "hang: a rank launched fewer operations",
                text=f"communicator {one.communicator} of {one.size or 'unknown'} ranks: rank {ranks} {behind}",
                suspects=tuple(suspects),
                since_ns=None,
                confidence=0.9 if one.behind is None else 0.8 / max(len(one.members) ** 0.5, 1),
                advice="look at its process and its host; restart without the host if it does not answer",
            )
        )
    return clues


def read_gpu_errors(errors: Sequence[GpuError]) -> list[Clue]:
    """Errors in kernel logs; those of hardware accuse a GPU, those of a program only say what it did."""
    seen: dict[tuple[str, str, int], GpuError] = {}
    for error in errors:
        if error.severity in ("hardware", "program"):
            seen.setdefault((error.host, error.device, error.code), error)
    clues = []
    for error in list(seen.values())[:8]:
        broken = error.severity == "hardware"
        named = (Suspect(type="host", id=error.host), Suspect(type="gpu", id=f"{error.host} {error.device}"))
        clues.append(
            Clue(
                source="log",
                what=f"{error.family} {error.code}",
                text=f"kernel log: {describe_error(error)}: {error.text}",
                suspects=named if broken else (),
                since_ns=error.at_ns,
                confidence=0.85 if broken else 0.4,
                advice=f"drain {error.host}, reset or swap the GPU"
                if broken
                else "look for a wrong access in the program",
            )
        )
    return clues


def read_anomalies(anomalies: Sequence[Anomaly]) -> list[Clue]:
    """What counters show, one clue per host."""
    by_host: dict[str, list[Anomaly]] = {}
    for anomaly in anomalies:
        by_host.setdefault(anomaly.host, []).append(anomaly)
    clues = []
    for host, own in list(by_host.items())[:8]:
        gpus = dict.fromkeys(f"{host} {a.device}" for a in own if a.device.startswith("gpu"))
        told = "; ".join(f"{a.device} {a.words} ({a.metric} {a.value:g})" for a in own[:3])
        clues.append(
            Clue(
                source="counters",
                what=own[0].words,
                text=f"{host}: {told}",
                suspects=(Suspect(type="host", id=host), *(Suspect(type="gpu", id=g) for g in list(gpus)[:4])),
                since_ns=min(a.since_ns for a in own),
                confidence=max(a.confidence for a in own),
                advice=f"drain {host} and test it",
            )
        )
    return clues


def read_profile_study(job: ProfiledJob) -> list[Clue]:
    """What profiles show: the rank that the others wait for, and why it is late."""
    if job.lateness.height < 2:
        return []
    spans = job.breakdown.filter(pl.col("step").is_null())
    span = float(spans["span_ns"].median() or 0)  # type: ignore[arg-type]
    first, second = job.lateness.row(0, named=True), job.lateness.row(1, named=True)
    cost = first["held_ns"] / span if span else 0.0
    if cost < 0.02 or first["held_ns"] < 2 * second["held_ns"]:
        return []
    rank = first["rank"]
    reason = _why_late(job, rank)
    return [
        Clue(
            source="kineto",
            what="slow rank: the others wait for it",
            text=f"rank {rank} came last to {first['last']} of {first['calls']} collectives; the others waited "
            f"{first['held_ns'] / 1e6:.1f} ms of {span / 1e6:.1f}{reason}",
            suspects=(Suspect(type="rank", id=str(rank)),),
            since_ns=None,
            confidence=min(0.9, 0.5 + cost),
            advice="compare that rank's kernels, clocks and input with the others'",
        )
    ]


def _why_late(job: ProfiledJob, rank: int) -> str:
    """The part of its time that exceeds the median rank's by most."""
    whole = job.breakdown.filter(pl.col("step").is_null())
    parts = {"compute_ns": "it computes", "idle_host_ns": "its host launches", "copies_ns": "it copies"}
    own = whole.filter(pl.col("rank") == rank)
    excess = {name: own[name][0] - float(whole[name].median() or 0) for name in parts}  # type: ignore[arg-type]
    worst = max(excess, key=lambda name: excess[name])
    slow = job.slow_kernels.filter(pl.col("rank") == rank)
    told = f"; {parts[worst]} {excess[worst] / 1e6:.1f} ms longer than the median rank" if excess[worst] > 0 else ""
    if slow.height:
        kernel = slow.row(0, named=True)
        told += f"; {kernel['name'][:60]} takes {kernel['mean_us']:.0f} us there and {kernel['usual_us']:.0f} elsewhere"
    return told


def read_waited_for(table: pl.DataFrame) -> list[Clue]:
    """What NCCL Inspector shows: a rank that waits least in most calls is the one that the others wait for."""
    if table.height < 2:
        return []
    first = table.row(0, named=True)
    if first["last"] < 0.6 * first["calls"] or first["held_us"] < 2 * table.row(1, named=True)["held_us"]:
        return []
    named = [Suspect(type="rank", id=str(first["rank"]))]
    named += [Suspect(type="host", id=first["host"])] if first["host"] else []
    return [
        Clue(
            source="inspector",
            what="slow rank: the others wait for it",
            text=f"rank {first['rank']} came last to {first['last']} of {first['calls']} collectives; the others "
            f"waited {first['held_us'] / 1e3:.1f} ms for it",
            suspects=tuple(named),
            since_ns=None,
            confidence=0.7,
        )
    ]


def read_log_ends(logs: Sequence[RankLog], alive: Collection[int] = ()) -> list[Clue]:
    """Who died without a word, or failed first, while the others lost a peer."""
    by_rank = {log.rank: log for log in logs}
    for ranks, told in ((find_first_failed(logs), "failed by itself"), (find_silent(logs, alive), "wrote no error")):
        if ranks and len(ranks) <= 4:
            names = ", ".join(str(r) for r in ranks)
            lost = sum(log.lost_peer for log in logs)
            error = by_rank[ranks[0]].error
            return [
                Clue(
                    source="rank_logs",
                    what="a rank failed and the others lost it"
                    if error
                    else "a rank was killed and the others lost it",
                    text=f"rank {names} {told} while {lost} others lost the connection to a peer"
                    + (f": {error[:200]}" if error else ""),
                    suspects=tuple(Suspect(type="rank", id=str(r)) for r in ranks),
                    since_ns=None,
                    confidence=round((0.5 if by_rank[ranks[0]].is_mismatch else 0.95) / len(ranks), 2),
                    advice="look for who killed it: kernel log (out of memory), scheduler, its host"
                    if not error
                    else "",
                )
            ]
    return []


def read_standings(ranks: Sequence[Standing], hosts: Mapping[str, str] | None = None) -> list[Clue]:
    """Who stands elsewhere than the ranks that wait in a collective or a message, or is stopped."""
    stopped = [r for r in ranks if r.where == "stopped"]
    if stopped:
        told = f"is in state {stopped[0].state}"
        return [_accuse_standing(stopped, "hang: a process is stopped", told, 0.95, hosts or {})]
    waiting = [r for r in ranks if r.where in ("collective", "message")]
    elsewhere = [r for r in ranks if r.where == "elsewhere" and r.line]
    if waiting and elsewhere and len(elsewhere) <= len(waiting):
        lock = ", holding the interpreter's lock," if elsewhere[0].holds_lock else ""
        told = f"is at {elsewhere[0].line}{lock} while {len(waiting)} ranks wait in collectives or messages"
        sure = 0.95 if len(elsewhere) == 1 and len(waiting) == len(ranks) - 1 else 0.85
        return [_accuse_standing(elsewhere, "hang: a rank is not in the collective", told, sure, hosts or {})]
    places = Counter(r.line for r in ranks if r.line)
    text = "; ".join(f"{n} ranks at {line}" for line, n in places.most_common(3)) or "no stacks could be read"
    return [
        Clue(source="stacks", what="stacks of a running job", text=text, suspects=(), since_ns=None, confidence=0.1)
    ]


def _accuse_standing(
    ranks: Sequence[Standing], what: str, told: str, confidence: float, hosts: Mapping[str, str]
) -> Clue:
    suspects = tuple(Suspect(type="rank", id=str(r.rank)) for r in ranks[:16])
    if ranks[0].line and len(ranks) == 1:
        suspects += (Suspect(type="program", id=ranks[0].line),)
    place = f" on {hosts[str(ranks[0].rank)]}" if str(ranks[0].rank) in hosts else ""
    return Clue(
        source="stacks",
        what=what,
        text=f"rank {', '.join(str(r.rank) for r in ranks[:8])} (process {ranks[0].pid}{place}) {told}",
        suspects=suspects,
        since_ns=None,
        confidence=confidence,
        advice="look at that line of the program and at the host",
    )


def host_of(suspect: Suspect, hosts: Mapping[str, str]) -> str | None:
    """The host that a suspect sits on, where that is known."""
    if suspect.type == "host":
        return suspect.id
    if suspect.type == "gpu":
        return suspect.id.split(" ")[0]
    return hosts.get(suspect.id) if suspect.type == "rank" else None
